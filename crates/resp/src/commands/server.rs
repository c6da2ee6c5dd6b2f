//! Commands about the server as a whole: time, stopping, and what is durable.

use crate::context::Context;
use crate::reply::Reply;
use crate::request::number::parse_i64;
use crate::server::syncer::SyncRequest;
use everdram::{Durability, Medium};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// DEBUG can crash or stall a server; no setting here turns it on.
pub(crate) const DEBUG_REFUSED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option \
    is set to \"local\", you can run it from a local connection, otherwise you need to set this option in \
    the configuration file, and then restart the server.";

pub(crate) fn debug(ctx: &mut Context<'_>) {
    ctx.reply.error(DEBUG_REFUSED);
}

pub(crate) fn time(ctx: &mut Context<'_>) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    ctx.reply.array(2);
    ctx.reply.bulk(now.as_secs().to_string().as_bytes());
    ctx.reply.bulk(now.subsec_micros().to_string().as_bytes());
}

/// Every shutdown saves and waits, whatever the option: all data is always durable.
pub(crate) fn shutdown(ctx: &mut Context<'_>) {
    let (mut save, mut nosave, mut modifier, mut abort) = (false, false, false, false);
    for word in ctx.args.iter_from(1) {
        match word.to_ascii_lowercase().as_slice() {
            b"save" => save = true,
            b"nosave" => nosave = true,
            b"now" | b"force" => modifier = true,
            b"abort" => abort = true,
            _ => return ctx.reply.error("ERR syntax error"),
        }
    }
    if (save && nosave) || (abort && (save || nosave || modifier)) {
        return ctx.reply.error("ERR syntax error");
    }
    if abort {
        return ctx.reply.error("ERR No shutdown in progress.");
    }
    tracing::info!(client = %ctx.client.peer.address, "SHUTDOWN was asked for");
    // The closed connection is the answer.
    ctx.client.close_after_reply = true;
    ctx.shared.begin_shutdown();
}

/// There are no replicas, so there is nothing to wait for.
pub(crate) fn wait(ctx: &mut Context<'_>) {
    if parse_i64(ctx.args.get(1)).is_none() {
        return ctx
            .reply
            .error("ERR value is not an integer or out of range");
    }
    if timeout(ctx, 2).is_some() {
        ctx.reply.integer(0);
    }
}

/// Replies leave only when every earlier acknowledged write is durable. With `--durability always`, or on
/// persistent memory, this one therefore just takes its turn; otherwise it waits for a sync.
pub(crate) fn waitaof(ctx: &mut Context<'_>) {
    let numbers = (parse_i64(ctx.args.get(1)), parse_i64(ctx.args.get(2)));
    let local = match numbers {
        (Some(local @ 0..=1), Some(replicas)) if replicas >= 0 => local,
        (Some(_), Some(replicas)) if replicas < 0 => {
            return ctx
                .reply
                .error("ERR value is out of range, must be positive");
        }
        (Some(_), Some(_)) => {
            return ctx
                .reply
                .error("ERR value is out of range, must be between 0 and 1");
        }
        _ => {
            return ctx
                .reply
                .error("ERR value is not an integer or out of range");
        }
    };
    let Some(timeout) = timeout(ctx, 3) else {
        return;
    };
    let report = &ctx.shared.report;
    let acknowledged_is_durable =
        report.medium != Medium::File || report.durability == Durability::Always;
    if local == 0 || acknowledged_is_durable || ctx.client.is_in_exec {
        return write_waitaof(&mut ctx.reply, i64::from(acknowledged_is_durable));
    }
    let request = SyncRequest {
        worker: ctx.client.peer.worker,
        client: ctx.client.id,
    };
    if ctx.shared.request_sync(request) {
        ctx.client.awaiting_sync = Some((!timeout.is_zero()).then(|| Instant::now() + timeout));
    } else {
        write_waitaof(&mut ctx.reply, 0);
    }
}

/// The reply to WAITAOF: whether this server, and how many replicas, made the writes durable.
pub(crate) fn write_waitaof(reply: &mut Reply<'_>, local: i64) {
    reply.array(2);
    reply.integer(local);
    reply.integer(0);
}

/// A timeout in milliseconds, 0 = none. `None`: an error has been answered.
fn timeout(ctx: &mut Context<'_>, index: usize) -> Option<Duration> {
    let Some(milliseconds) = parse_i64(ctx.args.get(index)) else {
        ctx.reply
            .error("ERR timeout is not an integer or out of range");
        return None;
    };
    let Ok(milliseconds) = u64::try_from(milliseconds) else {
        ctx.reply.error("ERR timeout is negative");
        return None;
    };
    // Longer than anyone waits, and short enough for the clock.
    Some(Duration::from_millis(milliseconds.min(1 << 40)))
}
