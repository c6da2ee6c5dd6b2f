//! Counters: INCR, DECR, INCRBY, DECRBY, INCRBYFLOAT. A counter is a value that parses as a number. An absent
//! key counts as zero, and the expiry stays.

use super::NOT_AN_INTEGER;
use crate::context::Context;
use crate::request::number::{Extended, parse_i64};
use everdram::engine::Change;
use std::io::Write;

const NOT_A_FLOAT: &str = "ERR value is not a valid float";

pub(crate) fn incr(ctx: &mut Context<'_>) {
    add(ctx, 1);
}

pub(crate) fn decr(ctx: &mut Context<'_>) {
    add(ctx, -1);
}

pub(crate) fn incrby(ctx: &mut Context<'_>) {
    match parse_i64(ctx.args.get(2)) {
        Some(amount) => add(ctx, amount),
        None => ctx.reply.error(NOT_AN_INTEGER),
    }
}

pub(crate) fn decrby(ctx: &mut Context<'_>) {
    match parse_i64(ctx.args.get(2)).map(i64::checked_neg) {
        Some(Some(amount)) => add(ctx, amount),
        Some(None) => ctx.reply.error("ERR decrement would overflow"),
        None => ctx.reply.error(NOT_AN_INTEGER),
    }
}

fn add(ctx: &mut Context<'_>, amount: i64) {
    let mut sum = Err(NOT_AN_INTEGER);
    let outcome = ctx.keys.modify(ctx.args.get(1), &mut |current, out| {
        let (value, expires_at_ms) = current.map_or((&b"0"[..], 0), |c| (c.value, c.expires_at_ms));
        sum = parse_i64(value).ok_or(NOT_AN_INTEGER).and_then(|before| {
            before
                .checked_add(amount)
                .ok_or("ERR increment or decrement would overflow")
        });
        let Ok(sum) = sum else { return Change::Keep };
        // Writing to a Vec cannot fail.
        let _ = write!(out, "{sum}");
        Change::Put { expires_at_ms }
    });
    match (outcome, sum) {
        (Err(error), _) => ctx.fail(&error),
        (Ok(()), Ok(sum)) => ctx.reply.integer(sum),
        (Ok(()), Err(text)) => ctx.reply.error(text),
    }
}

pub(crate) fn incrbyfloat(ctx: &mut Context<'_>) {
    let amount = ctx.args.get(2);
    let mut printed = ctx.keys.take_buffer();
    let mut sum = Err(NOT_A_FLOAT);
    let outcome = ctx.keys.modify(ctx.args.get(1), &mut |current, out| {
        sum = add_float(current.map(|current| current.value), amount);
        let Ok(sum) = sum else { return Change::Keep };
        printed.clear();
        sum.print(&mut printed);
        out.extend_from_slice(&printed);
        Change::Put {
            expires_at_ms: current.map_or(0, |current| current.expires_at_ms),
        }
    });
    match (outcome, sum) {
        (Err(error), _) => ctx.fail(&error),
        (Ok(()), Ok(_)) => ctx.reply.bulk(&printed),
        (Ok(()), Err(text)) => ctx.reply.error(text),
    }
    ctx.keys.return_buffer(printed);
}

fn add_float(value: Option<&[u8]>, amount: &[u8]) -> Result<Extended, &'static str> {
    let value = value
        .map_or(Some(Extended::ZERO), Extended::parse)
        .ok_or(NOT_A_FLOAT)?;
    let amount = Extended::parse(amount).ok_or(NOT_A_FLOAT)?;
    value
        .add(amount)
        .ok_or("ERR increment would produce NaN or Infinity")
}
