//! KEYS, SCAN and RANDOMKEY.

use crate::commands::string::{NOT_AN_INTEGER, SYNTAX};
use crate::context::Context;
use crate::keyspace::EVERY_KEY;
use crate::request::args::Args;
use crate::request::glob;
use crate::request::number::{parse_cursor, parse_i64};

/// Keys per SCAN without COUNT.
const COUNT_DEFAULT: usize = 10;

pub(crate) fn randomkey(ctx: &mut Context<'_>) {
    let mut key = ctx.keys.take_buffer();
    match ctx.keys.random_key(&mut key) {
        Ok(true) => ctx.reply.bulk(&key),
        Ok(false) => ctx.reply.null(),
        Err(error) => ctx.fail(&error),
    }
    ctx.keys.return_buffer(key);
}

pub(crate) fn keys(ctx: &mut Context<'_>) {
    let pattern = ctx.args.get(1);
    let from = Walk::Beginning(glob::prefix(pattern));
    if let Some((_, keys)) = collect(ctx, from, EVERY_KEY, &|key| glob::matches(pattern, key)) {
        list(ctx, &keys);
    }
}

pub(crate) fn scan(ctx: &mut Context<'_>) {
    let options = match Scan::parse(&ctx.args) {
        Ok(options) => options,
        Err(text) => return ctx.reply.error(text),
    };
    let wants = |key: &[u8]| options.wants(key);
    let from = Walk::Cursor(options.cursor);
    if let Some((next, keys)) = collect(ctx, from, options.count, &wants) {
        ctx.reply.array(2);
        ctx.reply.bulk(next.to_string().as_bytes());
        list(ctx, &keys);
    }
}

/// Which keys are looked at.
#[derive(Clone, Copy)]
enum Walk<'a> {
    /// Those from a cursor on.
    Cursor(u64),
    /// Those that begin so, or all in a store without an order of keys.
    Beginning(&'a [u8]),
}

/// The keys of one scan, and the next cursor. `None`: there are too many, or the store refused; an error has
/// been answered.
fn collect(
    ctx: &mut Context<'_>,
    walk: Walk<'_>,
    count: usize,
    wants: &dyn Fn(&[u8]) -> bool,
) -> Option<(u64, Vec<Vec<u8>>)> {
    let bytes_max = ctx.reply_bytes_max();
    let (mut keys, mut bytes) = (Vec::new(), 0_usize);
    let mut keep = |key: &[u8]| {
        let wanted = wants(key);
        if wanted {
            bytes = bytes.saturating_add(key.len() + size_of::<Vec<u8>>());
        }
        wanted && bytes <= bytes_max
    };
    let scanned = match walk {
        Walk::Cursor(cursor) => ctx.keys.scan(cursor, count, &mut keep, &mut keys),
        Walk::Beginning(prefix) => match ctx.keys.begin_with(prefix, &mut keep, &mut keys) {
            Ok(false) => ctx.keys.scan(0, count, &mut keep, &mut keys),
            other => other.map(|_| 0),
        },
    };
    match scanned {
        Err(error) => ctx.fail(&error),
        Ok(_) if bytes > bytes_max => ctx.refuse_too_large(),
        Ok(next) => return Some((next, keys)),
    }
    None
}

fn list(ctx: &mut Context<'_>, keys: &[Vec<u8>]) {
    ctx.reply.array(keys.len());
    for key in keys {
        ctx.reply.bulk(key);
    }
}

/// The arguments of SCAN.
struct Scan<'a> {
    cursor: u64,
    count: usize,
    pattern: Option<&'a [u8]>,
    /// TYPE names a type that no value here has.
    other_type: bool,
}

impl<'a> Scan<'a> {
    fn parse(args: &Args<'a>) -> Result<Self, &'static str> {
        let cursor = parse_cursor(args.get(1)).ok_or("ERR invalid cursor")?;
        let mut scan = Scan {
            cursor,
            count: COUNT_DEFAULT,
            pattern: None,
            other_type: false,
        };
        for index in (2..args.len()).step_by(2) {
            let (option, value) = (args.get(index), args.get(index + 1));
            if index + 1 == args.len() {
                return Err(SYNTAX);
            }
            if option.eq_ignore_ascii_case(b"count") {
                let count = parse_i64(value).ok_or(NOT_AN_INTEGER)?;
                // One less than `EVERY_KEY`, which has a meaning of its own.
                scan.count = usize::try_from(count)
                    .map_err(|_| SYNTAX)?
                    .min(EVERY_KEY - 1);
                if scan.count == 0 {
                    return Err(SYNTAX);
                }
            } else if option.eq_ignore_ascii_case(b"match") {
                scan.pattern = Some(value);
            } else if option.eq_ignore_ascii_case(b"type") {
                scan.other_type = !value.eq_ignore_ascii_case(b"string");
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(scan)
    }

    fn wants(&self, key: &[u8]) -> bool {
        !self.other_type
            && self
                .pattern
                .is_none_or(|pattern| glob::matches(pattern, key))
    }
}
