//! The ways of the paper. (RDMP-KV section III-B to III-E.)

use crate::wire::{BY_CLIENT, BY_CLIENT_TOLD, LENT};

/// How a value travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// With its request if it is short, else as RDMP-SA: the hybrid protocol.
    #[default]
    Auto,
    /// With its request.
    Inline,
    /// Written by the client into memory of the server, which is asked to make it durable: RDMP-SA.
    ServerAssisted,
    /// Written durably by the client into persistent memory of the server, which takes no part in it and
    /// learns of the value when somebody asks for it: RDMP-CC-ADP, with the check of the slot instead of the
    /// 8 bytes behind it.
    ClientCentric,
    /// As [`Way::ClientCentric`], and then the server is asked to look: RDMP-CC-SA. One round trip more.
    ClientCentricAsked,
    /// As [`Way::ClientCentricAsked`], but the write itself tells the server to look, by immediate data:
    /// RDMP-CC-Imm. One round trip less.
    ClientCentricImmediate,
}

impl Way {
    pub(super) fn is_by_client(self) -> bool {
        self.place() != 0
    }

    /// What a Prepare says of the way, if the door has these ways beside the usual ones. What the store keeps
    /// may be written where it stays, unless nobody tells the door of it.
    pub(super) fn asked(self, ways: u64) -> u64 {
        let lent = match self {
            Way::Auto | Way::ServerAssisted | Way::ClientCentricAsked => LENT,
            Way::Inline | Way::ClientCentric | Way::ClientCentricImmediate => 0,
        };
        self.place() | ways & lent
    }

    /// The way that a door must have for it.
    pub(super) fn place(self) -> u64 {
        match self {
            Way::Auto | Way::Inline | Way::ServerAssisted => 0,
            Way::ClientCentric | Way::ClientCentricAsked => BY_CLIENT,
            Way::ClientCentricImmediate => BY_CLIENT_TOLD,
        }
    }
}
