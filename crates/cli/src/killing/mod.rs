//! What `demo` and `crashtest --kill` share: a server that clients load and SIGKILL ends, and the judge of
//! what it owes.
//!
//! The *load* (`load`) asks for what the campaign's own mix chooses and takes note of it in the *ledger*
//! (`journal`), in memory or in a file besides; `expected` is what the ledger knows and the judge of
//! whatever is shown, and `verify` reads every key after a start. `stretch` is one load and the kill that
//! ends it, `process` the server.

pub(crate) mod expected;
pub(crate) mod journal;
pub(crate) mod keys;
pub(crate) mod load;
pub mod place;
pub mod process;
pub(crate) mod stretch;
pub(crate) mod tally;
pub(crate) mod value;
pub(crate) mod verify;
