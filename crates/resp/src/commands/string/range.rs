//! Commands on parts of a value: APPEND, GETRANGE, SUBSTR, SETRANGE, STRLEN.

use super::NOT_AN_INTEGER;
use crate::context::Context;
use crate::keyspace::{NO_SPACE, TOO_LONG};
use crate::request::number::parse_i64;
use everdram::engine::{Change, VALUE_BYTES_MAX};
use std::sync::atomic::Ordering;

/// The result of extending a value.
enum Grown {
    /// The new length.
    Length(usize),
    /// Longer than a value may be.
    TooLong,
    /// Out of memory.
    NoMemory,
}

pub(crate) fn strlen(ctx: &mut Context<'_>) {
    match ctx.keys.probe(ctx.args.get(1)) {
        Ok(found) => ctx
            .reply
            .integer(found.map_or(0, |(_, bytes)| bytes as i64)),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn append(ctx: &mut Context<'_>) {
    let suffix = ctx.args.get(2);
    overwrite(ctx, suffix, None);
}

pub(crate) fn setrange(ctx: &mut Context<'_>) {
    let Some(offset) = parse_i64(ctx.args.get(2)) else {
        return ctx.reply.error(NOT_AN_INTEGER);
    };
    let Ok(offset) = usize::try_from(offset) else {
        return ctx.reply.error("ERR offset is out of range");
    };
    let patch = ctx.args.get(3);
    if patch.is_empty() {
        return strlen(ctx);
    }
    overwrite(ctx, patch, Some(offset));
}

/// Writes `patch` at `offset` of the value (`None`: at its end), fills a gap with zeros, and answers the
/// length.
fn overwrite(ctx: &mut Context<'_>, patch: &[u8], offset: Option<usize>) {
    let configured = ctx.shared.config.proto_max_bulk_len.load(Ordering::Relaxed);
    let bytes_max = usize::try_from(configured)
        .unwrap_or(usize::MAX)
        .min(VALUE_BYTES_MAX);
    let mut grown = Grown::TooLong;
    let outcome = ctx.keys.modify(ctx.args.get(1), &mut |current, out| {
        let value = current.map_or(&b""[..], |current| current.value);
        grown = patched(value, patch, offset.unwrap_or(value.len()), bytes_max, out);
        match grown {
            Grown::Length(_) => Change::Put {
                expires_at_ms: current.map_or(0, |current| current.expires_at_ms),
            },
            Grown::TooLong | Grown::NoMemory => Change::Keep,
        }
    });
    match (outcome, grown) {
        (Err(error), _) => ctx.fail(&error),
        (Ok(()), Grown::Length(bytes)) => ctx.reply.integer(bytes as i64),
        (Ok(()), Grown::TooLong) => ctx.reply.error(TOO_LONG),
        (Ok(()), Grown::NoMemory) => ctx.reply.error(NO_SPACE),
    }
}

fn patched(
    value: &[u8],
    patch: &[u8],
    offset: usize,
    bytes_max: usize,
    out: &mut Vec<u8>,
) -> Grown {
    let Some(end) = offset
        .checked_add(patch.len())
        .filter(|end| *end <= bytes_max)
    else {
        return Grown::TooLong;
    };
    let length = end.max(value.len());
    if out.try_reserve_exact(length).is_err() {
        return Grown::NoMemory;
    }
    let (before, behind) = (value.len().min(offset), value.len().min(end));
    out.extend_from_slice(value.get(..before).unwrap_or_default());
    out.resize(offset, 0);
    out.extend_from_slice(patch);
    out.extend_from_slice(value.get(behind..).unwrap_or_default());
    Grown::Length(length)
}

pub(crate) fn substr(ctx: &mut Context<'_>) {
    getrange(ctx);
}

pub(crate) fn getrange(ctx: &mut Context<'_>) {
    let (Some(start), Some(end)) = (parse_i64(ctx.args.get(2)), parse_i64(ctx.args.get(3))) else {
        return ctx.reply.error(NOT_AN_INTEGER);
    };
    let mut value = ctx.keys.take_buffer();
    match ctx.keys.get(ctx.args.get(1), &mut value) {
        Ok(_) => ctx.reply.bulk(part(&value, start, end)),
        Err(error) => ctx.fail(&error),
    }
    ctx.keys.return_buffer(value);
}

/// The bytes from `start` to `end`, both included; negative positions count from the end.
fn part(value: &[u8], start: i64, end: i64) -> &[u8] {
    if start < 0 && end < 0 && start > end {
        return b"";
    }
    let length = value.len() as i64;
    let absolute = |position: i64| {
        if position < 0 {
            position.saturating_add(length).max(0)
        } else {
            position
        }
    };
    let (start, end) = (absolute(start), absolute(end).min(length - 1));
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) => value.get(start..=end).unwrap_or_default(),
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_as_in_redis() {
        let cases: [(i64, i64, &[u8]); 9] = [
            (0, 3, b"This"),
            (-3, -1, b"ing"),
            (0, -1, b"This is a string"),
            (10, 100, b"string"),
            (5, 3, b""),
            (-1, -5, b""),
            (0, -100, b"T"),
            (i64::MIN, i64::MAX, b"This is a string"),
            (16, 20, b""),
        ];
        for (start, end, expected) in cases {
            assert_eq!(
                part(b"This is a string", start, end),
                expected,
                "{start} {end}"
            );
        }
        assert_eq!(part(b"", 0, 0), b"");
    }

    #[test]
    fn patches_pad_and_keep_the_rest() {
        let built = |value: &[u8], patch: &[u8], offset| {
            let mut out = Vec::new();
            patched(value, patch, offset, 100, &mut out);
            out
        };
        assert_eq!(built(b"Hello World", b"Redis", 6), b"Hello Redis");
        assert_eq!(built(b"Hello World", b"J", 0), b"Jello World");
        assert_eq!(built(b"ab", b"x", 4), b"ab\0\0x");
        assert!(matches!(
            patched(b"", b"x", 100, 100, &mut Vec::new()),
            Grown::TooLong
        ));
        assert!(matches!(
            patched(b"", b"x", usize::MAX, 100, &mut Vec::new()),
            Grown::TooLong
        ));
    }
}
