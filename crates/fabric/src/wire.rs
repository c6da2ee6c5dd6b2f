//! Messages of the fabric: a head of 64 bytes and a body. (RDMP-KV section III-A: the server-reply phase.)
//!
//! ```text
//!  0 u8 kind | 1 u8 version | 2 u16 status | 4 u32 sequence
//!  8 u64 check: XXH3-64 of the whole message, with this field 0
//! 16 u16 key bytes | 18 u16 credits | 20 u32 body bytes, less the key and the zeros behind it
//! 24 u64 value bytes | 32 u64 expires, Unix ms | 40 u64 grant | 48 u64 sum | 56 u64 place
//! 64 key, zeros to a multiple of 8, value or text
//! ```
//! Numbers are little-endian. What a kind does not use is 0. A message that is cut, too long, of another
//! version, or does not sum up is refused; its connection is closed, since nothing behind it can be trusted.

use crate::identity::PoolId;
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = 64;
/// Version of this protocol. Since 2 the reply to a Hello says which pool the door serves, since 3 the Done
/// of lent blocks has a check for each.
pub(crate) const VERSION: u8 = 3;
/// Longest key, in bytes; longer ones go through the Redis door.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value, in bytes; longer ones go through the Redis door.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Longest value that travels with a request: the threshold of the hybrid protocol (section III-E).
pub const INLINE_BYTES: usize = 16 << 10;
/// The most requests that a connection may have under way.
pub(crate) const CREDITS_MAX: u16 = 16;
/// Longest message, in bytes.
pub(crate) const MESSAGE_BYTES: usize = HEAD_BYTES + KEY_BYTES_MAX + INLINE_BYTES;
/// What a client gives when it connects: four letters, the oldest and the newest version it speaks.
pub(crate) const GREETING: [u8; 8] = [b'E', b'V', b'F', b'1', VERSION, VERSION, 0, 0];

const CHECK_AT: usize = 8;
const _: () = assert!(KEY_BYTES_MAX.is_multiple_of(8) && HEAD_BYTES.is_multiple_of(8));

/// What a request asks for. A reply has the kind of its request, and [`REPLY`] beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Client id and password. The reply says what the door is and what it gives.
    Hello = 1,
    /// The value of a key. Of a long one the reply has the first part, and `grant` names the rest.
    Get = 2,
    /// Whether a key is there, its length and its expiry.
    Probe = 3,
    /// A key and its value.
    Put = 4,
    /// Room for a value that the client is going to write: the metadata phase of RDMP-SA.
    Prepare = 5,
    /// Removes a key.
    Delete = 6,
    /// The value of a grant was written: the persist request of RDMP-SA.
    Done = 7,
    /// The part of a long value from `place` on.
    Part = 8,
}

/// As the place of a Prepare and a Done: the client itself makes its value durable in the landing area
/// (RDMP-CC). As a bit of the grant of the reply to a Hello: the door takes such puts.
pub(crate) const BY_CLIENT: u64 = 1;
/// As [`BY_CLIENT`], but the client tells with its write that it is done (RDMP-CC-Imm).
pub(crate) const BY_CLIENT_TOLD: u64 = 2;

/// As a bit of the place of a Prepare, alone or with [`BY_CLIENT`]: the client can write its value in pieces,
/// into blocks of the store. The reply then may have pieces as its body, and the body of its Done is
/// [`checks_of`] them. With [`BY_CLIENT`] the client makes all pieces durable before it says so. As a bit of
/// the grant of the reply to a Hello: the door lends.
pub(crate) const LENT: u64 = 8;

/// As the place of a Get: the client wants to read a long value where it lies. As a bit of the grant of the
/// reply to a Hello: the door lets it.
pub(crate) const IN_PLACE: u64 = 4;

/// A part of a long value, where the client may read it, or write it: 32 bytes of the body of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    /// XXH3-64 of the bytes, seeded with the `sum` of the reply; 0 where they are to be written.
    pub(crate) check: u64,
}

