//! Tests that need root and cgroup2 but no kernel programs: they run on the
//! machine itself, each in a slice of its own.

#![expect(
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking"
)]

mod api;
mod changes;
mod claims;
mod daemon;
mod enroll;
mod ephemeral;
mod jobs;
mod launch;
mod limits;
mod peer;
mod run;
mod secrets;
mod support;
mod view;
