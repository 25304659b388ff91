//! sandboxd: a boundary around what AI agents run.
//!
//! Arrows point one way: `api` -> `sandbox` -> { `policy`, `kernel`, `events`,
//! `secrets`, `cgroup`, `workspace` } -> `launch` -> `sys`; `cli` -> `proto`, `policy`, `secrets`.

#![deny(unsafe_code)]

pub mod api;
pub mod cgroup;
pub mod chain;
pub mod cli;
pub mod config;
pub mod egress;
pub mod escape;
pub mod events;
pub mod kernel;
#[expect(unsafe_code, reason = "system calls that have no safe wrapper")]
pub mod launch;
pub mod policy;
pub mod proto;
pub mod sandbox;
pub mod secrets;
pub mod selftest;
pub mod steps;
#[expect(unsafe_code, reason = "system calls that have no safe wrapper")]
pub mod sys;
pub mod walls;
pub mod workspace;