/// Pieces that fit a reply.
pub(crate) const PIECES_MAX: usize = INLINE_BYTES / 32;

impl Piece {
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.address, self.key, self.bytes, self.check];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Those of a body; what is left over is none.
    pub(crate) fn all_of(body: &[u8]) -> impl Iterator<Item = Piece> + '_ {
        body.as_chunks::<32>().0.iter().filter_map(|piece| {
            Some(Piece {
                address: word(piece, 0)?,
                key: word(piece, 1)?,
                bytes: word(piece, 2)?,
                check: word(piece, 3)?,
            })
        })
    }

    /// Whether these are its bytes.
    pub(crate) fn is_of(&self, bytes: &[u8], seed: u64) -> bool {
        self.bytes == bytes.len() as u64 && slot_sum(seed, bytes) == self.check
    }
}

/// The bit of a kind that makes it a reply.
pub(crate) const REPLY: u8 = 0x80;

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Hello,
            2 => Kind::Get,
            3 => Kind::Probe,
            4 => Kind::Put,
            5 => Kind::Prepare,
            6 => Kind::Delete,
            7 => Kind::Done,
            8 => Kind::Part,
            _ => return None,
        })
    }
}

/// The outcome of a request. Behind anything but the first two comes a text that says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// It was done, durably as the door says.
    Ok = 0,
    /// There is no such key.
    Absent = 1,
    /// The request is not one that this door takes.
    Refused = 2,
    /// Wrong password.
    Denied = 3,
    /// The store has no room.
    Full = 4,
    /// The store is reading its log; try again.
    Loading = 5,
    /// What was written does not sum up to what the client said.
    Torn = 6,
    /// The store has failed, or is damaged.
    Failed = 7,
    /// Another long value of this connection is being read, or there is no memory left: ask again behind
    /// other calls, or later.
    Busy = 8,
}

impl Status {
    fn of(number: u16) -> Option<Status> {
        use Status::{Absent, Busy, Denied, Failed, Full, Loading, Ok, Refused, Torn};
        [
            Ok, Absent, Refused, Denied, Full, Loading, Torn, Failed, Busy,
        ]
        .into_iter()
        .find(|status| *status as u16 == number)
    }
}

/// The head of a message, without its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) is_reply: bool,
    pub(crate) status: Status,
    /// Chosen by the client; the reply has the same.
    pub(crate) sequence: u32,
    /// In replies: requests that the client may have under way from now on.
    pub(crate) credits: u16,
    /// Of the whole value, wherever it travels.
    pub(crate) value_bytes: u64,
    pub(crate) expires_at_ms: u64,
    pub(crate) grant: u64,
    /// Of a reply with pieces: what seeds their checks.
    /// Of `Done`: the sum of what was written, seeded with the nonce of the grant; see [`slot_sum`]. If that
    /// is by the client: the generation of the grant. If that is in pieces: 0.
    pub(crate) sum: u64,
    /// Of a Get: [`IN_PLACE`] or 0; of its reply with pieces: how long they may be read, in ms.
    /// Of a part: where in the value it begins. Of a grant: the address to write to, unless it has pieces. Of
    /// a Prepare: [`BY_CLIENT`], [`BY_CLIENT_TOLD`] or 0, and [`LENT`]; of a Done: [`BY_CLIENT`] or 0.
    pub(crate) place: u64,
}

impl Head {
    pub(crate) fn request(kind: Kind, sequence: u32) -> Head {
        Head {
            kind,
            is_reply: false,
            status: Status::Ok,
            sequence,
            credits: 0,
            value_bytes: 0,
            expires_at_ms: 0,
            grant: 0,
            sum: 0,
            place: 0,
        }
    }

    /// The head of the answer to a request.
    pub(crate) fn reply(&self, status: Status) -> Head {
        Head {
            is_reply: true,
            status,
            ..Head::request(self.kind, self.sequence)
        }
    }

