//! Long values that the client reads where they lie in the memory of the server. (RDMP-KV section III-A, the
//! two-phase GET.)
//!
//! What the server says is true for the time of a lease. Whoever is late reads what was written there since:
//! so each piece has a check, and the time is looked at when all pieces are here. A value that fails is asked
//! for again, and after [`TRIES_MAX`] times part by part.

use super::pending::{Get, Stage};
use super::replies::Step;
use super::{Again, Client, Outcome, Probed, Ticket};
use crate::wire::{self, Head, PIECES_MAX, VALUE_BYTES_MAX};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Times that a value is read in place before it is asked for part by part.
pub(super) const TRIES_MAX: u32 = 3;

/// A value that is being read.
pub(super) struct Reading {
    get: Get,
    lease: Duration,
    probed: Probed,
    seed: u64,
    pieces: Vec<wire::Piece>,
    /// Where each lies in the value.
    places: Vec<Range<usize>>,
    value: Vec<u8>,
    /// Pieces that are not here.
    missing: usize,
    /// One was not what it was said to be.
    is_spoilt: bool,
}

impl Reading {
    /// What the reply to a get names; `None`: a door says no such thing.
    pub(super) fn of(get: Get, head: &Head, body: &[u8]) -> Option<Reading> {
        let pieces: Vec<wire::Piece> = wire::Piece::all_of(body).collect();
        let is_sound = head.value_bytes <= VALUE_BYTES_MAX as u64
            && body.len() == pieces.len() * 32
            && (1..=PIECES_MAX).contains(&pieces.len());
        if !is_sound {
            return None;
        }
        let (mut places, mut end) = (Vec::new(), 0_u64);
        for piece in &pieces {
            let from = end;
            end = end.checked_add(piece.bytes)?;
            if piece.bytes == 0 || end > head.value_bytes {
                return None;
            }
            places.push(from as usize..end as usize);
        }
        (end == head.value_bytes).then(|| Reading {
            get,
            lease: Duration::from_millis(head.place),
            probed: Probed {
                value_bytes: head.value_bytes,
                expires_at_ms: head.expires_at_ms,
            },
            seed: head.sum,
            missing: pieces.len(),
            value: vec![0; end as usize],
            pieces,
            places,
            is_spoilt: false,
        })
    }

    pub(super) fn pieces(&self) -> &[wire::Piece] {
        &self.pieces
    }

    /// Takes the bytes of a piece.
    pub(super) fn take(&mut self, index: usize, bytes: &[u8]) {
        self.missing = self.missing.saturating_sub(1);
        let piece = self.pieces.get(index);
        let place = self.places.get(index).cloned();
        let is_right = piece.is_some_and(|piece| piece.is_of(bytes, self.seed));
        match place.and_then(|place| self.value.get_mut(place)) {
            Some(place) if is_right => place.copy_from_slice(bytes),
            _ => self.is_spoilt = true,
        }
    }

    fn is_over(&self) -> bool {
        self.missing == 0
    }

    /// The value, if it is one; otherwise the call, to be asked again.
    pub(super) fn end(self, now: Instant) -> Result<(Vec<u8>, Probed), Get> {
        let is_late = now.saturating_duration_since(self.get.begun) >= self.lease;
        match self.is_spoilt || is_late {
            false => Ok((self.value, self.probed)),
            true => Err(Get {
                tries: self.get.tries + 1,
                ..self.get
            }),
        }
    }
}

impl Client {
    /// The data phase of a get: reads all pieces.
    pub(super) fn read_in_place(
        &mut self,
        ticket: Ticket,
        get: Get,
        head: &Head,
        body: &[u8],
    ) -> Step {
        let Some(reading) = Reading::of(get, head, body) else {
            return Step::Nonsense;
        };
        for (index, piece) in reading.pieces().iter().enumerate() {
            self.last_read += 1;
            let (token, source) = (self.last_read, (piece.address, piece.key));
            // Pieces are no longer than a value, which fits.
            let posted = self
                .link
                .read(self.conn, piece.bytes as usize, source, token);
            if posted.is_err() {
                return Step::Nonsense;
            }
            self.reads.insert(token, (ticket, index));
        }
        self.reading.insert(ticket, reading);
        Step::Goes
    }

