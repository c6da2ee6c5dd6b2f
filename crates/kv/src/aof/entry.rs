//! One entry of the log: an annotation line, then a Redis command.
//!
//! ```text
//! #e <sum><version><moves><bytes>\r\n          32 bytes: 3 and 27 digits in base 64, CRLF
//! *3 $3 SET $16 <key> $200 <value>             the command, `bytes` long; *5 .. $4 PXAT $13 <ms> if it expires
//! *2 $3 DEL $16 <key>                          or a removal
//! #<spaces>\r\n                                padding, 0 or 3 to 18 bytes: entries begin at multiples of 16
//! ```
//!
//! Redis skips annotations, so to Redis a segment is a list of commands. The sum is keyed with the pool's
//! secret, and covers the command, the order and the place. So bytes of another place, another segment or
//! another pool never verify, and a client cannot write a value that passes for an entry.

use super::digits::{get, put};
use everdram_pm::Secret;
use std::ops::Range;

/// The order of a state among those of its key: version, then moves. Of two states of a key in any tier, the
/// greater counts.
pub(crate) type Order = (u64, u16);

/// Bytes before the command.
pub(super) const HEAD: usize = 32;
/// Entries begin at multiples of this.
pub(super) const GRAIN: u64 = 16;
/// No removal has more bytes beside its key.
pub(super) const REMOVAL_MAX: usize = HEAD + "*2\r\n$3\r\nDEL\r\n$65536\r\n\r\n".len() + 18;
const MARK: &[u8] = b"#e ";
const SUM: Range<usize> = 3..14;
const VERSION: Range<usize> = 14..22;
const MOVES: Range<usize> = 22..25;
const BYTES: Range<usize> = 25..30;
/// Digits of the length of the longest key.
const KEY_DIGITS: usize = 5;
/// Salt of the sums.
const SALT: u64 = 0x61;

const _: () = {
    assert!(MARK.len() == SUM.start && BYTES.end + 2 == HEAD);
    // Digits of base 64 that hold a sum of 64 bits, a version of 47, moves of 16, and a length of 30.
    assert!((SUM.end - SUM.start) * 6 >= 64 && (VERSION.end - VERSION.start) * 6 >= 47);
    assert!((MOVES.end - MOVES.start) * 6 >= 16 && (BYTES.end - BYTES.start) * 6 == 30);
    assert!((HEAD as u64).is_multiple_of(GRAIN));
};

/// What an entry says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    /// It has this value, until then (Unix milliseconds; 0 = for ever).
    Set { value: &'a [u8], expires_at_ms: u64 },
    /// It is absent.
    Del,
}

/// An entry, as ranges of the bytes it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) order: Order,
    pub(crate) key: Range<usize>,
    /// `None`: a removal.
    pub(crate) value: Option<Range<usize>>,
    /// Unix milliseconds; 0 = never.
    pub(crate) expires_at_ms: u64,
    /// Its bytes in the segment, padding included.
    pub(crate) bytes: u64,
}

/// The place of an entry: the number of its segment, and the offset there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// Bytes of the removal of a key, at most.
pub(crate) fn removal_bytes(key: &[u8]) -> u64 {
    (REMOVAL_MAX + key.len()) as u64
}

/// Bytes of padding behind `bytes` bytes: none, or enough for a line.
pub(super) fn padding(bytes: u64) -> u64 {
    match bytes.next_multiple_of(GRAIN) - bytes {
        short @ 1..=2 => short + GRAIN,
        other => other,
    }
}

/// Appends an annotation line of `bytes` bytes in all.
pub(super) fn pad(into: &mut Vec<u8>, bytes: u64) {
    if bytes > 0 {
        into.push(b'#');
        into.resize(into.len() + bytes as usize - 3, b' ');
        into.extend_from_slice(b"\r\n");
    }
}

fn bulk(into: &mut Vec<u8>, bytes: &[u8]) {
    into.push(b'$');
    into.extend_from_slice(bytes.len().to_string().as_bytes());
    into.extend_from_slice(b"\r\n");
    into.extend_from_slice(bytes);
    into.extend_from_slice(b"\r\n");
}

/// Appends the entry that will lie at `at`; returns its bytes, padding included.
pub(super) fn encode(
    into: &mut Vec<u8>,
    secret: &Secret,
    at: Position,
    key: &[u8],
    said: Said<'_>,
    order: Order,
) -> u64 {
    let from = into.len();
    into.extend_from_slice(MARK);
    into.resize(from + HEAD, 0);
    match said {
        Said::Set {
            value,
            expires_at_ms,
        } => {
            let parts: &[u8] = if expires_at_ms == 0 {
                b"*3\r\n"
            } else {
                b"*5\r\n"
            };
            into.extend_from_slice(parts);
            bulk(into, b"SET");
            bulk(into, key);
            bulk(into, value);
            if expires_at_ms != 0 {
                bulk(into, b"PXAT");
                bulk(into, expires_at_ms.to_string().as_bytes());
            }
        }
        Said::Del => {
            into.extend_from_slice(b"*2\r\n");
            bulk(into, b"DEL");
            bulk(into, key);
        }
    }
    let command = into.len() - from - HEAD;
    let sum = sum(secret, at, order, &into[from + HEAD..]);
    let head = &mut into[from..from + HEAD];
    put(&mut head[SUM], sum);
    put(&mut head[VERSION], order.0);
    put(&mut head[MOVES], u64::from(order.1));
    put(&mut head[BYTES], command as u64);
    head[BYTES.end..].copy_from_slice(b"\r\n");
    let bytes = (HEAD + command) as u64;
    pad(into, padding(bytes));
    (into.len() - from) as u64
}

