//! The tests of `main.rs` over a store on files, where a reply waits for the log's sync.

#[path = "../common/bed.rs"]
mod bed;
// The engine's tests need the same.
#[path = "../../../kv/tests/support/keys.rs"]
mod keys;

mod administration;
mod durability;
mod faults;
mod front;
mod lifecycle;
mod limits;
mod protocol;
mod roles;
mod support;

/// The medium of the stores, unless EVERDRAM_TEST_MEDIUM says otherwise.
pub(crate) const MEDIUM: everdram::Medium = everdram::Medium::File;