    /// Bytes of the server are here.
    pub(super) fn take_in_place(&mut self, token: u64, bytes: &[u8]) {
        let Some((ticket, index)) = self.reads.remove(&token) else {
            return;
        };
        let Some(reading) = self.reading.get_mut(&ticket) else {
            return;
        };
        reading.take(index, bytes);
        if !reading.is_over() {
            return;
        }
        let Some(reading) = self.reading.remove(&ticket) else {
            return;
        };
        match reading.end(Instant::now()) {
            Ok((value, probed)) => {
                let outcome = Ok(Outcome::Found(value, probed));
                self.done.push_back(super::Done { ticket, outcome });
            }
            Err(get) => {
                let stage = Stage::Get(get);
                self.again.push_back(Again { ticket, stage });
                if self.ask_again().is_err() {
                    self.end();
                }
            }
        }
    }

    /// What a get says of where its value may be read.
    pub(super) fn place_of(&self, get: &Get) -> u64 {
        match self.reads_in_place && get.tries < TRIES_MAX {
            true => self.ways & wire::IN_PLACE,
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Kind, slot_sum};

    const SEED: u64 = 7;

    /// A reply about a value of three pieces, and the pieces' bytes.
    fn reply() -> (Head, Vec<u8>, [Vec<u8>; 3]) {
        let parts = [vec![1; 24_000], vec![2; 24_000], vec![3; 100]];
        let mut body = Vec::new();
        for part in &parts {
            let piece = wire::Piece {
                address: 64,
                key: 5,
                bytes: part.len() as u64,
                check: slot_sum(SEED, part),
            };
            body.extend_from_slice(&piece.to_bytes());
        }
        let head = Head {
            value_bytes: 48_100,
            sum: SEED,
            place: 1000,
            ..Head::request(Kind::Get, 1)
        };
        (head, body, parts)
    }

    fn get(begun: Instant) -> Get {
        Get {
            key: b"key".to_vec(),
            tries: 1,
            begun,
        }
    }

    #[test]
    fn what_comes_in_time_and_verifies_is_the_value() {
        let (head, body, parts) = reply();
        let begun = Instant::now();
        for (late_ms, spoilt, is_taken) in [
            (999, None, true),
            (1000, None, false),
            (0, Some(0), false),
            (0, Some(2), false),
        ] {
            let mut reading = Reading::of(get(begun), &head, &body).unwrap();
            for index in [2, 0, 1] {
                assert!(!reading.is_over());
                let mut bytes = parts[index].clone();
                if spoilt == Some(index) {
                    bytes[99] ^= 1;
                }
                reading.take(index, &bytes);
            }
            assert!(reading.is_over());
            match reading.end(begun + Duration::from_millis(late_ms)) {
                Ok((value, _)) => assert!(is_taken && value == parts.concat()),
                Err(get) => assert_eq!((is_taken, get.tries), (false, 2)),
            }
        }
    }

    #[test]
    fn a_door_that_says_nonsense_is_not_followed() {
        let (head, body, _) = reply();
        let of = |head: &Head, body: &[u8]| Reading::of(get(Instant::now()), head, body).is_some();
        assert!(of(&head, &body));
        let with = |value_bytes| Head {
            value_bytes,
            ..head
        };
        for bytes in [0, 48_099, 48_101, u64::MAX] {
            assert!(!of(&with(bytes), &body), "{bytes}");
        }
        for cut in [0, 31, 64, 95] {
            assert!(!of(&head, &body[..cut]), "{cut}");
        }
        for bytes in [0, u64::MAX, 24_001] {
            let mut body = body.clone();
            body[16..24].copy_from_slice(&u64::to_le_bytes(bytes));
            assert!(!of(&head, &body), "{bytes}");
        }
    }
}
