//! The environment of a command handler: arguments, keys, reply, client, server.

use crate::connection::client::Client;
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::request::args::Args;
use crate::server::Shared;
use std::sync::atomic::Ordering::Relaxed;

/// Error for a request whose reply would be too large.
const TOO_LARGE: &str = "ERR the reply would exceed the output limit (client-output-buffer-limit normal): \
     ask for less at once";

/// One request being executed.
pub(crate) struct Context<'a> {
    /// The request; argument 0 is the command's name as the client wrote it.
    pub(crate) args: Args<'a>,
    /// The keys: directly on the store, or inside a transaction.
    pub(crate) keys: &'a mut dyn Keyspace,
    /// The destination of the answer: exactly one reply per request.
    pub(crate) reply: Reply<'a>,
    /// The connection's own state.
    pub(crate) client: &'a mut Client,
    /// What all connections share.
    pub(crate) shared: &'a Shared,
    /// Wall clock of this wake-up, Unix milliseconds.
    pub(crate) now_ms: u64,
}

impl Context<'_> {
    /// Limit of a reply with several parts: the hard limit of unsent output. A single value may have any
    /// length.
    pub(crate) fn reply_bytes_max(&self) -> usize {
        match self.shared.config.output_hard_bytes.load(Relaxed) {
            0 => usize::MAX,
            limit => limit,
        }
    }

    /// Refuses a request whose reply exceeds [`Context::reply_bytes_max`].
    pub(crate) fn refuse_too_large(&mut self) {
        self.reply.error(TOO_LARGE);
    }

    /// Whether the reply begun at `start` has become too large; it is then replaced by an error.
    pub(crate) fn outgrown(&mut self, start: usize) -> bool {
        let outgrown = self.reply.position() - start > self.reply_bytes_max();
        if outgrown {
            self.reply.take_back_to(start);
            self.refuse_too_large();
        }
        outgrown
    }
}
