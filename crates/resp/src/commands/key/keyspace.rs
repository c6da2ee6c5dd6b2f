//! Commands on all keys at once: DBSIZE, FLUSHALL, FLUSHDB.

use crate::commands::string::SYNTAX;
use crate::context::Context;

/// Shortly after a restart the number is unknown: keys removed just before it may be counted. Redis has an
/// error for that, after which its clients try again.
pub(crate) fn dbsize(ctx: &mut Context<'_>) {
    if let Some((read, bytes)) = ctx.shared.engine.loading() {
        let percent = 100 * read / bytes.max(1);
        return ctx.reply.error(&format!(
            "LOADING everdram serves the keys that are in the pool, and cannot count all before it has read its log: \
             {percent} % done"
        ));
    }
    if let Some((done, blocks)) = ctx.shared.engine.verification() {
        let percent = 100 * done / blocks.max(1);
        return ctx.reply.error(&format!(
            "LOADING everdram serves all keys, and cannot count them before it has verified what the last restart left: \
             {percent} % done"
        ));
    }
    match ctx.keys.len() {
        Ok(count) => ctx.reply.integer(i64::try_from(count).unwrap_or(i64::MAX)),
        Err(error) => ctx.fail(&error),
    }
}

/// There is one database, so this is FLUSHDB. ASYNC and SYNC are the same: the removal is one record
/// in the store, and the space is reclaimed in the background.
pub(crate) fn flushall(ctx: &mut Context<'_>) {
    let mode = ctx.args.get(1);
    let known = mode.eq_ignore_ascii_case(b"sync") || mode.eq_ignore_ascii_case(b"async");
    if ctx.args.len() > 2 || (ctx.args.len() == 2 && !known) {
        return ctx.reply.error(SYNTAX);
    }
    match ctx.keys.clear() {
        Ok(()) => ctx.reply.ok(),
        Err(error) => ctx.fail(&error),
    }
}

pub(crate) fn flushdb(ctx: &mut Context<'_>) {
    flushall(ctx);
}
