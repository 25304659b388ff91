//! The smart HTTP protocol of git, as far as it says what is read and written.
//!
//! ```text
//! request (what is asked for) -> rule (of which repository)
//! receive (what is pushed)    -> rule (to which references)
//!                             -> pack (whether that only adds to them)
//!                             -> report (what git is told of a refusal)
//! ```

mod commits;
mod delta;
mod object;
pub mod pack;
pub mod pkt;
pub mod receive;
mod reference;
pub mod report;
pub mod request;
pub mod rule;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use object::{Format, Id};
