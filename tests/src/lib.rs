//! End-to-end tests of sandboxd.
