//! What the fuzzing targets share: input bytes taken as choices, and a limit on memory.
//!
//! A target turns any bytes into something to do, so that no input is wasted, and the same bytes always do
//! the same. The targets are in `bin/`; what belongs to one of them alone is in the module of its name.
#![forbid(unsafe_code)]

// Tests are built as the targets are, with coverage, for which the engine has the counters.
#[cfg(test)]
use libfuzzer_sys as _;

pub mod choices;
pub mod commands;
pub mod damage;
pub mod pools;
pub mod replies;
pub mod visit;

/// Bytes that a target may hold at once. The largest honest need is some megabytes; a length that was
/// announced and believed is far more.
pub const MEMORY_BYTES_MAX: usize = 192 << 20;
