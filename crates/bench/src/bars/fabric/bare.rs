//! The messages, writes and reads of the door without a store: what libfabric and the kernel take for them.
//!
//! Where servers run, a thread answers each message with one of 64 bytes, as long as a reply's head. It gives
//! its peer memory to write and read.

use crate::process::pin;
use crate::server::Pins;
use crate::subject::Error;
use anyhow::{Context, bail, ensure};
use everdram_fabric_sys::{Completion, Conn, Event, Library, Listener, Port, Sizes, library};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of the head of a message, of which a reply mostly consists.
pub(super) const HEAD_BYTES: usize = 64;
/// Longest message, and the memory that the peer is given.
const MESSAGE_BYTES: usize = 4096;
const AREA_BYTES: usize = 64 << 10;
/// Receive buffers: one message is under way.
const BUFFERS: usize = 4;
/// After so long the other side is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port and what it has not told yet.
struct Side {
    port: Port,
    events: Vec<Event>,
}

impl Side {
    /// The next event.
    fn next(&mut self) -> Result<Event, Error> {
        if self.events.is_empty() {
            self.port.wait(Some(PATIENCE), &mut self.events)?;
        }
        ensure!(
            !self.events.is_empty(),
            "nothing came for {} s",
            PATIENCE.as_secs()
        );
        Ok(self.events.remove(0))
    }

    /// The next event, which is a message; `None`: the connection has ended.
    fn message(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.next()? {
            Event::Message(_, buffer) => {
                let bytes = self.port.message(&buffer).to_vec();
                self.port.give_back(buffer, true)?;
                Ok(Some(bytes))
            }
            Event::Closed(_) => Ok(None),
            other => bail!("{other:?} instead of a message"),
        }
    }

    fn opened(&mut self) -> Result<(), Error> {
        match self.next()? {
            Event::Opened(_) => Ok(()),
            other => bail!("{other:?} instead of an open connection"),
        }
    }
}

/// The client's end of such a connection.
pub(super) struct Bare {
    side: Side,
    conn: Conn,
    /// Address and key of the peer's memory.
    memory: (u64, u64),
    message: Vec<u8>,
    peer: Option<JoinHandle<Result<(), Error>>>,
}

impl Bare {
    /// Starts the peer, and connects to it over `tcp`.
    pub(super) fn start(pins: Pins) -> Result<Bare, Error> {
        let library = library()?;
        let sizes = Sizes {
            message_bytes: MESSAGE_BYTES,
        };
        let listener = Listener::bind(library, "tcp", ([127, 0, 0, 1], 0).into())?;
        let address = listener.local_address();
        let peer = std::thread::spawn(move || answer(listener, sizes, pins.server));
        let mut side = connecting(library, address, sizes)?;
        let conn = side.port.connect(address, &[], BUFFERS)?;
        side.opened()?;
        let told = side.message()?.context("the peer is gone")?;
        let words = told.as_chunks::<8>().0;
        let [address, key] = words else {
            bail!("the peer tells {} bytes of its memory", told.len());
        };
        Ok(Bare {
            side,
            conn,
            memory: (u64::from_le_bytes(*address), u64::from_le_bytes(*key)),
            message: vec![7; AREA_BYTES],
            peer: Some(peer),
        })
    }

    /// A message of so many bytes and its answer.
    pub(super) fn ask(&mut self, bytes: usize) -> Result<(), Error> {
        let message = self.message.get(..bytes).context("a long message")?;
        self.side.port.send(self.conn, &[message])?;
        let answer = self.side.message()?.context("the peer is gone")?;
        ensure!(answer.len() == HEAD_BYTES, "an answer of other length");
        Ok(())
    }

    /// A durable write into the peer's memory, until it is complete.
    pub(super) fn write_durably(&mut self, bytes: usize) -> Result<(), Error> {
        let (address, key) = self.memory;
        let parts = self.message.get(..bytes).context("a long write")?;
        let how = Completion::Durable;
        self.side
            .port
            .write(self.conn, &[parts], address, key, 0, how)?;
        match self.side.next()? {
            Event::Written(_, _, result) => Ok(result?),
            other => bail!("{other:?} instead of a write"),
        }
    }

    /// A read of the peer's memory.
    pub(super) fn read(&mut self, bytes: usize) -> Result<(), Error> {
        let (address, key) = self.memory;
        self.side.port.read(self.conn, bytes, address, key, 0)?;
        match self.side.next()? {
            Event::Read(_, _, result) => {
                ensure!(result?.len() == bytes, "a read of other length");
                Ok(())
            }
            other => bail!("{other:?} instead of a read"),
        }
    }

    /// Ends both sides.
    pub(super) fn stop(mut self) -> Result<(), Error> {
        self.side.port.close(self.conn);
        drop(self.side);
        let peer = self.peer.take().context("a peer that has ended")?;
        match peer.join() {
            Ok(done) => done,
            Err(_) => bail!("the answering thread panicked"),
        }
    }
}

fn connecting(
    library: &'static Library,
    to: std::net::SocketAddr,
    sizes: Sizes,
) -> Result<Side, Error> {
    Ok(Side {
        port: Port::connecting(library, "tcp", to, sizes)?,
        events: Vec::new(),
    })
}

/// Answers one connection until it ends.
fn answer(mut listener: Listener, sizes: Sizes, core: Option<usize>) -> Result<(), Error> {
    if let Some(core) = core {
        pin(core).with_context(|| format!("moving to core {core}"))?;
    }
    let incoming = listener.wait(PATIENCE)?.context("nobody connects")?;
    let mut side = Side {
        port: Port::of(&listener, sizes)?,
        events: Vec::new(),
    };
    let conn = side.port.accept(incoming, BUFFERS)?;
    side.opened()?;
    let area = side.port.expose(conn, AREA_BYTES)?;
    side.port.send(
        conn,
        &[&area.address.to_le_bytes(), &area.key.to_le_bytes()],
    )?;
    let reply = [0; HEAD_BYTES];
    while side.message()?.is_some() {
        side.port.send(conn, &[&reply])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_writes_and_reads_are_answered() {
        if let Err(error) = library() {
            return println!("skipped: {error}");
        }
        let mut bare = Bare::start(Pins::default()).unwrap();
        bare.ask(280).unwrap();
        bare.write_durably(AREA_BYTES).unwrap();
        bare.read(AREA_BYTES).unwrap();
        bare.ask(1).unwrap();
        assert!(bare.ask(MESSAGE_BYTES + 1).is_err());
        bare.stop().unwrap();
    }
}
