//! Commands on the expiry of a key: set, remove, read.
//!
//! An expiry is an absolute time in Unix milliseconds. Setting one in the past removes the key.

use crate::context::Context;
use crate::request::number::parse_i64;
use everdram::engine::Change;
use std::borrow::Cow;

/// Conditions on the current expiry of a key.
#[derive(Default)]
struct Conditions {
    only_without: bool,
    only_with: bool,
    only_later: bool,
    only_earlier: bool,
}

impl Conditions {
    /// Parses the options after the time; the error is the text of the reply.
    fn parse<'a>(
        options: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Conditions, Cow<'static, [u8]>> {
        let mut conditions = Conditions::default();
        for option in options {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => conditions.only_without = true,
                b"XX" => conditions.only_with = true,
                b"GT" => conditions.only_later = true,
                b"LT" => conditions.only_earlier = true,
                _ => return Err([b"ERR Unsupported option ", option].concat().into()),
            }
        }
        let Conditions {
            only_without,
            only_with,
            only_later,
            only_earlier,
        } = conditions;
        if only_without && (only_with || only_later || only_earlier) {
            return Err(
                (&b"ERR NX and XX, GT or LT options at the same time are not compatible"[..])
                    .into(),
            );
        }
        if only_later && only_earlier {
            return Err((&b"ERR GT and LT options at the same time are not compatible"[..]).into());
        }
        Ok(conditions)
    }

    /// Whether a key that expires at `before` (0 = never, which is later than any time) may get `at`.
    fn hold(&self, before: u64, at: i64) -> bool {
        let before = if before == 0 {
            i128::MAX
        } else {
            i128::from(before)
        };
        let (expires, at) = (before != i128::MAX, i128::from(at));
        !(self.only_without && expires
            || self.only_with && !expires
            || self.only_later && at <= before
            || self.only_earlier && at >= before)
    }
}

pub(crate) fn expire(ctx: &mut Context<'_>) {
    set_expiry(ctx, "expire", 1000, ctx.now_ms);
}

pub(crate) fn pexpire(ctx: &mut Context<'_>) {
    set_expiry(ctx, "pexpire", 1, ctx.now_ms);
}

pub(crate) fn expireat(ctx: &mut Context<'_>) {
    set_expiry(ctx, "expireat", 1000, 0);
}

pub(crate) fn pexpireat(ctx: &mut Context<'_>) {
    set_expiry(ctx, "pexpireat", 1, 0);
}

fn set_expiry(ctx: &mut Context<'_>, command: &str, unit_ms: i64, base_ms: u64) {
    let conditions = match Conditions::parse(ctx.args.iter_from(3)) {
        Ok(conditions) => conditions,
        Err(text) => return ctx.reply.error_bytes(&text),
    };
    let Some(number) = parse_i64(ctx.args.get(2)) else {
        return ctx.reply.error(super::string::NOT_AN_INTEGER);
    };
    let Some(at) = number
        .checked_mul(unit_ms)
        .and_then(|ms| ms.checked_add_unsigned(base_ms))
    else {
        return ctx
            .reply
            .error(&format!("ERR invalid expire time in '{command}' command"));
    };
    let now_ms = ctx.now_ms;
    let future = u64::try_from(at).ok().filter(|at| *at > now_ms);
    change(
        ctx,
        &mut |before| match (conditions.hold(before, at), future) {
            (false, _) => None,
            (true, None) => Some(Change::Delete),
            (true, Some(expires_at_ms)) => Some(Change::Put { expires_at_ms }),
        },
    );
}

pub(crate) fn persist(ctx: &mut Context<'_>) {
    change(ctx, &mut |before| {
        (before != 0).then_some(Change::Put { expires_at_ms: 0 })
    });
}

/// Changes the expiry of argument 1 as `decide` says from its current expiry. Answers 1 if something changed,
/// 0 if not.
fn change(ctx: &mut Context<'_>, decide: &mut dyn FnMut(u64) -> Option<Change>) {
    let mut changed = false;
    let outcome = ctx.keys.modify(ctx.args.get(1), &mut |current, out| {
        let change = current.and_then(|current| decide(current.expires_at_ms));
        changed = change.is_some();
        if let (Some(current), Some(Change::Put { .. })) = (current, change) {
            out.extend_from_slice(current.value);
        }
        change.unwrap_or(Change::Keep)
    });
    match outcome {
        Ok(()) => ctx.reply.integer(i64::from(changed)),
        Err(error) => ctx.fail(&error),
    }
}

/// Answer of TTL and its relatives for an absent key.
const ABSENT: i64 = -2;
/// Their answer for a key that never expires.
const NEVER: i64 = -1;

pub(crate) fn ttl(ctx: &mut Context<'_>) {
    let now_ms = ctx.now_ms;
    answer_expiry(ctx, |at| to_seconds(at.saturating_sub(now_ms)));
}

pub(crate) fn pttl(ctx: &mut Context<'_>) {
    let now_ms = ctx.now_ms;
    answer_expiry(ctx, |at| at.saturating_sub(now_ms));
}

pub(crate) fn expiretime(ctx: &mut Context<'_>) {
    answer_expiry(ctx, to_seconds);
}

pub(crate) fn pexpiretime(ctx: &mut Context<'_>) {
    answer_expiry(ctx, |at| at);
}

/// Redis rounds half a second up.
fn to_seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

fn answer_expiry(ctx: &mut Context<'_>, shown: impl Fn(u64) -> u64) {
    match ctx.keys.probe(ctx.args.get(1)) {
        Err(error) => ctx.fail(&error),
        Ok(None) => ctx.reply.integer(ABSENT),
        Ok(Some((found, _))) if found.expires_at_ms == 0 => ctx.reply.integer(NEVER),
        Ok(Some((found, _))) => ctx
            .reply
            .integer(i64::try_from(shown(found.expires_at_ms)).unwrap_or(i64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(words: &str) -> Conditions {
        Conditions::parse(words.split_whitespace().map(str::as_bytes)).unwrap_or_default()
    }

    #[test]
    fn never_is_later_than_any_time() {
        assert!(!conditions("GT").hold(0, i64::MAX));
        assert!(conditions("lt").hold(0, i64::MAX));
        assert!(conditions("GT").hold(5, 6) && !conditions("GT").hold(5, 5));
        assert!(conditions("LT").hold(5, 4) && !conditions("LT").hold(5, 5));
        assert!(conditions("NX").hold(0, 1) && !conditions("NX").hold(5, 1));
        assert!(conditions("XX").hold(5, 1) && !conditions("XX").hold(0, 1));
        assert!(!conditions("XX LT").hold(0, 1) && conditions("XX LT").hold(5, 1));
    }
}
