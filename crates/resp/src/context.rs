//! What a command handler is given: arguments, the keys, the reply, the client and the server.

use crate::connection::client::Client;
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::request::args::Args;
use crate::server::Shared;
use std::sync::atomic::Ordering::Relaxed;

/// Answer to a request for more than one reply may hold.
const TOO_LARGE: &str = "ERR the reply would exceed the output limit (client-output-buffer-limit normal): \
     ask for less at once";

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

impl Context<'_> {
    /// Bytes that a reply of several parts may have: the hard limit of unsent output. A single value is
    /// answered whatever its length.
    pub(crate) fn reply_bytes_max(&self) -> usize {
        match self.shared.config.output_hard_bytes.load(Relaxed) {
            0 => usize::MAX,
            limit => limit,
        }
    }

    /// Answers a request for more than [`Context::reply_bytes_max`].
    pub(crate) fn refuse_too_large(&mut self) {
        self.reply.error(TOO_LARGE);
    }

    /// Whether the reply begun at `start` has become too large; it is then an error instead.
    pub(crate) fn outgrown(&mut self, start: usize) -> bool {
        let outgrown = self.reply.position() - start > self.reply_bytes_max();
        if outgrown {
            self.reply.take_back_to(start);
            self.refuse_too_large();
        }
        outgrown
    }
}