fn sum(secret: &Secret, at: Position, (version, moves): Order, command: &[u8]) -> u64 {
    let place = secret.sum_words([SALT, at.segment, at.offset]);
    secret.sum_words([secret.sum(command), place, version << 16 | u64::from(moves)])
}

/// The bytes of the entry that begins with these, padding left out, if they begin one.
pub(super) fn length(head: &[u8]) -> Option<usize> {
    let head = head.get(..HEAD)?;
    let is_head = head.starts_with(MARK) && head.ends_with(b"\r\n");
    is_head
        .then(|| get(&head[BYTES]))?
        .map(|bytes| HEAD + bytes as usize)
}

/// The entry at the start of `bytes`, which lies at `at`, if it verifies.
pub(super) fn parse(bytes: &[u8], secret: &Secret, at: Position) -> Option<Entry> {
    let whole = bytes.get(..length(bytes)?)?;
    let (head, command) = whole.split_at(HEAD);
    let order = (
        get(&head[VERSION])?,
        u16::try_from(get(&head[MOVES])?).ok()?,
    );
    if get(&head[SUM])? != sum(secret, at, order, command) {
        return None;
    }
    let mut parts = Parts {
        bytes: command,
        at: 0,
    };
    let count = parts.count()?;
    let verb = parts.bulk()?;
    let key = parts.bulk()?;
    let (value, expires_at_ms) = match (&command[verb], count) {
        (b"DEL", 2) => (None, 0),
        (b"SET", 3) => (Some(parts.bulk()?), 0),
        (b"SET", 5) => {
            let value = parts.bulk()?;
            let option = parts.bulk()?;
            let digits = parts.bulk()?;
            let ms = std::str::from_utf8(&command[digits]).ok()?.parse().ok()?;
            (Some(value), (&command[option] == b"PXAT").then_some(ms)?)
        }
        _ => return None,
    };
    if parts.at != command.len() {
        return None;
    }
    let moved = |range: Range<usize>| range.start + HEAD..range.end + HEAD;
    Some(Entry {
        order,
        key: moved(key),
        value: value.map(moved),
        expires_at_ms,
        bytes: whole.len() as u64 + padding(whole.len() as u64),
    })
}

/// What bytes say of an entry that began there and does not verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The key, if the bytes have one.
    pub(super) key: Option<Range<usize>>,
    /// Bytes of the entry, padding included, as its head and its command say.
    pub(super) bytes: [Option<u64>; 2],
}

/// What the bytes of a damaged entry say.
pub(super) fn claim(bytes: &[u8]) -> Claim {
    // The lines before it have always the same length, whatever is in them.
    let key = claimed_key(bytes, HEAD + "*3\r\n$3\r\nSET\r\n".len());
    let is_set = bytes.get(HEAD + 8..HEAD + 11) == Some(b"SET");
    let is_expiring = is_set && bytes.get(HEAD + 1) == Some(&b'5');
    let rest = if is_expiring { 3 } else { usize::from(is_set) };
    let command = key.as_ref().and_then(|key| {
        let at = key.end + 2;
        let mut parts = Parts { bytes, at };
        (0..rest).try_for_each(|_| parts.skip_bulk())?;
        Some(parts.at)
    });
    let padded = |length: usize| length as u64 + padding(length as u64);
    Claim {
        key,
        bytes: [length(bytes), command].map(|length| length.map(padded)),
    }
}

/// The key whose length is told at byte `at`, if it seems to end where that says.
fn claimed_key(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let from = at + 1;
    let digits = bytes.get(from..)?.iter().take(KEY_DIGITS);
    let digits = digits.take_while(|byte| byte.is_ascii_digit()).count();
    let text = std::str::from_utf8(bytes.get(from..from + digits)?).ok()?;
    let start = from + digits + 2;
    let key = start..start + text.parse::<usize>().ok()?;
    let end = bytes.get(key.end..key.end + 2)?;
    // One of the two may be what is damaged.
    let is_end = end[0] == b'\r' || end[1] == b'\n';
    (is_end && !key.is_empty()).then_some(key)
}

