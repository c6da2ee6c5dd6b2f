//! What a server is asked, how much at once and for how long.

use crate::workload::Workload;

/// The command that a load consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Overwrites the value of a random key.
    Set,
    /// Reads the value of a random key; every byte of it is checked.
    Get,
}

impl Command {
    /// As Redis spells it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Command::Set => "SET",
            Command::Get => "GET",
        }
    }

    /// What a store is asked for to the same effect.
    pub(super) fn workload(self) -> Workload {
        match self {
            Command::Set => Workload::Overwrite,
            Command::Get => Workload::Get,
        }
    }
}

/// What is in a server before it is measured. Keys are 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Keys, all of them present.
    pub keys: u64,
    /// Bytes of each value, which starts with its key.
    pub value_bytes: usize,
}

/// What a server is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The command.
    pub command: Command,
    /// What is there.
    pub data: Data,
    /// Connections, served by one thread of the load generator.
    pub connections: usize,
    /// Requests of a connection under way at once: a closed loop sends so many and waits for all replies.
    pub pipeline: usize,
    /// Requests a second over all connections, sent when they are due and not when replies have come (open
    /// loop); latency counts from when they were due. Without it the loop is closed: as fast as the replies
    /// come.
    pub rate: Option<f64>,
    /// Requests that are measured at most, and before that as many.
    pub most: Option<u64>,
    /// Seconds before measuring.
    pub warm_up_seconds: f64,
    /// Seconds of measuring.
    pub seconds: f64,
    /// Where the random keys start.
    pub seed: u64,
}
