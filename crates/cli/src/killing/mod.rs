//! The common part of `demo` and `crashtest --kill`: clients load a server, SIGKILL ends it, and a judge
//! compares what it holds with what it owes.
//!
//! The load (`load`) sends the requests that the campaign's mix chooses. It records them in the *ledger*
//! (`journal`), in memory and for `crashtest` also in a file. `expected` keeps the ledger's knowledge and
//! judges every read. `verify` reads every key after a start. `stretch` is one load and the kill that ends
//! it, `process` the server.

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

/// Arguments of a server of the engine `tiered`: so small a pool that most data leave it, and large enough
/// for what all connections write at once.
pub(crate) const TIERED: [&str; 2] = ["--max-bytes", "16MiB"];
