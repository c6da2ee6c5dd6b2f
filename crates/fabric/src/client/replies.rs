//! Replies: what each makes of its call, and what is asked for next.
//!
//! Every call ends once: with what the door says, or as unknown when the connection ends.

use super::pending::{Landed, Long, Pending, Stage};
use super::{Again, BUFFERS, Client, ClientError, Committing, Done, Outcome, Probed, Ticket, Way};
use crate::wire::{
    self, BY_CLIENT, BY_CLIENT_TOLD, Head, IN_PLACE, Kind, LENT, PIECES_MAX, Status,
    VALUE_BYTES_MAX,
};
use everdram::landing::{Grant, slot};

/// How far a reply has brought a call.
pub(super) enum Step {
    Ended(Result<Outcome, ClientError>),
    /// Another request of it is under way, or will be.
    Goes,
    /// A door says no such thing.
    Nonsense,
}

impl Client {
    pub(super) fn answer(&mut self, head: &Head, body: Vec<u8>) {
        let Some(Pending { ticket, stage }) = self.under_way.remove(&head.sequence) else {
            return self.end();
        };
        self.credits = usize::from(head.credits).clamp(1, BUFFERS - 1);
        if matches!(stage, Stage::Put(Way::ClientCentricImmediate)) {
            // The door has looked, so nobody waits for the end of the write any more.
            self.committing.remove(&ticket.0);
        }
        match self.come_to(ticket, stage, head, body) {
            Step::Ended(outcome) => self.done.push_back(Done { ticket, outcome }),
            Step::Goes => {}
            Step::Nonsense => {
                // Its call has an outcome, too.
                let stage = Stage::Part;
                self.under_way
                    .insert(head.sequence, Pending { ticket, stage });
                return self.end();
            }
        }
        let asked = self.ask_for_parts().and_then(|()| self.ask_again());
        if asked.is_err() {
            self.end();
        }
    }

    /// What a reply makes of a call.
    fn come_to(&mut self, ticket: Ticket, stage: Stage, head: &Head, body: Vec<u8>) -> Step {
        let probed = Probed {
            value_bytes: head.value_bytes,
            expires_at_ms: head.expires_at_ms,
        };
        let outcome = match (head.status, stage) {
            (Status::Ok, Stage::Hello) => {
                let Some((pool, acknowledgement)) = wire::read_hello(&body) else {
                    return Step::Nonsense;
                };
                (self.pool, self.acknowledgement) = (pool, acknowledgement);
                // Both ends must know what a durable write is.
                let can = [
                    (BY_CLIENT, self.link.can_commit()),
                    (BY_CLIENT_TOLD, self.link.can_tell()),
                    (IN_PLACE, true),
                    (LENT, true),
                ];
                let can = can.into_iter().filter(|(_, can)| *can);
                self.ways = head.grant & can.map(|(way, _)| way).sum::<u64>();
                Outcome::Absent
            }
            (Status::Ok, Stage::Put(way)) => Outcome::Stored(way),
            (Status::Ok, Stage::Delete) => Outcome::Removed,
            (Status::Ok, Stage::Probe) => Outcome::Probed(probed),
            (Status::Ok, Stage::Get(_)) if body.len() as u64 == head.value_bytes => {
                Outcome::Found(body, probed)
            }
            (Status::Ok, Stage::Get(get)) if head.grant == 0 && self.place_of(&get) != 0 => {
                return self.read_in_place(ticket, get, head, &body);
            }
            (Status::Ok, Stage::Get(_)) => {
                let is_sound = head.value_bytes <= VALUE_BYTES_MAX as u64
                    && (body.len() as u64) < head.value_bytes
                    && !body.is_empty()
                    && self.long.is_none();
                if !is_sound {
                    return Step::Nonsense;
                }
                self.long = Some(Long::begin(ticket, head.grant, body, probed));
                return Step::Goes;
            }
            (Status::Ok, Stage::Part) => return self.take_part(ticket, head, &body),
            (Status::Ok, stage @ Stage::Prepare { way, .. }) if way.is_by_client() => {
                let is_lent = body.len() >= 32 && self.ways & LENT != 0;
                let written = match is_lent {
                    true => self.write_lent(ticket, head, stage, &body),
                    false => self.write_durably(ticket, head, stage, &body),
                };
                return match written {
                    true => Step::Goes,
                    false => Step::Nonsense,
                };
            }
            (Status::Ok, Stage::Prepare { value, .. }) => {
                let written = self.write(ticket, head, &value, &body);
                self.buffers.keep(value);
                return match written {
                    true => Step::Goes,
                    false => Step::Nonsense,
                };
            }
            (Status::Absent, Stage::Get(_) | Stage::Delete | Stage::Probe) => Outcome::Absent,
            (Status::Busy, stage @ (Stage::Get(_) | Stage::Prepare { .. }))
                if self.is_held_up(&stage) =>
            {
                self.again.push_back(Again { ticket, stage });
                return Step::Goes;
            }
            (Status::Absent, _) => return Step::Nonsense,
            (status, stage) => {
                if matches!(stage, Stage::Part) {
                    self.long = None;
                }
                return Step::Ended(Err(ClientError::Refused {
                    status,
                    text: String::from_utf8_lossy(&body).into_owned(),
                }));
            }
        };
        Step::Ended(Ok(outcome))
    }

