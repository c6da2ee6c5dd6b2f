//! Operations of a port: messages out, buffers in, one-sided writes and reads.

use crate::endpoint::Remote;
use crate::port::Port;
use crate::slab::Job;
use crate::{Buffer, Conn, Error};

/// What the completion of a write says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The memory of this port is not needed any more. Nothing about when the peer sees the bytes.
    Sent,
    /// The target has them and has made them durable: its provider wrote their cache lines back to memory and
    /// fenced that. This covers the bytes of this write, and of no earlier one. It is worth something where
    /// the memory is a [`everdram_pm::Window`] of a pool; the pool's report says what that survives.
    Durable,
    /// As [`Completion::Durable`]; and the peer's port is told these bytes once it has made the others
    /// durable: [`crate::Event::Told`] (RDMA write with immediate data).
    DurableAndTold(u32),
}

impl Port {
    /// Posts one more receive buffer for a connection.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] for a connection that is gone; [`Error::Unsupported`] if the provider takes no more;
    /// [`Error::Call`] if it refuses, and then the connection is closed.
    pub fn post(&mut self, conn: Conn) -> Result<(), Error> {
        if !self.connections.contains_key(&conn) {
            return Err(Error::Closed(conn));
        }
        let bytes = self.slab.message_bytes();
        let index = self.slab.take(conn, Job::Receive, bytes)?;
        self.post_buffer(conn, index)
    }

