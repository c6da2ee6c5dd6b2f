//! The state of a connection that its commands use: protocol, authentication, transaction, reply mode.

use super::peer::Peer;
use std::sync::Arc;
use std::time::Instant;

/// Commands queued since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    /// Full argument vectors, the command's name first.
    pub(crate) queued: Vec<Vec<Vec<u8>>>,
    /// A command could not be queued: EXEC must refuse.
    pub(crate) aborted: bool,
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum ReplyMode {
    #[default]
    On,
    Off,
    /// The command that asked to skip is running; the next one is silent.
    SkipNext,
    /// This command is silent.
    Skip,
}

/// State of one connection.
pub(crate) struct Client {
    pub(crate) id: u64,
    /// The part that CLIENT LIST and KILL of other connections see.
    pub(crate) peer: Arc<Peer>,
    pub(crate) resp3: bool,
    pub(crate) authenticated: bool,
    pub(crate) multi: Option<Multi>,
    /// Bytes of the arguments in `multi`, so that they can be limited.
    pub(crate) multi_bytes: usize,
    /// Watched keys, and the number of `Keyspace::watch` for each.
    pub(crate) watched: Vec<(Vec<u8>, u64)>,
    pub(crate) reply_mode: ReplyMode,
    /// Close once the replies so far are sent.
    pub(crate) close_after_reply: bool,
    /// Close at once, without sending anything more.
    pub(crate) close_now: bool,
    /// WAITAOF waits for a sync until then (inner `None`: forever). No other command runs meanwhile.
    pub(crate) awaiting_sync: Option<Option<Instant>>,
    /// No command runs before this time.
    pub(crate) paused_until: Option<Instant>,
    /// Bytes of the last value's head; see `Reply::bulk_filled`.
    pub(crate) value_head_bytes: usize,
    /// EXEC is running: nothing may wait.
    pub(crate) is_in_exec: bool,
}

impl Client {
    pub(crate) fn new(peer: Arc<Peer>, authenticated: bool) -> Self {
        Client {
            id: peer.id,
            peer,
            resp3: false,
            authenticated,
            multi: None,
            multi_bytes: 0,
            watched: Vec::new(),
            reply_mode: ReplyMode::On,
            close_after_reply: false,
            close_now: false,
            awaiting_sync: None,
            paused_until: None,
            value_head_bytes: 0,
            is_in_exec: false,
        }
    }

    /// Whether the connection is closing and executes nothing more.
    pub(crate) fn is_closing(&self) -> bool {
        self.close_after_reply || self.close_now
    }

    /// Whether requests wait for a sync or a pause.
    pub(crate) fn is_held(&self) -> bool {
        self.awaiting_sync.is_some() || self.paused_until.is_some()
    }

    /// RESET: the state after connecting.
    pub(crate) fn reset(&mut self, authenticated: bool) {
        self.resp3 = false;
        self.authenticated = authenticated;
        self.multi = None;
        self.multi_bytes = 0;
        self.watched.clear();
        self.reply_mode = ReplyMode::On;
        self.peer.reset();
    }
}