    /// The bytes before a body.
    ///
    /// # Panics
    /// If key or body are longer than a message may have: the caller has looked.
    pub(crate) fn to_bytes(self, key: &[u8], body: &[u8]) -> [u8; HEAD_BYTES] {
        assert!(
            key.len() <= KEY_BYTES_MAX && body.len() <= VALUE_BYTES_MAX,
            "a message is too long for the fabric"
        );
        let mut bytes = [0; HEAD_BYTES];
        let reply = if self.is_reply { REPLY } else { 0 };
        bytes[0] = self.kind as u8 | reply;
        bytes[1] = VERSION;
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(2, &(self.status as u16).to_le_bytes());
        put(4, &self.sequence.to_le_bytes());
        put(16, &(key.len() as u16).to_le_bytes());
        put(18, &self.credits.to_le_bytes());
        put(20, &(body.len() as u32).to_le_bytes());
        put(24, &self.value_bytes.to_le_bytes());
        put(32, &self.expires_at_ms.to_le_bytes());
        put(40, &self.grant.to_le_bytes());
        put(48, &self.sum.to_le_bytes());
        put(56, &self.place.to_le_bytes());
        let check = sum_of(&bytes, [key, zeros(key), body]);
        bytes[CHECK_AT..CHECK_AT + 8].copy_from_slice(&check.to_le_bytes());
        bytes
    }
}

/// The zeros behind a key.
pub(crate) fn zeros(key: &[u8]) -> &'static [u8] {
    &[0; 8][..key.len().next_multiple_of(8) - key.len()]
}

/// A message that verifies; its key and body are places in the bytes that were read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) head: Head,
    pub(crate) key: Range<usize>,
    pub(crate) body: Range<usize>,
}

/// Reads a message; `None` if it is not one, or its body is longer than [`INLINE_BYTES`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read(bytes: &[u8]) -> Option<Message> {
    read_up_to(bytes, INLINE_BYTES)
}

/// Reads a message with a body of up to so many bytes; `None` if it is not one.
pub(crate) fn read_up_to(bytes: &[u8], body_bytes_max: usize) -> Option<Message> {
    let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
    let word = |at: usize| -> u64 {
        let field = head.get(at..at + 8).and_then(|field| field.first_chunk());
        field.map_or(0, |field| u64::from_le_bytes(*field))
    };
    let key_bytes = (word(16) & 0xffff) as usize;
    let body_bytes = (word(16) >> 32) as usize;
    let key = HEAD_BYTES..HEAD_BYTES + key_bytes;
    let body_at = key.end.next_multiple_of(8);
    let body = body_at..body_at + body_bytes;
    let is_whole = key_bytes <= KEY_BYTES_MAX
        && body_bytes <= body_bytes_max
        && bytes.len() == body.end
        && head[1] == VERSION;
    if !is_whole {
        return None;
    }
    let mut unsummed = *head;
    unsummed[CHECK_AT..CHECK_AT + 8].fill(0);
    if sum_of(&unsummed, [&bytes[HEAD_BYTES..], &[], &[]]) != word(CHECK_AT) {
        return None;
    }
    Some(Message {
        head: Head {
            kind: Kind::of(head[0] & !REPLY)?,
            is_reply: head[0] & REPLY != 0,
            status: Status::of((word(0) >> 16) as u16)?,
            sequence: (word(0) >> 32) as u32,
            credits: (word(16) >> 16) as u16,
            value_bytes: word(24),
            expires_at_ms: word(32),
            grant: word(40),
            sum: word(48),
            place: word(56),
        },
        key,
        body,
    })
}

fn sum_of(head: &[u8], rest: [&[u8]; 3]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(head);
    rest.iter().for_each(|part| sum.update(part));
    sum.digest()
}

