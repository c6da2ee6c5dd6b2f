//! Raw bytes over a socket: what clients may send, what they get, and what the server refuses. Here the store
//! is on emulated persistent memory; `on_files.rs` runs the same tests on files.

#[path = "../common/bed.rs"]
mod bed;

mod administration;
mod durability;
mod front;
mod lifecycle;
mod limits;
mod protocol;
mod roles;
mod support;

/// The medium of the stores, unless EVERDRAM_TEST_MEDIUM says otherwise.
pub(crate) const MEDIUM: everdram::Medium = everdram::Medium::Emulated;
