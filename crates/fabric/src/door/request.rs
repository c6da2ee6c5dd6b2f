//! Requests: what each kind does with the session, and its reply.
//!
//! Writes are only submitted here; the loop commits once for all that arrived together. A reply names what it
//! depends on beside that commit.

use super::connection::{Connection, Long};
use super::counters::Counters;
use super::grants::{Grant, Room};
use super::in_place::Reads;
use super::lends::{Lends, Lent};
use super::memory::{Kind as Wanting, Memory};
use super::slots::{Giver, Told, Wanted};
use crate::link::{Conn, Link, LinkError};
use crate::wire::{
    BY_CLIENT, BY_CLIENT_TOLD, Head, IN_PLACE, KEY_BYTES_MAX, Kind, LENT, Status, VALUE_BYTES_MAX,
    slot_sum,
};
use everdram::engine::{EngineSession, Found, Placed, Said};
use everdram::password::Password;
use everdram::{Error, Ticket};
use std::ops::Range;
use std::sync::Arc;

/// Says where a value or key may go that is too long for this door.
const ELSEWHERE: &str = "is longer than the fabric door takes; use the Redis door";
/// Says why there is no room for a value.
const ALL_GIVEN: &str = "this connection has all the memory that it may have, or all connections together have all \
                         of the door's (`--fabric-memory`); ask again later";
const ALL_SLOTS_GIVEN: &str =
    "this connection has all the slots that it may have; wait for its puts";

/// A reply, until it may leave.
pub(super) struct Reply {
    pub(super) head: Head,
    /// Its place in the bodies of this wake-up.
    pub(super) body: Range<usize>,
    /// The state that it shows, beside what the next commit covers.
    pub(super) depends: Ticket,
    /// Whether it speaks of a write.
    pub(super) is_on_commit: bool,
    /// The slot of its connection that it grants, once that is durable.
    pub(super) slot: Option<usize>,
}

/// What requests need of their loop.
pub(super) struct Tools<'a> {
    pub(super) session: &'a mut dyn EngineSession,
    /// For the kinds of request that need it.
    pub(super) link: Option<&'a mut dyn Link>,
    /// The longest body of a message.
    pub(super) body_bytes: usize,
    pub(super) conn: Conn,
    /// Whether this wake-up has a write that is not committed: reads may show it.
    pub(super) is_uncommitted: bool,
    /// Bodies of the replies of this wake-up.
    pub(super) bodies: &'a mut Vec<u8>,
    /// For values that are copied out of exposed memory.
    pub(super) landed: &'a mut Vec<u8>,
    /// For slots of the landing area, if there is one that clients may write.
    pub(super) giver: Option<&'a mut Giver>,
    /// For values that clients read in place.
    pub(super) reads: Option<&'a mut Reads>,
    /// What all connections share.
    pub(super) memory: &'a Arc<Memory>,
    /// For values that clients write where they stay.
    pub(super) lends: Option<&'a mut Lends>,
    /// The bits of the ways that the door offers beside the usual ones.
    pub(super) ways: u64,
    pub(super) password: &'a Password,
    /// What a Hello is answered.
    pub(super) hello: &'a [u8],
    pub(super) counters: &'a Counters,
}

/// A connection that is to be closed: what it sent cannot be answered.
pub(super) struct Expelled;

