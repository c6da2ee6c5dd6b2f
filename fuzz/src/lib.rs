//! The common part of the fuzzing targets: input bytes as choices, and a limit on memory.
//!
//! A target turns any bytes into operations, so that no input is wasted. The same bytes always do the same.
//! The targets are in `bin/`; a module with a target's name belongs to that target alone.
#![forbid(unsafe_code)]

// Tests are built as the targets are, with coverage, for which the engine has the counters.
#[cfg(test)]
use libfuzzer_sys as _;

pub mod beside;
pub mod choices;
pub mod commands;
pub mod damage;
pub mod pools;
pub mod possible;
pub mod replies;
pub mod visit;

/// Bytes that a target may hold at once. The largest legitimate need is some megabytes; a target that trusts
/// an announced length needs far more.
pub const MEMORY_BYTES_MAX: usize = 192 << 20;
