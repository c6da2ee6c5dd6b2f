//! How far two correct servers may differ in the reply to a command.

use crate::connection::Answer;

/// COUNT of a SCAN that visits everything in one step, so that its result is comparable.
const WHOLE_SCAN: &[u8] = b"10000";

#[derive(Debug)]
pub(crate) enum Mode {
    /// Not at all.
    Exact,
    /// In the order of the elements, at any depth.
    AnyOrder,
    /// In everything but the kind of reply: null, string, integer, error.
    SameKind,
    /// In an integer by this much, if it is not negative.
    Near(i64),
    /// Element by element.
    Each(Vec<Mode>),
}

impl Mode {
    pub(crate) fn of(command: &[Vec<u8>]) -> Mode {
        let lower = |index: usize| {
            command
                .get(index)
                .map(|word| word.to_ascii_lowercase())
                .unwrap_or_default()
        };
        match lower(0).as_slice() {
            b"keys" => Mode::AnyOrder,
            b"scan" if starts_over(&lower(1)) && command.iter().any(|word| word == WHOLE_SCAN) => {
                Mode::AnyOrder
            }
            b"scan" | b"randomkey" | b"time" => Mode::SameKind,
            b"object" if lower(1) == b"idletime" => Mode::SameKind,
            b"memory" => Mode::SameKind,
            b"ttl" | b"expiretime" => Mode::Near(1),
            b"pttl" | b"pexpiretime" => Mode::Near(2_000),
            _ => Mode::Exact,
        }
    }

    pub(crate) fn accepts(&self, one: &Answer, other: &Answer) -> bool {
        if one.raw == other.raw {
            return true;
        }
        match self {
            Mode::Exact => false,
            Mode::AnyOrder => lines(one) == lines(other),
            Mode::SameKind => kind(one) == kind(other),
            Mode::Near(distance) => match (one.integer(), other.integer()) {
                (Some(one), Some(other)) => {
                    one >= 0 && other >= 0 && one.abs_diff(other) <= distance.unsigned_abs()
                }
                _ => false,
            },
            Mode::Each(modes) => {
                one.head() == other.head()
                    && modes.len() == one.parts.len()
                    && modes
                        .iter()
                        .zip(one.parts.iter().zip(&other.parts))
                        .all(|(mode, (one, other))| mode.accepts(one, other))
            }
        }
    }
}

/// Whether a cursor is a spelling of zero.
fn starts_over(cursor: &[u8]) -> bool {
    cursor.iter().all(|byte| b"+-0".contains(byte))
}

fn lines(answer: &Answer) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = answer.raw.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// Errors differ in kind unless they are equal.
fn kind(answer: &Answer) -> (&[u8], &[u8]) {
    match answer.raw.as_slice() {
        [b'-', error @ ..] => (b"-", error),
        [b'$', b'-', ..] | [b'_', ..] => (b"_", b""),
        raw => (raw.get(..1).unwrap_or_default(), b""),
    }
}