impl Tools<'_> {
    /// Carries out a request.
    pub(super) fn carry_out(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        key: &[u8],
        body: &[u8],
    ) -> Result<Reply, Expelled> {
        if connection.is_denied {
            return Err(Expelled);
        }
        if head.kind == Kind::Hello {
            return Ok(self.hello(connection, head, body));
        }
        if !connection.is_known {
            return Err(Expelled);
        }
        let is_about_key = !matches!(head.kind, Kind::Done | Kind::Part);
        if is_about_key && (key.is_empty() || key.len() > KEY_BYTES_MAX) {
            return Err(Expelled);
        }
        let outcome = match head.kind {
            Kind::Hello => return Err(Expelled),
            Kind::Get => self.get(connection, head, key),
            Kind::Probe => self.probe(head, key),
            Kind::Put => self.put(head, key, body),
            Kind::Delete => self.delete(head, key),
            Kind::Prepare => self.prepare_any(connection, head, key),
            Kind::Done if head.place == BY_CLIENT => self.slot_done(connection, head),
            Kind::Done => self.done(connection, head, body),
            Kind::Part => Ok(self.part(connection, head)),
        };
        Ok(outcome.unwrap_or_else(|error| self.failed(head, &error)))
    }

    fn reply(&mut self, head: Head, body: &[u8]) -> Reply {
        let body = body.get(..self.body_bytes).unwrap_or(body);
        let begin = self.bodies.len();
        self.bodies.extend_from_slice(body);
        Reply {
            head,
            body: begin..self.bodies.len(),
            depends: Ticket::NONE,
            is_on_commit: false,
            slot: None,
        }
    }

    fn refuse(&mut self, head: &Head, status: Status, text: &str) -> Reply {
        self.reply(head.reply(status), text.as_bytes())
    }

    /// The reply to a request that the store refused.
    fn failed(&mut self, head: &Head, error: &Error) -> Reply {
        let status = status_of(error);
        // What was found at the error may not be durable yet; a refusal shows nothing of it.
        self.refuse(head, status, &error.to_string())
    }

    fn hello(&mut self, connection: &mut Connection, head: &Head, body: &[u8]) -> Reply {
        if !self.password.accepts(body) {
            connection.is_denied = true;
            return self.refuse(head, Status::Denied, "wrong password");
        }
        connection.is_known = true;
        let answer = Head {
            value_bytes: VALUE_BYTES_MAX as u64,
            place: self.body_bytes as u64,
            grant: self.ways,
            ..head.reply(Status::Ok)
        };
        let said = self.hello;
        self.reply(answer, said)
    }

    fn get(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        key: &[u8],
    ) -> Result<Reply, Error> {
        let begin = self.bodies.len();
        let (found, placed) = self.find(connection, head, key)?;
        let Some(found) = found else {
            let depends = self.session.last_read();
            let absent = self.reply(head.reply(Status::Absent), &[]);
            return Ok(Reply {
                depends,
                is_on_commit: self.is_uncommitted,
                ..absent
            });
        };
        let length = match placed {
            Some(placed) => placed.bytes as usize,
            None => self.bodies.len() - begin,
        };
        let mut answer = Head {
            value_bytes: length as u64,
            expires_at_ms: found.expires_at_ms,
            ..head.reply(Status::Ok)
        };
        if length > VALUE_BYTES_MAX {
            self.bodies.truncate(begin);
            let text = format!("the value of {length} bytes {ELSEWHERE}");
            return Ok(self.refuse(head, Status::Refused, &text));
        }
        if let (Some(placed), Some(reads)) = (placed, &self.reads) {
            self.counters.placed.add(1);
            answer.sum = placed.seed;
            answer.place = reads.lease_ms();
            return Ok(Reply {
                head: answer,
                body: begin..self.bodies.len(),
                depends: found.ticket,
                is_on_commit: self.is_uncommitted,
                slot: None,
            });
        }
        if length > self.body_bytes && connection.long.is_some() {
            self.bodies.truncate(begin);
            return Ok(self.refuse(head, Status::Busy, "one long value after the other"));
        }
        if length > self.body_bytes {
            let Some(share) = self.memory.share(length, false) else {
                self.memory.was_wanting(Wanting::Memory);
                self.bodies.truncate(begin);
                return Ok(self.refuse(head, Status::Busy, ALL_GIVEN));
            };
            connection.long_last += 1;
            answer.grant = connection.long_last;
            connection.long = Some(Long {
                number: connection.long_last,
                value: self.bodies.get(begin..).unwrap_or_default().to_vec(),
                is_shown: false,
                _share: share,
            });
            self.bodies.truncate(begin + self.body_bytes);
        }
        Ok(Reply {
            head: answer,
            body: begin..self.bodies.len(),
            depends: found.ticket,
            is_on_commit: self.is_uncommitted,
            slot: None,
        })
    }

    /// Appends the value of a key to the bodies; or the pieces of a long one, if its client reads in place.
    fn find(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        key: &[u8],
    ) -> Result<(Option<Found>, Option<Placed>), Error> {
        if head.place == IN_PLACE
            && let (Some(reads), Some(link)) = (self.reads.as_deref_mut(), &mut self.link)
        {
            let (how, mut pieces) = (reads.placing(), std::mem::take(&mut reads.pieces));
            pieces.clear();
            let found = self
                .session
                .get_or_place(key, &how, self.bodies, &mut pieces);
            reads.pieces = pieces;
            match found? {
                None => return Ok((None, None)),
                Some((found, None)) => return Ok((Some(found), None)),
                Some((found, Some(placed))) => {
                    let readable = &mut connection.readable;
                    if reads.tell(readable, &mut **link, self.conn, self.bodies) {
                        return Ok((Some(found), Some(placed)));
                    }
                }
            }
        }
        Ok((self.session.get(key, self.bodies)?, None))
    }

    /// A part of a value whose first part has left.
    fn part(&mut self, connection: &mut Connection, head: &Head) -> Reply {
        let long = connection.long.as_ref();
        let long = long.filter(|long| long.number == head.grant && long.is_shown);
        let from = usize::try_from(head.place).unwrap_or(usize::MAX);
        let rest = long.and_then(|long| long.value.get(from..));
        let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
            let text = "no such part: ask for one long value after the other";
            return self.refuse(head, Status::Refused, text);
        };
        let answer = Head {
            place: head.place,
            ..head.reply(Status::Ok)
        };
        let bytes = rest.get(..self.body_bytes).unwrap_or(rest);
        let begin = self.bodies.len();
        self.bodies.extend_from_slice(bytes);
        if rest.len() == bytes.len() {
            connection.long = None;
        }
        Reply {
            head: answer,
            body: begin..self.bodies.len(),
            depends: Ticket::NONE,
            is_on_commit: false,
            slot: None,
        }
    }

    fn probe(&mut self, head: &Head, key: &[u8]) -> Result<Reply, Error> {
        let found = self.session.probe(key)?;
        let depends = self.session.last_read();
        let answer = match found {
            None => head.reply(Status::Absent),
            Some((found, length)) => Head {
                value_bytes: length,
                expires_at_ms: found.expires_at_ms,
                ..head.reply(Status::Ok)
            },
        };
        let reply = self.reply(answer, &[]);
        Ok(Reply {
            depends,
            is_on_commit: self.is_uncommitted,
            ..reply
        })
    }

    fn put(&mut self, head: &Head, key: &[u8], value: &[u8]) -> Result<Reply, Error> {
        self.session.put(key, value, head.expires_at_ms)?;
        let reply = self.reply(head.reply(Status::Ok), &[]);
        Ok(Reply {
            is_on_commit: true,
            ..reply
        })
    }

    fn delete(&mut self, head: &Head, key: &[u8]) -> Result<Reply, Error> {
        let was_there = self.session.delete(key)?;
        let depends = self.session.last_read();
        let status = if was_there {
            Status::Ok
        } else {
            Status::Absent
        };
        let reply = self.reply(head.reply(status), &[]);
        Ok(Reply {
            depends,
            is_on_commit: true,
            ..reply
        })
    }

    /// Gives room for a value, of the kind that the client asks for.
    fn prepare_any(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        key: &[u8],
    ) -> Result<Reply, Error> {
        let mut head = *head;
        if self.lends.is_some() && head.place & LENT != 0 {
            head.place &= !LENT;
            if let Some(reply) = self.prepare_lent(connection, &head, key) {
                return Ok(reply);
            }
        }
        match head.place {
            BY_CLIENT | BY_CLIENT_TOLD => self.prepare_slot(connection, &head, key),
            _ => Ok(self.prepare(connection, &head, key)),
        }
    }

    /// Lends blocks of the store for a long value; `None`: it goes another way. In the pool nothing changes
    /// (R1).
    fn prepare_lent(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        key: &[u8],
    ) -> Option<Reply> {
        let is_durable = head.place == BY_CLIENT && self.ways & BY_CLIENT != 0;
        let may_be_lent = (head.place == 0 || is_durable)
            && head.value_bytes <= VALUE_BYTES_MAX as u64
            && connection.grants.may_borrow(head.value_bytes);
        if !may_be_lent {
            return None;
        }
        let (lends, link) = (self.lends.as_deref_mut()?, self.link.as_deref_mut()?);
        let lent = lends.lend(link, self.conn, (key, head.value_bytes), is_durable)?;
        connection.grants.borrow(head.value_bytes);
        let mut pieces = Vec::new();
        lent.tell(&mut pieces);
        let nonce = rand::random();
        let number = connection.grants.give(Grant {
            room: Room::Lent(lent),
            nonce,
            key: key.to_vec(),
            value_bytes: head.value_bytes as usize,
            expires_at_ms: head.expires_at_ms,
        });
        let answer = Head {
            grant: number,
            sum: nonce,
            value_bytes: head.value_bytes,
            ..head.reply(Status::Ok)
        };
        Some(self.reply(answer, &pieces))
    }

    /// Gives room for a value. The store is not touched, so a client that dies now has changed nothing (R1).
    fn prepare(&mut self, connection: &mut Connection, head: &Head, key: &[u8]) -> Reply {
        let value_bytes = usize::try_from(head.value_bytes).unwrap_or(usize::MAX);
        if value_bytes > VALUE_BYTES_MAX {
            let text = format!("the value of {value_bytes} bytes {ELSEWHERE}");
            return self.refuse(head, Status::Refused, &text);
        }
        let room = match self.link.as_deref_mut() {
            Some(link) => connection
                .grants
                .room(link, self.conn, self.memory, value_bytes),
            None => Err(LinkError::Foreign),
        };
        let place = match room {
            Ok(Some(place)) => place,
            Ok(None) => return self.refuse(head, Status::Busy, ALL_GIVEN),
            Err(error) => return self.refuse(head, Status::Refused, &error.to_string()),
        };
        let (address, key_of_area) = connection.grants.target(place).unwrap_or_default();
        let nonce = rand::random();
        let number = connection.grants.give(Grant {
            room: Room::Own(place),
            nonce,
            key: key.to_vec(),
            value_bytes,
            expires_at_ms: head.expires_at_ms,
        });
        let answer = Head {
            grant: number,
            sum: nonce,
            place: address,
            value_bytes: head.value_bytes,
            ..head.reply(Status::Ok)
        };
        self.reply(answer, &key_of_area.to_le_bytes())
    }

    /// Gives a slot of the landing area. The reply leaves when its grant is durable (R9).
    fn prepare_slot(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        key: &[u8],
    ) -> Result<Reply, Error> {
        if head.value_bytes > VALUE_BYTES_MAX as u64 {
            let text = format!("the value of {} bytes {ELSEWHERE}", head.value_bytes);
            return Ok(self.refuse(head, Status::Refused, &text));
        }
        if self.ways & head.place == 0 {
            let text = match self.giver {
                None => {
                    "this door has no landing area that clients can write durably, or does not trust them \
                     (`--fabric-trust-peers`)"
                }
                Some(_) => "the fabric of this door tells it nothing with a durable write",
            };
            return Ok(self.refuse(head, Status::Refused, text));
        }
        self.commit_before_arrivals()?;
        let Some(giver) = self.giver.as_deref_mut() else {
            return Err(Error::Halted("the landing area is gone".into()));
        };
        let wanted = Wanted {
            key,
            value_bytes: head.value_bytes,
            expires_at_ms: head.expires_at_ms,
            tells: (head.place == BY_CLIENT_TOLD).then_some(head.sequence),
        };
        let memory = self.memory;
        let prepared = connection.slots.prepare(giver, self.conn, wanted, || {
            memory.was_wanting(Wanting::Slots)
        });
        let Some(slot) = prepared? else {
            return Ok(self.refuse(head, Status::Busy, ALL_SLOTS_GIVEN));
        };
        let answer = Head {
            value_bytes: head.value_bytes,
            ..head.reply(Status::Ok)
        };
        let reply = self.reply(answer, &[]);
        Ok(Reply {
            slot: Some(slot),
            ..reply
        })
    }

    /// Applies what the client says that it has made durable (RDMP-CC-SA).
    fn slot_done(&mut self, connection: &mut Connection, head: &Head) -> Result<Reply, Error> {
        let number = u32::try_from(head.grant).unwrap_or(u32::MAX);
        let told = connection.slots.find(number, head.sum);
        if matches!(told, Told::Applied) {
            return Ok(self.reply(head.reply(Status::Ok), &[]));
        }
        if matches!(told, Told::Unknown) {
            let text = "no such grant: each is for one put of the connection that asked for it";
            return Ok(self.refuse(head, Status::Refused, text));
        }
        self.commit_before_arrivals()?;
        let has_arrived = match self.giver.as_deref_mut() {
            Some(giver) => giver.landing.arrived(number)?,
            None => false,
        };
        if !has_arrived {
            let text = "what was written is not what the client sums up to; write it again";
            return Ok(self.refuse(head, Status::Torn, text));
        }
        self.counters.written.add(1);
        Ok(self.reply(head.reply(Status::Ok), &[]))
    }

    /// Whoever applies arrivals waits for keys that this session may hold until it commits.
    fn commit_before_arrivals(&mut self) -> Result<(), Error> {
        match self.is_uncommitted {
            true => self.session.commit().map(drop),
            false => Ok(()),
        }
    }

    /// Looks at what was written under a grant, in a copy that nobody changes any more, and puts it.
    fn done(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        body: &[u8],
    ) -> Result<Reply, Error> {
        let Some(grant) = connection.grants.take(head.grant) else {
            let text = "no such grant: each is for one put of the connection that asked for it";
            return Ok(self.refuse(head, Status::Refused, text));
        };
        let place = match grant.room {
            Room::Own(place) => place,
            Room::Lent(lent) => {
                let is_believed = self.link.as_deref().is_some_and(Link::checks_writes);
                let said = lent.said(grant.nonce, body, is_believed);
                let (value_bytes, expires) = (grant.value_bytes as u64, grant.expires_at_ms);
                return self.adopt(
                    connection,
                    head,
                    (lent, value_bytes, &said),
                    (&grant.key, expires),
                );
            }
        };
        // All of it is copied over.
        self.landed.resize(grant.value_bytes, 0);
        let copied = match &self.link {
            Some(link) => connection.grants.read(&**link, place, self.landed),
            None => Err(LinkError::Foreign),
        };
        if let Err(error) = copied {
            return Ok(self.refuse(head, Status::Failed, &error.to_string()));
        }
        if slot_sum(grant.nonce, self.landed) != head.sum {
            let text = "what was written is not what the client sums up to; write it again";
            return Ok(self.refuse(head, Status::Torn, text));
        }
        self.counters.written.add(1);
        self.session
            .put(&grant.key, self.landed, grant.expires_at_ms)?;
        let reply = self.reply(head.reply(Status::Ok), &[]);
        Ok(Reply {
            is_on_commit: true,
            ..reply
        })
    }
}

