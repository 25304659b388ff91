//! What became of the refusals of one exec.

/// `denied == emitted + limited + dropped`, always.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Refusals (in observe mode: would-be refusals).
    pub denied: u64,
    /// Records written to the ring buffer.
    pub emitted: u64,
    /// Not written: the exec was over its rate.
    pub limited: u64,
    /// Not written: the ring buffer was full.
    pub dropped: u64,
    /// Token bucket: tokens left, and when it was filled last (boot ns).
    pub tokens: u64,
    /// See `tokens`.
    pub filled_ns: u64,
}

// SAFETY: plain integers without padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Counters {}
