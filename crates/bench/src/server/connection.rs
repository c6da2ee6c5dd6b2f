//! A connection of the load generator: what is to be sent, what is under way, and whether the replies are
//! those that must come, however the socket cuts them.

use super::wire::{Template, Wire, key};
use crate::subject::Error;
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    output: Vec<u8>,
    sent: usize,
    pending: VecDeque<Pending>,
    checker: Checker,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            output: Vec::new(),
            sent: 0,
            pending: VecDeque::new(),
            checker: Checker::default(),
        }
    }

    /// Requests without a reply.
    pub(super) fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Adds a request; `flush` sends it.
    pub(super) fn ask(&mut self, wire: &mut Wire, request: Pending) {
        wire.request.set_key(key(request.key));
        self.output.extend_from_slice(wire.request.bytes());
        self.pending.push_back(request);
    }

    /// Sends what the socket takes; the rest goes when it says that it takes more.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::new(error).context("sending to the server")),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Takes what has come. A read that does not fill `buffer` emptied the socket: the next bytes are a new
    /// event.
    pub(super) fn receive(
        &mut self,
        wire: &mut Wire,
        buffer: &mut [u8],
        mut done: impl FnMut(Pending),
    ) -> Result<(), Error> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => anyhow::bail!("the server closed a connection"),
                Ok(count) => {
                    let came = &buffer[..count];
                    self.checker
                        .take(came, &mut wire.reply, &mut self.pending, &mut done)?;
                    if count < buffer.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::new(error).context("reading from the server")),
            }
        }
    }
}

/// A request that has been sent.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub(super) key: u64,
    /// When it was sent, or should have been.
    pub(super) begun: Instant,
}

/// How far into the current reply a connection is.
#[derive(Default)]
pub(super) struct Checker {
    at: usize,
}

impl Checker {
    /// Takes bytes that came; each request that they complete leaves `pending` and goes to `done`.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        reply: &mut Template,
        pending: &mut VecDeque<Pending>,
        mut done: impl FnMut(Pending),
    ) -> Result<(), Error> {
        while !bytes.is_empty() {
            let Some(request) = pending.front() else {
                anyhow::bail!(
                    "the server sent {:?}, which nobody asked for",
                    excerpt(bytes)
                );
            };
            reply.set_key(key(request.key));
            let expected = reply.bytes();
            let rest = &expected[self.at..];
            let (here, later) = bytes.split_at(rest.len().min(bytes.len()));
            anyhow::ensure!(
                here == &rest[..here.len()],
                "the server answered {:?} where {:?} was due, at byte {} of a reply about key {}",
                excerpt(here),
                excerpt(rest),
                self.at,
                request.key
            );
            self.at += here.len();
            bytes = later;
            if self.at == expected.len() {
                self.at = 0;
                pending.pop_front().into_iter().for_each(&mut done);
            }
        }
        Ok(())
    }
}

fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::load::{Command, Data};
    use super::*;

    const DATA: Data = Data {
        keys: 10,
        value_bytes: 20,
    };

    /// Keys whose replies were complete after the stream came in pieces of `piece` bytes.
    fn checked(stream: &str, keys: &[u64], piece: usize) -> Result<Vec<u64>, Error> {
        let mut reply = Wire::of(Command::Get, DATA).reply;
        let begun = Instant::now();
        let mut pending = keys.iter().map(|&key| Pending { key, begun }).collect();
        let (mut checker, mut done) = (Checker::default(), Vec::new());
        for piece in stream.as_bytes().chunks(piece) {
            checker.take(piece, &mut reply, &mut pending, |request| {
                done.push(request.key)
            })?;
        }
        Ok(done)
    }

    #[test]
    fn replies_are_found_however_they_are_cut() {
        let stream = "$20\r\nkey:000000000007vvvv\r\n$20\r\nkey:000000000003vvvv\r\n$20\r\nkey";
        for piece in 1..stream.len() {
            assert_eq!(checked(stream, &[7, 3, 5], piece).unwrap(), [7, 3]);
        }
    }

    #[test]
    fn wrong_replies_are_errors() {
        for stream in [
            "$20\r\nkey:000000000008vvvv\r\n",
            "$20\r\nkey:000000000007vvvx\r\n",
            "$-1\r\n",
            "-ERR no\r\n",
            "$20\r\nkey:000000000007vvvv\r\n+OK\r\n",
        ] {
            assert!(checked(stream, &[7], 64).is_err(), "{stream}");
        }
    }
}