/// Reads a command part by part.
struct Parts<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Parts<'_> {
    /// A number between a mark and the end of its line.
    fn number(&mut self, mark: u8) -> Option<usize> {
        let rest = self.bytes.get(self.at..)?;
        let (first, rest) = rest.split_first()?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if *first != mark || digits == 0 || digits > 10 || !rest[digits..].starts_with(b"\r\n") {
            return None;
        }
        self.at += 1 + digits + 2;
        let value = |value: usize, digit: &u8| value * 10 + usize::from(digit - b'0');
        Some(rest[..digits].iter().fold(0, value))
    }

    fn count(&mut self) -> Option<usize> {
        self.number(b'*')
    }

    fn bulk(&mut self) -> Option<Range<usize>> {
        let length = self.number(b'$')?;
        let range = self.at..self.at.checked_add(length)?;
        if self.bytes.get(range.end..)?.starts_with(b"\r\n") {
            self.at = range.end + 2;
            Some(range)
        } else {
            None
        }
    }

    /// Goes to the end of a part whose bytes need not be there.
    fn skip_bulk(&mut self) -> Option<()> {
        let length = self.number(b'$')?;
        self.at = self.at.checked_add(length)?.checked_add(2)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::expand(&[3; 32])
    }

    const AT: Position = Position {
        segment: 7,
        offset: 4096,
    };

    #[test]
    #[cfg_attr(miri, ignore = "many sums")]
    fn what_is_written_is_read_and_every_flip_is_noticed() {
        let set = |value, expires_at_ms| Said::Set {
            value,
            expires_at_ms,
        };
        let long = vec![b'x'; 1000];
        for said in [
            set(b"".as_slice(), 0),
            set(b"value\r\n$3", 0),
            set(&long, 1 << 40),
            Said::Del,
        ] {
            for key in [b"k".as_slice(), b"a key\0", &long] {
                let mut bytes = Vec::new();
                let stored = encode(&mut bytes, &secret(), AT, key, said, (9, 3));
                assert_eq!(stored, bytes.len() as u64);
                assert!(stored.is_multiple_of(GRAIN));
                let entry = parse(&bytes, &secret(), AT).unwrap();
                assert_eq!((entry.order, entry.bytes), ((9, 3), stored));
                assert_eq!(&bytes[entry.key.clone()], key);
                match said {
                    Said::Del => assert_eq!(entry.value, None),
                    Said::Set {
                        value,
                        expires_at_ms,
                    } => {
                        assert_eq!(&bytes[entry.value.clone().unwrap()], value);
                        assert_eq!(entry.expires_at_ms, expires_at_ms);
                    }
                }
                let elsewhere = Position { offset: 4112, ..AT };
                assert_eq!(parse(&bytes, &secret(), elsewhere), None);
                let end = length(&bytes).unwrap();
                for bit in 0..end * 8 {
                    let mut bad = bytes.clone();
                    bad[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(parse(&bad, &secret(), AT), None, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_damaged_entry_says_what_it_was() {
        let value = Said::Set {
            value: &[7; 300],
            expires_at_ms: 1 << 40,
        };
        for said in [value, Said::Del] {
            let (mut bytes, mut unsure) = (Vec::new(), 0);
            let stored = encode(&mut bytes, &secret(), AT, b"a key", said, (9, 3));
            let command = bytes.len();
            bytes.extend_from_slice(&[b'x'; 100]);
            for at in 0..command {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                let Claim { key, bytes } = claim(&bad);
                let key = key.map(|key| bad[key].to_vec());
                // Where the key is what was damaged, one byte of it is wrong.
                let differ = |key: &[u8]| key.iter().zip(b"a key").filter(|(a, b)| a != b).count();
                let is_key = key.is_some_and(|key| key.len() == 5 && differ(&key) <= 1);
                unsure += usize::from(!is_key);
                assert!(
                    !is_key || bytes.contains(&Some(stored)),
                    "byte {at}: {bytes:?}"
                );
            }
            // The digits of the key's length.
            assert_eq!(unsure, 1, "{said:?}");
        }
        for cut in 0..64 {
            claim(&vec![b'#'; cut]);
        }
    }

    #[test]
    fn entries_cost_a_third_more_than_small_records() {
        let mut bytes = Vec::new();
        let value = [0; 200];
        let said = Said::Set {
            value: &value,
            expires_at_ms: 0,
        };
        assert_eq!(
            encode(&mut bytes, &secret(), AT, &[0; 16], said, (1, 0)),
            288
        );
    }

    #[test]
    fn no_removal_is_longer_than_is_reserved_for_it() {
        let longest = (1..200).chain(60_000..60_032).map(|key_bytes| {
            let (mut bytes, key) = (Vec::new(), vec![b'k'; key_bytes]);
            encode(&mut bytes, &secret(), AT, &key, Said::Del, (1, 0));
            bytes.len() - key_bytes
        });
        assert_eq!(longest.max(), Some(REMOVAL_MAX));
    }

    #[test]
    fn padding_is_a_line_of_its_own() {
        for bytes in 32..64 {
            let more = padding(bytes);
            assert!((bytes + more).is_multiple_of(GRAIN) && !(1..3).contains(&more) && more <= 18);
            let mut line = Vec::new();
            pad(&mut line, more);
            assert_eq!(line.len() as u64, more);
            assert!(more == 0 || line.starts_with(b"#") && line.ends_with(b"\r\n"));
        }
    }
}
