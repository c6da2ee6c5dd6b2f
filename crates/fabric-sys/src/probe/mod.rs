//! What a provider does, tried out by this process against itself: whether durable writes complete and what
//! they cost, and whether its checks keep a peer that forges a length inside of its memory.
//!
//! Each probe has ports of its own and ends within some seconds, whatever the provider does. Nothing but
//! memory of the probe is written.

mod bounds;
mod commit;
mod forger;

use crate::{Conn, Event, Library, Listener, Port, Sizes};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What the probes of a provider found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Durable writes.
    pub commit: Commit,
    /// The wall around exposed memory.
    pub bounds: Bounds,
}

/// What became of durable writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The provider does not offer them, or is not known to do what they say.
    NotOffered,
    /// They complete. That they are durable then is what the provider says: nobody can see it from outside.
    Completes(WriteTimes),
    /// They do not, and why.
    Fails(String),
}

/// Medians of writes to this process, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTimes {
    /// Bytes of each write.
    pub bytes: usize,
    /// Until a plain write is complete, which says nothing about its target.
    pub sent: Duration,
    /// Until a read behind a plain write has brought a word of it back: the bytes are there, and not durable.
    pub arrived: Duration,
    /// Until a durable write is complete.
    pub durable: Duration,
}

/// Whether a provider keeps peers inside of the memory that was exposed to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// What was tried was refused, and no byte outside changed. Not everything was tried: a wrong count of
    /// ranges, for one, would damage the library's own memory where it is not refused (libfabric 12593).
    Kept,
    /// A write beyond the end was refused, and not by software of this process: the device looks at each.
    /// But it also chooses the keys of memory, and a stranger who may connect can guess those (Rothenberger
    /// et al. 2021, ReDMArk).
    ByDevice,
    /// Bytes outside of the memory changed: whoever may connect can write into this process.
    Forgeable,
    /// It could not be found out, and why.
    Unknown(String),
}

/// Longest time for each step of a probe.
const PATIENCE: Duration = Duration::from_secs(1);
const SIZES: Sizes = Sizes { message_bytes: 64 };

/// Tries a provider out at an address of this machine; port 0 picks a free one. Takes some milliseconds, and
/// at most some seconds.
pub fn probe(library: &'static Library, provider: &str, at: SocketAddr) -> Probe {
    Probe {
        commit: commit::probe(library, provider, at),
        bounds: bounds::probe(library, provider, at),
    }
}

/// Two connected ports of this process.
struct Pair {
    target: Port,
    /// The connection, as the target knows it.
    served: Conn,
    initiator: Port,
    /// The connection, as the initiator knows it.
    conn: Conn,
}

/// What a step failed for.
type Reason = String;

impl Pair {
    fn connect(library: &'static Library, provider: &str, at: SocketAddr) -> Result<Pair, Reason> {
        let mut listener = Listener::bind(library, provider, at).map_err(text)?;
        let address = listener.local_address();
        let mut initiator = Port::connecting(library, provider, address, SIZES).map_err(text)?;
        let conn = initiator.connect(address, b"", 1).map_err(text)?;
        let mut target = Port::of(&listener, SIZES).map_err(text)?;
        let (mut served, mut events) = (None, Vec::new());
        let (mut is_open_here, mut is_open_there) = (false, false);
        within("a connection to this process opens", || {
            // The request leaves while its port waits.
            take(&mut initiator, &mut events)?;
            is_open_here |= events.iter().any(|event| matches!(event, Event::Opened(_)));
            if served.is_none()
                && let Some(incoming) = listener.wait(Duration::from_millis(1)).map_err(text)?
            {
                served = Some(target.accept(incoming, 1).map_err(text)?);
            }
            take(&mut target, &mut events)?;
            is_open_there |= events.iter().any(|event| matches!(event, Event::Opened(_)));
            Ok(is_open_here && is_open_there)
        })?;
        let served = served.ok_or("nobody connected")?;
        Ok(Pair {
            target,
            served,
            initiator,
            conn,
        })
    }
}

/// Replaces `events` by what a port has to say within a millisecond.
fn take(port: &mut Port, events: &mut Vec<Event>) -> Result<(), Reason> {
    events.clear();
    port.wait(Some(Duration::from_millis(1)), events)
        .map_err(text)
}

/// Turns until something is so, or the patience ends.
fn within(what: &str, mut turn: impl FnMut() -> Result<bool, Reason>) -> Result<(), Reason> {
    let until = Instant::now() + PATIENCE;
    while !turn()? {
        if Instant::now() >= until {
            return Err(format!("it did not happen within {PATIENCE:?} that {what}"));
        }
    }
    Ok(())
}

fn text(error: crate::Error) -> Reason {
    error.to_string()
}
