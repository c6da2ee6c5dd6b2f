//! SET with its options, and its older forms SETNX, SETEX and PSETEX.

use super::read::modify_keeping;
use super::set_options::{Command, Expiry, SetOptions, Unit, resolve};
use crate::context::Context;
use everdram::Error;
use everdram::engine::Change;

pub(crate) fn set(ctx: &mut Context<'_>) {
    let options = match SetOptions::parse(&ctx.args, 3, Command::Set) {
        Ok(options) => options,
        Err(text) => return ctx.reply.error(text),
    };
    let expires_at_ms = match options.expires_at_ms(ctx.now_ms) {
        Ok(expires_at_ms) => expires_at_ms.unwrap_or(0),
        Err(refusal) => return refuse(ctx, refusal, "set"),
    };
    if options.is_plain() {
        return store(ctx, ctx.args.get(2), expires_at_ms);
    }
    let mut before = ctx.keys.take_buffer();
    match set_with(ctx, &options, expires_at_ms, &mut before) {
        Err(error) => ctx.fail(&error),
        Ok(outcome) if options.answer_value && outcome.present => ctx.reply.bulk(&before),
        Ok(outcome) if options.answer_value || !outcome.stored => ctx.reply.null(),
        Ok(_) => ctx.reply.ok(),
    }
    ctx.keys.return_buffer(before);
}

struct Outcome {
    present: bool,
    stored: bool,
}

fn set_with(
    ctx: &mut Context<'_>,
    options: &SetOptions<'_>,
    expires_at_ms: u64,
    before: &mut Vec<u8>,
) -> Result<Outcome, Error> {
    let (value, now_ms) = (ctx.args.get(2), ctx.now_ms);
    let mut stored = false;
    let present = modify_keeping(ctx, before, &mut |current, out| {
        let present = current.is_some();
        stored = !(options.only_if_absent && present || options.only_if_present && !present);
        if !stored {
            return Change::Keep;
        }
        let expires_at_ms = match current {
            Some(current) if options.keep_expiry => current.expires_at_ms,
            _ => expires_at_ms,
        };
        if has_passed(expires_at_ms, now_ms) {
            return if present {
                Change::Delete
            } else {
                Change::Keep
            };
        }
        out.extend_from_slice(value);
        Change::Put { expires_at_ms }
    })?;
    Ok(Outcome { present, stored })
}

/// A value stored with an expiry in the past is gone at once; nothing need be written.
fn has_passed(expires_at_ms: u64, now_ms: u64) -> bool {
    expires_at_ms != 0 && expires_at_ms <= now_ms
}

fn store(ctx: &mut Context<'_>, value: &[u8], expires_at_ms: u64) {
    let key = ctx.args.get(1);
    let outcome = if has_passed(expires_at_ms, ctx.now_ms) {
        ctx.keys.delete(key).map(|_| ())
    } else {
        ctx.keys.put(key, value, expires_at_ms)
    };
    match outcome {
        Ok(()) => ctx.reply.ok(),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn setnx(ctx: &mut Context<'_>) {
    let value = ctx.args.get(2);
    let mut stored = false;
    let outcome = ctx.keys.modify(ctx.args.get(1), &mut |current, out| {
        stored = current.is_none();
        if !stored {
            return Change::Keep;
        }
        out.extend_from_slice(value);
        Change::Put { expires_at_ms: 0 }
    });
    match outcome {
        Ok(()) => ctx.reply.integer(i64::from(stored)),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn setex(ctx: &mut Context<'_>) {
    set_expiring(ctx, Unit::Seconds, "setex");
}

pub(crate) fn psetex(ctx: &mut Context<'_>) {
    set_expiring(ctx, Unit::Milliseconds, "psetex");
}

fn set_expiring(ctx: &mut Context<'_>, unit: Unit, command: &str) {
    match resolve(unit, ctx.args.get(2), ctx.now_ms) {
        Ok(expires_at_ms) => store(ctx, ctx.args.get(3), expires_at_ms),
        Err(refusal) => refuse(ctx, refusal, command),
    }
}

fn refuse(ctx: &mut Context<'_>, refusal: Expiry, command: &str) {
    match refusal {
        Expiry::NotAnInteger => ctx.reply.error(super::NOT_AN_INTEGER),
        Expiry::Invalid => ctx
            .reply
            .error(&format!("ERR invalid expire time in '{command}' command")),
    }
}
