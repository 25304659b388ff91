//! End-to-end tests of sandboxd, and what several of them need.

pub mod egress;
