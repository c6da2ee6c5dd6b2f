//! Commands on the values of several keys: MGET reads them as of one moment; MSET and MSETNX change all of
//! them or none, also across a crash.

use crate::context::Context;
use crate::keyspace::Demand;
use everdram::Error;
use everdram::engine::BatchOp;

pub(crate) fn mget(ctx: &mut Context<'_>) {
    let keys: Vec<&[u8]> = ctx.args.iter_from(1).collect();
    match fits(ctx, &keys) {
        Ok(true) => {}
        Ok(false) => return ctx.refuse_too_large(),
        Err(error) => return ctx.fail(&error),
    }
    let mut values = ctx.keys.take_buffer();
    let mut found = Vec::with_capacity(keys.len());
    match ctx.keys.get_many(&keys, &mut values, &mut found) {
        Err(error) => ctx.fail(&error),
        Ok(()) => {
            ctx.reply.array(found.len());
            let mut start = 0;
            for (state, end) in found {
                match state {
                    Some(_) => ctx.reply.bulk(values.get(start..end).unwrap_or_default()),
                    None => ctx.reply.null(),
                }
                start = end;
            }
        }
    }
    ctx.keys.return_buffer(values);
}

/// Whether the values of `keys` are small enough for one reply. It does not bound values that other clients
/// enlarge after this check.
fn fits(ctx: &mut Context<'_>, keys: &[&[u8]]) -> Result<bool, Error> {
    let bytes_max = ctx.reply_bytes_max() as u64;
    let mut bytes = 0_u64;
    if keys.len() > 1 {
        for key in keys {
            bytes = bytes.saturating_add(ctx.keys.probe(key)?.map_or(0, |(_, length)| length));
        }
    }
    Ok(bytes <= bytes_max)
}

/// The keys and values of MSET and MSETNX.
fn pairs<'a>(ctx: &Context<'a>) -> Option<impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a>> {
    let args = ctx.args;
    let complete = args.len() % 2 == 1;
    complete.then(|| {
        (1..args.len())
            .step_by(2)
            .map(move |index| (args.get(index), args.get(index + 1)))
    })
}

pub(crate) fn mset(ctx: &mut Context<'_>) {
    let Some(pairs) = pairs(ctx) else {
        return ctx
            .reply
            .error("ERR wrong number of arguments for 'mset' command");
    };
    let ops: Vec<BatchOp<'_>> = pairs
        .map(|(key, value)| BatchOp::Put {
            key,
            value,
            expires_at_ms: 0,
        })
        .collect();
    match ctx.keys.batch(&ops) {
        Ok(()) => ctx.reply.ok(),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn msetnx(ctx: &mut Context<'_>) {
    let Some(pairs) = pairs(ctx) else {
        return ctx
            .reply
            .error("ERR wrong number of arguments for 'msetnx' command");
    };
    let pairs: Vec<_> = pairs.collect();
    let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| *key).collect();
    let mut stored = false;
    let outcome = ctx.keys.atomically(
        &Demand {
            keys: &keys,
            ..Demand::default()
        },
        &mut |inside| {
            stored = false;
            for key in &keys {
                if inside.probe(key)?.is_some() {
                    return Ok(());
                }
            }
            stored = true;
            pairs
                .iter()
                .try_for_each(|(key, value)| inside.put(key, value, 0))
        },
    );
    match outcome {
        Ok(_) => ctx.reply.integer(i64::from(stored)),
        Err(error) => ctx.fail(&error),
    }
}
