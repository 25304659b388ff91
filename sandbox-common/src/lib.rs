//! What kernel and daemon both speak.
#![no_std]