/// The sum of a value in a slot, seeded with the nonce of its grant: what an earlier write left there, or
/// part of a value, does not have it.
pub(crate) fn slot_sum(nonce: u64, value: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(value, nonce)
}

/// The checks of the pieces of a value, each [`slot_sum`], as the body of a Done.
pub(crate) fn checks_of<'v>(nonce: u64, pieces: impl Iterator<Item = &'v [u8]>) -> Vec<u8> {
    let checks = pieces.flat_map(|piece| slot_sum(nonce, piece).to_le_bytes());
    checks.collect()
}

/// The body of the reply to a Hello.
pub(crate) fn hello(pool: PoolId, acknowledgement: &str) -> Vec<u8> {
    [&pool.0[..], acknowledgement.as_bytes()].concat()
}

/// Pool and acknowledgement of such a body; `None`: it is none.
pub(crate) fn read_hello(body: &[u8]) -> Option<(PoolId, String)> {
    let (pool, text) = body.split_first_chunk()?;
    Some((PoolId(*pool), String::from_utf8_lossy(text).into_owned()))
}

/// The word at the front of a body.
pub(crate) fn first_word(body: &[u8]) -> Option<u64> {
    word(body, 0)
}

/// The word with this index of a body that consists of words.
pub(crate) fn word(body: &[u8], index: usize) -> Option<u64> {
    let word = body.get(index * 8..)?.first_chunk();
    word.map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(head: Head, key: &[u8], body: &[u8]) -> Vec<u8> {
        let mut bytes = head.to_bytes(key, body).to_vec();
        [key, zeros(key), body]
            .iter()
            .for_each(|part| bytes.extend_from_slice(part));
        bytes
    }

    fn put() -> Head {
        Head {
            value_bytes: 5,
            expires_at_ms: 7,
            ..Head::request(Kind::Put, 0x0102_0304)
        }
    }

    /// The bytes that older clients and doors send.
    #[test]
    fn a_put_has_the_bytes_that_the_format_draws() {
        let bytes = whole(put(), b"key", b"value");
        assert_eq!(bytes.len(), 64 + 8 + 5);
        assert_eq!(bytes[..8], [4, 3, 0, 0, 4, 3, 2, 1]);
        assert_eq!(bytes[16..24], [3, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(
            bytes[24..40],
            [5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(&bytes[64..], b"key\0\0\0\0\0value");
        assert_eq!(bytes[8..16], [228, 236, 105, 59, 75, 43, 215, 49]);
    }

    #[test]
    fn a_hello_is_answered_by_pool_and_text() {
        let pool = PoolId([3; 16]);
        let body = hello(pool, "survives");
        assert_eq!((body.len(), &body[16..]), (24, &b"survives"[..]));
        assert_eq!(read_hello(&body), Some((pool, "survives".to_owned())));
        assert_eq!(read_hello(&body[..16]), Some((pool, String::new())));
        assert_eq!(read_hello(&body[..15]), None);
    }

    #[test]
    fn what_was_written_is_read() {
        for (key, body) in [
            (&b""[..], &b""[..]),
            (b"k", b"v"),
            (&[7; 1024], &[8; 16384]),
        ] {
            let head = Head {
                status: Status::Torn,
                is_reply: true,
                credits: 9,
                grant: u64::MAX,
                sum: 3,
                place: 4,
                ..put()
            };
            let bytes = whole(head, key, body);
            let message = read(&bytes).unwrap();
            assert_eq!(message.head, head);
            assert_eq!((&bytes[message.key], &bytes[message.body]), (key, body));
        }
    }

    #[test]
    fn no_changed_message_is_read() {
        let bytes = whole(put(), b"key", b"value");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(read(&changed), None, "byte {at}, bit {bit}");
            }
            assert_eq!(read(&bytes[..at]), None, "cut at {at}");
        }
        assert_eq!(read(&[bytes, vec![0]].concat()), None);
    }
}
