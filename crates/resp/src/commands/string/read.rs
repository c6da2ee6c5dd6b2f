//! GET, and the commands that answer a value and change its key: GETDEL, GETEX, GETSET.

use super::set_options::{Command, Expiry, SetOptions};
use crate::context::Context;
use everdram::Error;
use everdram::engine::{Change, Current};

pub(crate) fn get(ctx: &mut Context<'_>) {
    let key = ctx.args.get(1);
    let head_bytes = &mut ctx.client.value_head_bytes;
    let outcome = ctx
        .reply
        .bulk_filled(head_bytes, |into| Ok(ctx.keys.get(key, into)?.is_some()));
    if let Err(error) = outcome {
        ctx.fail(&error);
    }
}

pub(crate) fn getset(ctx: &mut Context<'_>) {
    let value = ctx.args.get(2);
    answer_and_change(ctx, &mut |_, out| {
        out.extend_from_slice(value);
        Change::Put { expires_at_ms: 0 }
    });
}

pub(crate) fn getdel(ctx: &mut Context<'_>) {
    answer_and_change(ctx, &mut |current, _| {
        current.map_or(Change::Keep, |_| Change::Delete)
    });
}

pub(crate) fn getex(ctx: &mut Context<'_>) {
    let options = match SetOptions::parse(&ctx.args, 2, Command::Getex) {
        Ok(options) => options,
        Err(text) => return ctx.reply.error(text),
    };
    let now_ms = ctx.now_ms;
    match options.expires_at_ms(now_ms) {
        Ok(None) if !options.persist => get(ctx),
        Ok(expires_at_ms) => {
            answer_and_change(ctx, &mut |current, out| match (current, expires_at_ms) {
                (None, _) => Change::Keep,
                (Some(current), None) if current.expires_at_ms == 0 => Change::Keep,
                (Some(_), Some(at)) if at <= now_ms => Change::Delete,
                (Some(current), at) => {
                    out.extend_from_slice(current.value);
                    Change::Put {
                        expires_at_ms: at.unwrap_or(0),
                    }
                }
            })
        }
        // Redis looks the key up first: an absent key is absent, whatever the expiry.
        Err(Expiry::NotAnInteger) => refuse_if_present(ctx, super::NOT_AN_INTEGER),
        Err(Expiry::Invalid) => {
            refuse_if_present(ctx, "ERR invalid expire time in 'getex' command")
        }
    }
}

/// Answers the value before the change of `decide`, or null.
fn answer_and_change(
    ctx: &mut Context<'_>,
    decide: &mut dyn FnMut(Option<Current<'_>>, &mut Vec<u8>) -> Change,
) {
    let mut before = ctx.keys.take_buffer();
    let outcome = modify_keeping(ctx, &mut before, decide);
    match outcome {
        Ok(true) => ctx.reply.bulk(&before),
        Ok(false) => ctx.reply.null(),
        Err(error) => ctx.fail(&error),
    }
    ctx.keys.return_buffer(before);
}

/// Changes argument 1 and leaves its old value in `before`; returns whether it existed.
pub(super) fn modify_keeping(
    ctx: &mut Context<'_>,
    before: &mut Vec<u8>,
    decide: &mut dyn FnMut(Option<Current<'_>>, &mut Vec<u8>) -> Change,
) -> Result<bool, Error> {
    let mut present = false;
    ctx.keys.modify(ctx.args.get(1), &mut |current, out| {
        present = current.is_some();
        before.clear();
        before.extend_from_slice(current.map_or(b"", |current| current.value));
        decide(current, out)
    })?;
    Ok(present)
}

fn refuse_if_present(ctx: &mut Context<'_>, text: &str) {
    match ctx.keys.probe(ctx.args.get(1)) {
        Ok(Some(_)) => ctx.reply.error(text),
        Ok(None) => ctx.reply.null(),
        Err(error) => ctx.fail(&error),
    }
}
