//! The kernel programs.
#![no_std]
#![no_main]