    /// Posts the receive buffer of a slot, or frees the slot.
    fn post_buffer(&mut self, conn: Conn, index: u32) -> Result<(), Error> {
        match self.begin(conn, index) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.slab.release(index);
                Err(Error::Unsupported(
                    "the provider takes no more receive buffers; post fewer".to_owned(),
                ))
            }
            Err(error) => {
                self.slab.release(index);
                self.fail(conn);
                Err(error)
            }
        }
    }

    /// Sends a message that consists of parts, in their order. They are copied, and nothing blocks: what the
    /// provider has no room for waits in the port, and goes out in a later [`Port::wait`].
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] for a connection that is gone; [`Error::TooLong`]; [`Error::Call`] if the provider
    /// refuses, and then the connection is closed and its [`crate::Event::Closed`] follows.
    pub fn send(&mut self, conn: Conn, parts: &[&[u8]]) -> Result<(), Error> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        let limit = self.slab.message_bytes();
        if bytes > limit {
            return Err(Error::TooLong { bytes, limit });
        }
        self.submit(
            conn,
            Job::Send,
            bytes,
            parts,
            Remote { address: 0, key: 0 },
            0,
        )
    }

    /// Writes parts, in their order, into memory of the peer. They are copied, and nothing blocks, as with
    /// [`Port::send`]. [`crate::Event::Written`] with the token follows; without an error it says what `how`
    /// asked for. A message sent behind the write arrives behind its bytes.
    ///
    /// # Errors
    ///
    /// As for [`Port::send`]; [`Error::Unsupported`] for a durable write where [`Port::can_commit`] says no,
    /// or [`Port::can_tell`] for one that tells.
    /// After an error no event with the token follows.
    pub fn write(
        &mut self,
        conn: Conn,
        parts: &[&[u8]],
        address: u64,
        key: u64,
        token: u64,
        how: Completion,
    ) -> Result<(), Error> {
        let lacks = match how {
            Completion::Sent => None,
            _ if !self.can_commit => Some(
                "the provider has no durable writes; write, and ask the peer to make it durable",
            ),
            Completion::DurableAndTold(_) if !self.can_tell => {
                Some("the provider tells the peer nothing with a write; send a message behind it")
            }
            Completion::Durable | Completion::DurableAndTold(_) => None,
        };
        if let Some(text) = lacks {
            return Err(Error::Unsupported(text.to_owned()));
        }
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.submit(
            conn,
            Job::Write(how),
            bytes,
            parts,
            Remote { address, key },
            token,
        )
    }

    /// Whether this end can ask for durable writes. They also need a peer whose own port can: the flush is
    /// work of the peer's side.
    #[must_use]
    pub fn can_commit(&self) -> bool {
        self.can_commit
    }

    /// Whether a durable write can tell the peer four bytes: [`Completion::DurableAndTold`].
    #[must_use]
    pub fn can_tell(&self) -> bool {
        self.can_tell
    }

    /// Whether a write that has ended is with the peer as it was sent: adapters check what they carry (by 32
    /// bits for each packet, with InfiniBand and RoCE). TCP has a sum of 16 bits.
    #[must_use]
    pub fn checks_writes(&self) -> bool {
        self.provider == "verbs"
    }

    /// Reads from memory of the peer, into memory of this port. [`crate::Event::Read`] with the token and the
    /// bytes follows when they are here. The peer may be writing them: each byte is old or new.
    ///
    /// # Errors
    ///
    /// As for [`Port::write`].
    pub fn read(
        &mut self,
        conn: Conn,
        bytes: usize,
        address: u64,
        key: u64,
        token: u64,
    ) -> Result<(), Error> {
        self.submit(conn, Job::Read, bytes, &[], Remote { address, key }, token)
    }

    fn submit(
        &mut self,
        conn: Conn,
        job: Job,
        bytes: usize,
        parts: &[&[u8]],
        remote: Remote,
        token: u64,
    ) -> Result<(), Error> {
        let Some(connection) = self.connections.get(&conn) else {
            return Err(Error::Closed(conn));
        };
        let must_wait = !connection.is_open || !connection.waiting.is_empty();
        let index = self.slab.take(conn, job, bytes)?;
        self.slab.fill(index, parts);
        let slot = self.slab.slot_mut(index);
        slot.remote = remote;
        slot.token = token;
        if !must_wait {
            match self.begin(conn, index) {
                Ok(true) => return Ok(()),
                Ok(false) => self.stalled.push(conn),
                Err(error) => {
                    self.slab.release(index);
                    self.fail(conn);
                    return Err(error);
                }
            }
        }
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.waiting.push_back(index);
        }
        Ok(())
    }

    /// Hands the operation of a slot to the provider; false if that has no room.
    fn begin(&self, conn: Conn, index: u32) -> Result<bool, Error> {
        let Some(connection) = self.connections.get(&conn) else {
            return Err(Error::Closed(conn));
        };
        let endpoint = &connection.endpoint;
        let (slot, span, context) = (
            self.slab.slot(index),
            self.slab.span(index),
            self.slab.context(index),
        );
        match slot.job {
            // SAFETY: span and context are the slot's alone, which stays taken until the operation is
            // complete, or until the endpoint was closed and the queue was empty since.
            Job::Receive => unsafe { endpoint.receive(span, context) },
            // SAFETY: as above.
            Job::Send => unsafe { endpoint.send(span, context) },
            // SAFETY: as above.
            Job::Write(Completion::Sent) => unsafe { endpoint.write(span, slot.remote, context) },
            // SAFETY: as above.
            Job::Write(Completion::Durable) => unsafe {
                endpoint.write_durably(span, slot.remote, None, context)
            },
            // SAFETY: as above.
            Job::Write(Completion::DurableAndTold(told)) => unsafe {
                endpoint.write_durably(span, slot.remote, Some(told), context)
            },
            // SAFETY: as above.
            Job::Read => unsafe { endpoint.read(span, slot.remote, context) },
            Job::Free | Job::Held => unreachable!("slot {index} has no operation"),
        }
    }

    /// Posts what waits, connection by connection, as far as the provider has room.
    pub(crate) fn begin_waiting(&mut self) {
        for conn in std::mem::take(&mut self.stalled) {
            while let Some(index) = self.next_waiting(conn) {
                match self.begin(conn, index) {
                    Ok(true) => {
                        if let Some(connection) = self.connections.get_mut(&conn) {
                            connection.waiting.pop_front();
                        }
                    }
                    Ok(false) => {
                        self.stalled.push(conn);
                        break;
                    }
                    Err(_) => {
                        self.fail(conn);
                        break;
                    }
                }
            }
        }
    }

    fn next_waiting(&self, conn: Conn) -> Option<u32> {
        self.connections.get(&conn)?.waiting.front().copied()
    }

    /// A received message.
    pub fn message(&self, buffer: &Buffer) -> &[u8] {
        assert_eq!(
            self.slab.slot(buffer.0).job,
            Job::Held,
            "a buffer of another port"
        );
        self.slab.bytes(buffer.0)
    }

    /// Gives a received message back; `again` posts its buffer on the same connection once more, if that is
    /// open.
    ///
    /// # Errors
    ///
    /// As for [`Port::post`], but a connection that is gone is none.
    pub fn give_back(&mut self, buffer: Buffer, again: bool) -> Result<(), Error> {
        let index = buffer.0;
        let bytes = self.slab.message_bytes();
        let slot = self.slab.slot_mut(index);
        assert_eq!(slot.job, Job::Held, "a buffer of another port");
        let conn = slot.conn;
        if !again || !self.connections.contains_key(&conn) {
            self.slab.release(index);
            return Ok(());
        }
        slot.job = Job::Receive;
        slot.bytes = bytes;
        self.post_buffer(conn, index)
    }
}
