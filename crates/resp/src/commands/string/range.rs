//! Commands on parts of a value: APPEND, GETRANGE, SUBSTR, SETRANGE, STRLEN.

use super::NOT_AN_INTEGER;
use crate::context::Context;
use crate::keyspace::{NO_SPACE, TOO_LONG};
use crate::request::number::parse_i64;
use everdram::Error;
use everdram::engine::{Change, VALUE_BYTES_MAX};
use std::ops::Range;
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
    match put_part(ctx, patch, offset, bytes_max) {
        Err(error) => return ctx.fail(&error),
        Ok(Some(bytes)) => return ctx.reply.integer(bytes as i64),
        Ok(None) => {}
    }
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

/// Writes the patch alone, in a store that can, if no limit is near. `None`: nothing was written.
fn put_part(
    ctx: &mut Context<'_>,
    patch: &[u8],
    offset: Option<usize>,
    bytes_max: usize,
) -> Result<Option<u64>, Error> {
    let (key, room) = (ctx.args.get(1), (bytes_max / 2).saturating_sub(patch.len()));
    let begin = match offset {
        Some(offset) => offset as u64,
        // Another client may append meanwhile, but not half of what a value may have.
        None => ctx.keys.probe(key)?.map_or(0, |(_, bytes)| bytes),
    };
    match begin <= room as u64 {
        true => ctx.keys.put_part(key, offset.map(|at| at as u64), patch),
        false => Ok(None),
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
    match get_part(ctx, start, end, &mut value) {
        Ok(true) => ctx.reply.bulk(&value),
        Ok(false) => match ctx.keys.get(ctx.args.get(1), &mut value) {
            Ok(_) => ctx.reply.bulk(&value[part(value.len() as u64, start, end)]),
            Err(error) => ctx.fail(&error),
        },
        Err(error) => ctx.fail(&error),
    }
    ctx.keys.return_buffer(value);
}

/// Reads the part alone, in a store that can. `false`: the value is to be read as a whole.
fn get_part(
    ctx: &mut Context<'_>,
    start: i64,
    end: i64,
    into: &mut Vec<u8>,
) -> Result<bool, Error> {
    let key = ctx.args.get(1);
    let length = ctx.keys.probe(key)?.map_or(0, |(_, bytes)| bytes);
    let part = part(length, start, end);
    if part.len() > ctx.reply_bytes_max() {
        return Ok(false);
    }
    let found = ctx
        .keys
        .get_part(key, part.start as u64, part.len() as u64, into)?;
    if found == Some(length) {
        return Ok(true);
    }
    // The length has changed since it was asked for, and with it the part.
    into.clear();
    Ok(false)
}

/// Where the bytes from `start` to `end`, both included, are in a value of this length; negative positions
/// count from the end.
fn part(length: u64, start: i64, end: i64) -> Range<usize> {
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let absolute = |position: i64| {
        if position < 0 {
            position.saturating_add(length).max(0)
        } else {
            position
        }
    };
    let (start, end) = (absolute(start), absolute(end).min(length - 1));
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start <= end => start..end + 1,
        _ => 0..0,
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
            let value = b"This is a string";
            let found = &value[part(value.len() as u64, start, end)];
            assert_eq!(found, expected, "{start} {end}");
        }
        assert_eq!(part(0, 0, 0), 0..0);
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
