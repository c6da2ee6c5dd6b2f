//! OBJECT and MEMORY: how a key is stored. Clients expect Redis' answers, so a value is described as Redis
//! would store it right after a SET.

use crate::commands::string::{NOT_AN_INTEGER, SYNTAX};
use crate::context::Context;
use crate::request::number::parse_i64;
use everdram::Error;

/// Longest value that Redis stores in one allocation with its header.
const EMBEDDED_BYTES_MAX: usize = 44;
/// Redis shares the objects of the integers below this, and their reference count shows it.
const SHARED_INTEGERS: i64 = 10_000;
/// The reference count of a shared object.
const SHARED_COUNT: i64 = i32::MAX as i64;
/// Bytes of a record besides key and value: header, checksum, and its entry in the index.
const RECORD_BYTES: u64 = 56;

const OBJECT_HELP: [&str; 13] = [
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Return the access frequency index of the <key>. The returned integer is",
    "    proportional to the logarithm of the recent access frequency of the key.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "REFCOUNT <key>",
    "    Return the number of references of the value associated with the specified",
    "    <key>.",
];
const MEMORY_HELP: [&str; 4] = [
    "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "USAGE <key> [SAMPLES <count>]",
    "    Return memory in bytes used by <key> and its value. Nested values are",
    "    sampled up to <count> times (default: 5, 0 means sample all).",
];
const NO_FREQUENCY: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
     Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";

pub(crate) fn object(ctx: &mut Context<'_>) {
    let subcommand = ctx.args.get(1);
    let is = |name: &[u8]| subcommand.eq_ignore_ascii_case(name);
    if is(b"help") {
        return help(ctx, &OBJECT_HELP);
    }
    let mut value = ctx.keys.take_buffer();
    match ctx.keys.get(ctx.args.get(2), &mut value) {
        Err(error) => ctx.fail(&error),
        Ok(None) => ctx.reply.null(),
        Ok(Some(_)) if is(b"encoding") => ctx.reply.bulk(encoding(&value).as_bytes()),
        Ok(Some(_)) if is(b"refcount") => ctx.reply.integer(references(&value)),
        Ok(Some(_)) if is(b"idletime") => ctx.reply.integer(0),
        Ok(Some(_)) => ctx.reply.error(NO_FREQUENCY),
    }
    ctx.keys.return_buffer(value);
}

fn encoding(value: &[u8]) -> &'static str {
    match parse_i64(value) {
        Some(_) => "int",
        None if value.len() <= EMBEDDED_BYTES_MAX => "embstr",
        None => "raw",
    }
}

fn references(value: &[u8]) -> i64 {
    match parse_i64(value) {
        Some(0..SHARED_INTEGERS) => SHARED_COUNT,
        _ => 1,
    }
}

pub(crate) fn memory(ctx: &mut Context<'_>) {
    if ctx.args.get(1).eq_ignore_ascii_case(b"help") {
        return help(ctx, &MEMORY_HELP);
    }
    if let Err(text) = usage_options(ctx) {
        return ctx.reply.error(text);
    }
    match usage(ctx) {
        Ok(Some(bytes)) => ctx.reply.integer(i64::try_from(bytes).unwrap_or(i64::MAX)),
        Ok(None) => ctx.reply.null(),
        Err(error) => ctx.fail(&error),
    }
}

/// SAMPLES concerns values with parts; it is checked and has no effect.
fn usage_options(ctx: &Context<'_>) -> Result<(), &'static str> {
    for index in (3..ctx.args.len()).step_by(2) {
        if !ctx.args.get(index).eq_ignore_ascii_case(b"samples") || index + 1 == ctx.args.len() {
            return Err(SYNTAX);
        }
        if parse_i64(ctx.args.get(index + 1)).ok_or(NOT_AN_INTEGER)? < 0 {
            return Err(SYNTAX);
        }
    }
    Ok(())
}

fn usage(ctx: &mut Context<'_>) -> Result<Option<u64>, Error> {
    let key = ctx.args.get(2);
    let found = ctx.keys.probe(key)?;
    Ok(found.map(|(_, value_bytes)| RECORD_BYTES + key.len() as u64 + value_bytes))
}

/// The help ends with the lines of every container in Redis.
fn help(ctx: &mut Context<'_>, lines: &[&str]) {
    let common = ["HELP", "    Prints this help."];
    ctx.reply.array(lines.len() + common.len());
    for line in lines.iter().chain(&common) {
        ctx.reply.simple(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_described_as_redis_would() {
        assert_eq!(encoding(b"-12"), "int");
        assert_eq!(encoding(b"012"), "embstr");
        assert_eq!(encoding(&[b'x'; 44]), "embstr");
        assert_eq!(encoding(&[b'x'; 45]), "raw");
        assert_eq!(
            (references(b"9999"), references(b"10000"), references(b"-1")),
            (SHARED_COUNT, 1, 1)
        );
    }
}
