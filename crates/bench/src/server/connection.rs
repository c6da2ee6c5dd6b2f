//! A connection of the load generator: what is to be sent, what is under way, what comes back.

use super::checker::{Checker, Pending};
use super::wire::{Wire, key};
use crate::subject::Error;
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

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