    /// Whether others are under way for which a call of this kind has to wait.
    fn is_held_up(&self, stage: &Stage) -> bool {
        let mut others = self.under_way.values();
        match stage {
            Stage::Get(_) => self.long.is_some() || others.any(|other| other.stage.reads_value()),
            Stage::Landed(_) => false,
            _ => !self.committing.is_empty() || others.any(|other| other.stage.has_grant()),
        }
    }

    /// The data phase of RDMP-SA: the value, and behind it the request to make it durable. `false`: the door
    /// gave no memory.
    fn write(&mut self, ticket: Ticket, head: &Head, value: &[u8], body: &[u8]) -> bool {
        let is_lent = body.len() != 8;
        let pieces = match is_lent {
            false => wire::first_word(body).map(|key| vec![((head.place, key), value)]),
            true => pieces_of(value, body).filter(|_| self.ways & LENT != 0),
        };
        let Some(pieces) = pieces else {
            return false;
        };
        for (target, piece) in &pieces {
            if self.link.write(self.conn, piece, *target).is_err() {
                return false;
            }
        }
        let (sum, checks) = match is_lent {
            false => (wire::slot_sum(head.sum, value), Vec::new()),
            true => (0, checks_of(head.sum, &pieces)),
        };
        let done = Head {
            grant: head.grant,
            sum,
            ..Head::request(Kind::Done, 0)
        };
        let stage = Stage::Put(Way::ServerAssisted);
        self.send_now(done, ticket, stage, &[], &checks).is_ok()
    }

    /// The data phase of RDMP-CC: the whole slot, durably. `false`: the door gave none.
    fn write_durably(&mut self, ticket: Ticket, head: &Head, stage: Stage, body: &[u8]) -> bool {
        let (
            Stage::Prepare {
                way,
                key,
                value,
                expires_at_ms,
            },
            Some(key_of_area),
            Some(generation),
        ) = (stage, wire::first_word(body), wire::word(body, 1))
        else {
            return false;
        };
        let grant = Grant {
            number: 0,
            offset: 0,
            bytes: slot::bytes(key.len(), value.len() as u64),
            generation,
            nonce: head.sum,
        };
        let mut bytes = self.buffers.take();
        slot::encode(&mut bytes, &grant, &key, &value, expires_at_ms);
        self.buffers.keep(value);
        let target = (head.place, key_of_area);
        let posted = if way == Way::ClientCentricImmediate {
            let Some(told) = wire::word(body, 2).and_then(|word| u32::try_from(word).ok()) else {
                return false;
            };
            // The reply to what the write tells has the sequence of the request for the grant.
            let stage = Stage::Put(way);
            self.under_way
                .insert(head.sequence, Pending { ticket, stage });
            self.link
                .write_and_tell(self.conn, &bytes, target, ticket.0, told)
        } else {
            self.link.write_durably(self.conn, &bytes, target, ticket.0)
        };
        self.buffers.keep(bytes);
        let committing = Committing {
            ticket,
            pieces: 1,
            landed: Landed {
                key,
                way,
                grant: head.grant,
                sum: generation,
                place: BY_CLIENT,
                checks: Vec::new(),
            },
        };
        self.committing.insert(ticket.0, committing);
        posted.is_ok()
    }

    /// As [`Client::write_durably`], into blocks of the store: the value itself, in pieces. `false`: the door
    /// gave none.
    fn write_lent(&mut self, ticket: Ticket, head: &Head, stage: Stage, body: &[u8]) -> bool {
        let Stage::Prepare {
            way, key, value, ..
        } = stage
        else {
            return false;
        };
        let Some(pieces) = pieces_of(&value, body) else {
            return false;
        };
        let committing = Committing {
            ticket,
            pieces: pieces.len(),
            landed: Landed {
                key,
                way,
                grant: head.grant,
                sum: 0,
                place: 0,
                checks: checks_of(head.sum, &pieces),
            },
        };
        self.committing.insert(ticket.0, committing);
        let are_posted = pieces.into_iter().all(|(target, piece)| {
            let posted = self.link.write_durably(self.conn, piece, target, ticket.0);
            posted.is_ok()
        });
        self.buffers.keep(value);
        are_posted
    }

    /// A slot, or a piece of a value, is durable over there.
    pub(super) fn committed(&mut self, token: u64) {
        let Some(committing) = self.committing.get_mut(&token) else {
            return;
        };
        committing.pieces = committing.pieces.saturating_sub(1);
        if committing.pieces > 0 {
            return;
        }
        let Some(Committing { ticket, landed, .. }) = self.committing.remove(&token) else {
            return;
        };
        let way = landed.way;
        if way == Way::ClientCentricImmediate {
            // Durable; the reply says that the door knows of it.
        } else if way == Way::ClientCentricAsked {
            let stage = Stage::Landed(landed);
            self.again.push_front(Again { ticket, stage });
        } else {
            let outcome = Ok(Outcome::Stored(way));
            self.done.push_back(Done { ticket, outcome });
        }
        if self.ask_again().is_err() {
            self.end();
        }
    }

