//! What a command handler is given: arguments, the keys, the reply, the client and the server.

use crate::args::Args;
use crate::client::Client;
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::server::Shared;

/// One request being executed.
pub(crate) struct Context<'a> {
    /// The request; argument 0 is the command's name as the client wrote it.
    pub(crate) args: Args<'a>,
    /// The keys: straight on the store, or inside a transaction.
    pub(crate) keys: &'a mut dyn Keyspace,
    /// Where the answer goes: exactly one reply for each request.
    pub(crate) reply: Reply<'a>,
    /// The connection's own state.
    pub(crate) client: &'a mut Client,
    /// What all connections share.
    pub(crate) shared: &'a Shared,
    /// Wall clock of this wake-up, Unix milliseconds.
    pub(crate) now_ms: u64,
}
