//! RENAME, RENAMENX and COPY: two keys change atomically, and the expiry moves with the value.

use crate::commands::string::{NOT_AN_INTEGER, SYNTAX};
use crate::context::Context;
use crate::keyspace::{Demand, Keyspace};
use crate::request::number::parse_i64;
use everdram::Error;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Done,
    NoSource,
    TargetTaken,
}

/// How to transfer a value to another key.
#[derive(Clone, Copy)]
struct Manner {
    /// The value also stays under its old key.
    keep_source: bool,
    /// It replaces a value under the new key.
    replace: bool,
}

pub(crate) fn rename(ctx: &mut Context<'_>) {
    match transfer(
        ctx,
        Manner {
            keep_source: false,
            replace: true,
        },
    ) {
        Ok(Moved::NoSource) => ctx.reply.error("ERR no such key"),
        Ok(_) => ctx.reply.ok(),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn renamenx(ctx: &mut Context<'_>) {
    match transfer(
        ctx,
        Manner {
            keep_source: false,
            replace: false,
        },
    ) {
        Ok(Moved::NoSource) => ctx.reply.error("ERR no such key"),
        Ok(moved) => ctx.reply.integer(i64::from(moved == Moved::Done)),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn copy(ctx: &mut Context<'_>) {
    let replace = match copy_options(ctx) {
        Ok(replace) => replace,
        Err(text) => return ctx.reply.error(text),
    };
    if ctx.args.get(1) == ctx.args.get(2) {
        return ctx
            .reply
            .error("ERR source and destination objects are the same");
    }
    match transfer(
        ctx,
        Manner {
            keep_source: true,
            replace,
        },
    ) {
        Ok(moved) => ctx.reply.integer(i64::from(moved == Moved::Done)),
        Err(error) => ctx.fail(&error),
    }
}

/// Parses COPY's options: whether to replace. The only database is 0.
fn copy_options(ctx: &Context<'_>) -> Result<bool, &'static str> {
    let mut replace = false;
    let mut index = 3;
    while index < ctx.args.len() {
        let option = ctx.args.get(index);
        if option.eq_ignore_ascii_case(b"replace") {
            replace = true;
        } else if option.eq_ignore_ascii_case(b"db") && index + 1 < ctx.args.len() {
            index += 1;
            check_database(ctx.args.get(index))?;
        } else {
            return Err(SYNTAX);
        }
        index += 1;
    }
    Ok(replace)
}

fn check_database(number: &[u8]) -> Result<(), &'static str> {
    let number = parse_i64(number).ok_or(NOT_AN_INTEGER)?;
    match i32::try_from(number) {
        Ok(0) => Ok(()),
        Ok(_) => Err("ERR DB index is out of range"),
        Err(_) => Err("ERR value is out of range, value must between -2147483648 and 2147483647"),
    }
}

/// Transfers the value of argument 1 to argument 2.
fn transfer(ctx: &mut Context<'_>, manner: Manner) -> Result<Moved, Error> {
    let (source, target) = (ctx.args.get(1), ctx.args.get(2));
    let mut value = ctx.keys.take_buffer();
    let mut moved = Moved::NoSource;
    let demand = Demand {
        keys: &[source, target],
        ..Demand::default()
    };
    let outcome = ctx.keys.atomically(&demand, &mut |inside| {
        value.clear();
        moved = transfer_inside(inside, source, target, manner, &mut value)?;
        Ok(())
    });
    ctx.keys.return_buffer(value);
    outcome.map(|_| moved)
}

fn transfer_inside(
    inside: &mut dyn Keyspace,
    source: &[u8],
    target: &[u8],
    manner: Manner,
    value: &mut Vec<u8>,
) -> Result<Moved, Error> {
    let Some(found) = inside.get(source, value)? else {
        return Ok(Moved::NoSource);
    };
    if !manner.replace && inside.probe(target)?.is_some() {
        return Ok(Moved::TargetTaken);
    }
    if source != target {
        inside.put(target, value, found.expires_at_ms)?;
        if !manner.keep_source {
            inside.delete(source)?;
        }
    }
    Ok(Moved::Done)
}
