//! Commands on single bits of a value: SETBIT, GETBIT. Bit 0 is the highest bit of the first byte.

use crate::context::Context;
use crate::keyspace::{NO_SPACE, TOO_LONG};
use crate::request::number::parse_i64;
use everdram::engine::{Change, VALUE_BYTES_MAX};
use std::sync::atomic::Ordering;

/// Redis' answer to an offset that no value can have.
const OFFSET: &str = "ERR bit offset is not an integer or out of range";

/// The byte of a bit, and the bit within it.
struct Place {
    byte: usize,
    mask: u8,
}

/// The place that argument 2 names; `None`: no value has it.
fn place(ctx: &Context<'_>) -> Option<Place> {
    let bit = u64::try_from(parse_i64(ctx.args.get(2))?).ok()?;
    let bytes_max = ctx.shared.config.proto_max_bulk_len.load(Ordering::Relaxed);
    Some(Place {
        byte: usize::try_from(bit / 8)
            .ok()
            .filter(|byte| (*byte as u64) < bytes_max)?,
        mask: 0x80 >> (bit % 8),
    })
}

pub(crate) fn getbit(ctx: &mut Context<'_>) {
    let Some(Place { byte, mask }) = place(ctx) else {
        return ctx.reply.error(OFFSET);
    };
    let mut value = ctx.keys.take_buffer();
    let found = ctx.keys.get(ctx.args.get(1), &mut value);
    let is_set = value.get(byte).is_some_and(|byte| byte & mask != 0);
    ctx.keys.return_buffer(value);
    match found {
        Ok(_) => ctx.reply.integer(i64::from(is_set)),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn setbit(ctx: &mut Context<'_>) {
    let Some(Place { byte, mask }) = place(ctx) else {
        return ctx.reply.error(OFFSET);
    };
    let set = match ctx.args.get(3) {
        b"0" => false,
        b"1" => true,
        _ => {
            return ctx.reply.error("ERR bit is not an integer or out of range");
        }
    };
    if byte >= VALUE_BYTES_MAX {
        return ctx.reply.error(TOO_LONG);
    }
    let (mut was, mut has_room) = (false, true);
    let outcome = ctx.keys.modify(ctx.args.get(1), &mut |current, out| {
        let value = current.map_or(&b""[..], |current| current.value);
        let length = value.len().max(byte + 1);
        has_room = out.try_reserve_exact(length).is_ok();
        if !has_room {
            return Change::Keep;
        }
        out.extend_from_slice(value);
        out.resize(length, 0);
        if let Some(byte) = out.get_mut(byte) {
            was = *byte & mask != 0;
            *byte = if set { *byte | mask } else { *byte & !mask };
        }
        Change::Put {
            expires_at_ms: current.map_or(0, |current| current.expires_at_ms),
        }
    });
    match outcome {
        Err(error) => ctx.fail(&error),
        Ok(()) if has_room => ctx.reply.integer(i64::from(was)),
        Ok(()) => ctx.reply.error(NO_SPACE),
    }
}
