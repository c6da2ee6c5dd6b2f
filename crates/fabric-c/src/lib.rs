//! The client of everdram's fabric door, for C.
//!
//! `include/everdram_fabric.h` is what C programs see, and says who owns what, when data is durable, and what
//! each call returns; this crate is what they link with (`cdylib` or `staticlib`). Behind it is
//! [`everdram_fabric::Cluster`], for one server as for many.
//!
//! # The boundary
//! C names a client by a number that is never used again, so calls of a closed client, and calls of two
//! threads at once, are errors and nothing worse. Memory of the caller is read and written in `boundary.rs`
//! alone, after lengths and pointers were judged. No panic crosses.

mod boundary;
mod calls;
mod clients;
pub mod code;

pub use calls::*;

#[cfg(test)]
mod tests;
