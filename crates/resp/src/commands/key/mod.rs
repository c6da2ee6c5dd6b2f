//! Commands on keys, for values of any kind: remove, rename, list, inspect.

mod inspect;
mod keyspace;
mod listing;
mod rename;

pub(crate) use inspect::{memory, object};
pub(crate) use keyspace::{dbsize, flushall, flushdb};
pub(crate) use listing::{keys, randomkey, scan};
pub(crate) use rename::{copy, rename, renamenx};

use crate::context::Context;
use crate::keyspace::{Demand, Keyspace};
use everdram::Error;

pub(crate) fn del(ctx: &mut Context<'_>) {
    count(ctx, |keys, key| keys.delete(key));
}

pub(crate) fn unlink(ctx: &mut Context<'_>) {
    del(ctx);
}

pub(crate) fn exists(ctx: &mut Context<'_>) {
    count(ctx, |keys, key| Ok(keys.probe(key)?.is_some()));
}

pub(crate) fn touch(ctx: &mut Context<'_>) {
    exists(ctx);
}

/// Answers the number of arguments for which `action` returns true. Several keys are read and changed as of
/// one moment; a single key needs no transaction for that.
fn count(
    ctx: &mut Context<'_>,
    mut action: impl FnMut(&mut dyn Keyspace, &[u8]) -> Result<bool, Error>,
) {
    let mut count = 0;
    let outcome = if ctx.args.len() == 2 {
        action(ctx.keys, ctx.args.get(1)).map(|yes| count = i64::from(yes))
    } else {
        let keys: Vec<&[u8]> = ctx.args.iter_from(1).collect();
        let demand = Demand {
            keys: &keys,
            ..Demand::default()
        };
        let work = ctx.keys.atomically(&demand, &mut |inside| {
            count = 0;
            for key in &keys {
                count += i64::from(action(inside, key)?);
            }
            Ok(())
        });
        work.map(|_| ())
    };
    match outcome {
        Ok(()) => ctx.reply.integer(count),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn type_(ctx: &mut Context<'_>) {
    match ctx.keys.probe(ctx.args.get(1)) {
        Ok(Some(_)) => ctx.reply.simple("string"),
        Ok(None) => ctx.reply.simple("none"),
        Err(error) => ctx.fail(&error),
    }
}