    fn ask_for_parts(&mut self) -> Result<(), ClientError> {
        while self.under_way.len() < self.credits
            && let Some((ticket, grant, place)) = self.long.as_mut().and_then(Long::next_part)
        {
            let part = Head {
                grant,
                place,
                ..Head::request(Kind::Part, 0)
            };
            self.send_now(part, ticket, Stage::Part, &[], &[])?;
        }
        Ok(())
    }

    fn take_part(&mut self, ticket: Ticket, head: &Head, body: &[u8]) -> Step {
        let is_placed = self
            .long
            .as_mut()
            .is_some_and(|long| long.ticket == ticket && long.place(head.place, body));
        if !is_placed {
            return Step::Nonsense;
        }
        match self.long.take_if(|long| long.is_whole()) {
            Some(Long { value, probed, .. }) => Step::Ended(Ok(Outcome::Found(value, probed))),
            None => Step::Goes,
        }
    }

    /// Asks again for what the door could not take, in order, as far as nothing holds it up.
    pub(super) fn ask_again(&mut self) -> Result<(), ClientError> {
        while self.under_way.len() < self.credits
            && let Some(next) = self.again.front()
            && !self.is_held_up(&next.stage)
            && let Some(Again { ticket, stage }) = self.again.pop_front()
        {
            if let Stage::Landed(landed) = stage {
                let done = Head {
                    grant: landed.grant,
                    sum: landed.sum,
                    place: landed.place,
                    ..Head::request(Kind::Done, 0)
                };
                let stage = Stage::Put(landed.way);
                self.send_now(done, ticket, stage, &[], &landed.checks)?;
                continue;
            }
            let (kind, key, value_bytes, expires_at_ms, place) = match &stage {
                Stage::Prepare {
                    way,
                    key,
                    value,
                    expires_at_ms,
                } => (
                    Kind::Prepare,
                    key.clone(),
                    value.len() as u64,
                    *expires_at_ms,
                    way.asked(self.ways),
                ),
                Stage::Get(get) => (Kind::Get, get.key.clone(), 0, 0, self.place_of(get)),
                _ => continue,
            };
            let head = Head {
                value_bytes,
                expires_at_ms,
                place,
                ..Head::request(kind, 0)
            };
            self.send_now(head, ticket, stage, &key, &[])?;
        }
        Ok(())
    }
}

/// Address and key of a piece of a value, and its bytes.
type Targeted<'v> = ((u64, u64), &'v [u8]);

/// What the door is told of pieces that are there.
fn checks_of(nonce: u64, pieces: &[Targeted<'_>]) -> Vec<u8> {
    wire::checks_of(nonce, pieces.iter().map(|&(_, piece)| piece))
}

/// Where the pieces of a value are to be written, and their bytes. `None`: a door says no such thing.
fn pieces_of<'v>(value: &'v [u8], body: &[u8]) -> Option<Vec<Targeted<'v>>> {
    let told: Vec<wire::Piece> = wire::Piece::all_of(body).collect();
    if body.len() != told.len() * 32 || !(1..=PIECES_MAX).contains(&told.len()) {
        return None;
    }
    let (mut pieces, mut rest) = (Vec::new(), value);
    for piece in told {
        let bytes = usize::try_from(piece.bytes).ok()?;
        let (first, behind) = rest.split_at_checked(bytes)?;
        if first.is_empty() {
            return None;
        }
        pieces.push(((piece.address, piece.key), first));
        rest = behind;
    }
    rest.is_empty().then_some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forged lengths of pieces write nothing: a client follows a door only if all of its value has a place.
    #[test]
    fn pieces_that_are_not_all_of_a_value_are_nonsense() {
        let value: Vec<u8> = (0..100).collect();
        let body = |lengths: &[u64]| -> Vec<u8> {
            let piece = |(at, &bytes): (usize, &u64)| wire::Piece {
                address: at as u64,
                key: 5,
                bytes,
                check: 0,
            };
            let pieces = lengths.iter().enumerate().map(piece);
            pieces.flat_map(wire::Piece::to_bytes).collect()
        };
        let found = pieces_of(&value, &body(&[60, 39, 1])).unwrap();
        let expected = [&value[..60], &value[60..99], &value[99..]];
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(*found, ((at as u64, 5), expected));
        }
        let forged: [&[u64]; 8] = [
            &[],
            &[99],
            &[101],
            &[60, 41],
            &[60, 0, 40],
            &[u64::MAX, 101],
            &[100, 1],
            &[1; PIECES_MAX + 1],
        ];
        for lengths in forged {
            assert_eq!(pieces_of(&value, &body(lengths)), None, "{lengths:?}");
        }
        for cut in [1, 31, 33, 95] {
            assert_eq!(pieces_of(&value, &body(&[60, 39, 1])[..cut]), None, "{cut}");
        }
    }
}
