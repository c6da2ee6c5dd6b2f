//! A link: one end of a fabric with all its connections. One thread owns it.
//!
//! There are two: `libfabric.rs` for networks, and `inside.rs` for one process, where tests need no library.
//! Both keep the order of what goes over a connection: a message that is sent behind a write arrives when the
//! written bytes are there.

use crate::wire::INLINE_BYTES;
use everdram_pm::Window;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A connection of a link. No other connection of the link ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Conn(pub(crate) u64);

/// A message that arrived, until its buffer is given back.
#[derive(Debug)]
pub(crate) struct Buffer(pub(crate) u32);

/// Memory that peers may write, as a peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) address: u64,
    pub(crate) key: u64,
    pub(crate) bytes: usize,
}

/// What happened on a link.
#[derive(Debug)]
pub(crate) enum Event {
    /// The peer has accepted.
    Opened,
    Message(Conn, Buffer),
    /// The bytes of a write are with the peer; `false`: perhaps not all.
    Written(bool),
    /// The bytes of the durable write with this token are durable with the peer; `false`: perhaps not all.
    Committed(u64, bool),
    /// A peer has made bytes durable here by itself, and tells these four bytes of it. Not every link knows
    /// which connection that came over.
    Told(Option<Conn>, u32),
    /// The bytes of the read with this token, if it did not fail.
    Read(u64, Option<Vec<u8>>),
    /// The last one of a connection.
    Closed(Conn),
}

pub(crate) use everdram_fabric_sys::Access;

/// A connection that somebody asks for, as links of its kind know it. Dropped, it is refused.
pub(crate) type Request = Box<dyn Any + Send>;

/// A failed call of a link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// libfabric says so.
    #[error(transparent)]
    Fabric(#[from] everdram_fabric_sys::Error),
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// The request belongs to another kind of link, or the memory is not of this one.
    #[error("this link does not have that")]
    Foreign,
}

/// Wakes the thread that waits on a link.
pub(crate) type Waker = Arc<dyn Fn() + Send + Sync>;

/// See the module text.
pub(crate) trait Link: Send {
    /// Accepts a connection, with so many buffers for what it sends.
    fn accept(&mut self, request: Request, buffers: usize) -> Result<Conn, LinkError>;
    /// One buffer more for what a connection sends.
    fn post(&mut self, conn: Conn) -> Result<(), LinkError>;
    /// Sends a message. It is copied, and the caller never waits.
    fn send(&mut self, conn: Conn, parts: &[&[u8]]) -> Result<(), LinkError>;
    /// Waits for events, at most for `timeout` (`None`: for ever), or until somebody calls the waker.
    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<Event>) -> Result<(), LinkError>;
    /// The bytes of a message.
    fn message(&self, buffer: &Buffer) -> &[u8];
    /// Gives a buffer back; `again`: for the next message of its connection.
    fn give_back(&mut self, buffer: Buffer, again: bool) -> Result<(), LinkError>;
    /// Closes a connection. Nothing of it arrives any more, and no write of it changes memory later.
    fn close(&mut self, conn: Conn);
    /// The longest body of a message, in bytes.
    fn body_bytes(&self) -> usize {
        INLINE_BYTES
    }
    /// The clock of this end, on a modelled network.
    #[cfg(feature = "modelled")]
    fn clock(&self) -> Option<crate::inside::EndClock> {
        None
    }
    /// For other threads.
    fn waker(&self) -> Waker;
    /// Memory that the peer of a connection may write, if it is told where.
    fn expose(&mut self, conn: Conn, bytes: usize) -> Result<Area, LinkError>;
    /// Memory of a pool that the peer of a connection may write or read, if it is told where. The link keeps
    /// the window at least until it is taken back, and as long as a peer may reach it.
    fn expose_window(
        &mut self,
        conn: Conn,
        window: &Arc<Window>,
        access: Access,
    ) -> Result<Area, LinkError> {
        self.expose_part(conn, window, 0..window.len(), access)
    }
    /// As [`Link::expose_window`], of these bytes of the window, which it has.
    fn expose_part(
        &mut self,
        conn: Conn,
        window: &Arc<Window>,
        part: Range<usize>,
        access: Access,
    ) -> Result<Area, LinkError>;
    /// Takes such memory back. Its connection is closed, or writes to it that have begun may go on.
    fn unexpose(&mut self, area: Area);
    /// Copies what lies there now, from byte `at` on. A peer may be writing it.
    fn read_area(&self, area: &Area, at: usize, into: &mut [u8]) -> Result<(), LinkError>;
    /// Messages of a connection that its peer has not taken in, as far as the link knows.
    fn unsent(&self, conn: Conn) -> usize;
    /// Writes to an address under a key of the peer; no thread there learns of it. [`Event::Written`]
    /// follows.
    fn write(&mut self, conn: Conn, bytes: &[u8], target: (u64, u64)) -> Result<(), LinkError>;
    /// Whether [`Link::write_durably`] can be had, as far as this end knows. The peer's link must say so,
    /// too.
    fn can_commit(&self) -> bool;
    /// As [`Link::write`], into a window. [`Event::Committed`] follows, once the other side has made these
    /// bytes durable; it says nothing about earlier ones. Tokens: any but `u64::MAX`.
    fn write_durably(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        target: (u64, u64),
        token: u64,
    ) -> Result<(), LinkError>;
    /// Whether [`Link::write_and_tell`] can be had, as far as this end knows; as [`Link::can_commit`].
    fn can_tell(&self) -> bool;
    /// As [`Link::write_durably`], and the other side's owner is told these four bytes once the others are
    /// durable: [`Event::Told`] there, in the order of the messages.
    fn write_and_tell(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        target: (u64, u64),
        token: u64,
        told: u32,
    ) -> Result<(), LinkError>;
    /// Whether adapters check what they carry, so that a write that has ended without an error is there as it
    /// was sent. TCP has a sum of 16 bits.
    fn checks_writes(&self) -> bool;
    /// Reads from an address under a key of the peer; no thread there learns of it. [`Event::Read`] follows.
    fn read(
        &mut self,
        conn: Conn,
        bytes: usize,
        source: (u64, u64),
        token: u64,
    ) -> Result<(), LinkError>;
}

/// Where connections are asked for. One thread owns it.
pub(crate) trait Listen: Send {
    /// The next request; `None` if there was none for so long.
    fn wait(&mut self, timeout: Duration) -> Result<Option<Request>, LinkError>;
    /// As clients name it.
    fn address(&self) -> String;
}

#[cfg(test)]
mod tests;
