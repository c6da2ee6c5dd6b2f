//! How far the redo log is durable: what a pool tells of a fence, and what proves it.

/// A position in the redo log; 0 on media that are durable at the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Lsn(pub u64);

/// Proof that everything up to a log position survives.
#[derive(Clone, Copy, Debug)]
pub struct Durable(pub(crate) ());