impl Tools<'_> {
    /// Puts what was written into a loan, where it lies. Before anybody looks there, its client can no longer
    /// write.
    fn adopt(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        (lent, value_bytes, said): (Lent, u64, &Said),
        (key, expires_at_ms): (&[u8], u64),
    ) -> Result<Reply, Error> {
        let Some(link) = self.link.as_deref_mut() else {
            return Err(Error::Halted("a loan without a link".into()));
        };
        let mut loan = lent.revoke(link);
        let put = self.session.put_lent(key, &mut loan, said, expires_at_ms);
        connection.grants.end_loan(value_bytes, loan);
        if !put? {
            let text = "what was written is not what the client sums up to; write it again";
            return Ok(self.refuse(head, Status::Torn, text));
        }
        self.counters.written.add(1);
        self.counters.adopted.add(1);
        let reply = self.reply(head.reply(Status::Ok), &[]);
        Ok(Reply {
            is_on_commit: true,
            ..reply
        })
    }
}

/// How an error of the store is told.
pub(super) fn status_of(error: &Error) -> Status {
    match error {
        Error::KeyLength(_) | Error::ValueLength(_) => Status::Refused,
        Error::NoSpace(_) => Status::Full,
        Error::Loading => Status::Loading,
        _ => Status::Failed,
    }
}
