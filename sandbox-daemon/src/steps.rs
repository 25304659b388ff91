//! The steps of a run, told to the log with the time of each when it is asked
//! for ([`FILTER`]), so that it can be said what a run spends its time on.

use std::time::{SystemTime, UNIX_EPOCH};

/// For `RUST_LOG`: the steps and nothing else.
pub const FILTER: &str = "off,step=trace";

/// What stands between the time of a step, in microseconds, and its name.
pub const MARK: &str = "|step ";

/// Tells that a step is done.
pub(crate) fn done(step: &'static str) {
    if tracing::enabled!(target: "step", tracing::Level::TRACE) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_micros();
        tracing::trace!(target: "step", "{now}{MARK}{step}");
    }
}
