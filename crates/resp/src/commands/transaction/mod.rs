//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC runs the queued commands inside one transaction of the engine: other clients see all of their writes
//! or none, also across a crash. Commands on keys run under the transaction's locks; commands about the
//! connection or the server run after it, when their replies are due. As in Redis, a command that answers an
//! error does not stop the others. Only replies beyond the output limit undo the whole transaction.

mod queue;

use crate::connection::client::Multi;
use crate::context::Context;
use crate::keyspace::{Demand, Keyspace};
use crate::reply::Reply;
use everdram::Error;
use queue::{Entry, Queue};

pub(crate) fn multi(ctx: &mut Context<'_>) {
    if ctx.client.multi.is_some() {
        return ctx.reply.error("ERR MULTI calls can not be nested");
    }
    ctx.client.multi = Some(Multi::default());
    ctx.client.multi_bytes = 0;
    ctx.reply.ok();
}

pub(crate) fn discard(ctx: &mut Context<'_>) {
    if ctx.client.multi.is_none() {
        return ctx.reply.error("ERR DISCARD without MULTI");
    }
    leave(ctx);
    ctx.reply.ok();
}

pub(crate) fn watch(ctx: &mut Context<'_>) {
    if ctx.client.multi.is_some() {
        return ctx.reply.error("ERR WATCH inside MULTI is not allowed");
    }
    for key in ctx.args.iter_from(1) {
        if ctx.client.watched.iter().any(|(watched, _)| watched == key) {
            continue;
        }
        match ctx.keys.watch(key) {
            Ok(number) => ctx.client.watched.push((key.to_vec(), number)),
            Err(error) => return ctx.fail(&error),
        }
    }
    ctx.reply.ok();
}

pub(crate) fn unwatch(ctx: &mut Context<'_>) {
    ctx.client.watched.clear();
    ctx.reply.ok();
}

pub(crate) fn exec(ctx: &mut Context<'_>) {
    if ctx.client.multi.is_none() {
        return ctx.reply.error("ERR EXEC without MULTI");
    }
    let (multi, watched) = leave(ctx);
    if multi.aborted {
        return ctx
            .reply
            .error("EXECABORT Transaction discarded because of previous errors.");
    }
    let queue = Queue::new(multi.queued);
    let Some(answers) = run_on_keys(ctx, &queue, &watched) else {
        return;
    };
    let (start, bytes_max) = (ctx.reply.position(), ctx.reply_bytes_max());
    ctx.reply.array(queue.entries.len());
    for (index, entry) in queue.entries.iter().enumerate() {
        if entry.is_on_keys {
            ctx.reply.raw(answers.get(index));
        } else {
            run_on_connection(ctx, entry);
        }
        if ctx.reply.position() - start > bytes_max {
            // The writes stay, so the answer cannot be an error.
            ctx.client.close_now = true;
            return;
        }
    }
}

/// Ends the transaction of the connection.
fn leave(ctx: &mut Context<'_>) -> (Multi, Vec<(Vec<u8>, u64)>) {
    ctx.client.multi_bytes = 0;
    (
        ctx.client.multi.take().unwrap_or_default(),
        std::mem::take(&mut ctx.client.watched),
    )
}

/// Replies of the queued commands, in order.
#[derive(Default)]
struct Answers {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Answers {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = index
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .copied()
            .unwrap_or(0);
        let end = self.ends.get(index).copied().unwrap_or(start);
        self.bytes.get(start..end).unwrap_or_default()
    }
}

/// Runs the queued commands on keys in one transaction. On failure answers EXEC itself: null if a watched key
/// was written, an error if the store refused.
fn run_on_keys(
    ctx: &mut Context<'_>,
    queue: &Queue,
    watched: &[(Vec<u8>, u64)],
) -> Option<Answers> {
    let mut answers = Answers::default();
    if watched.is_empty() && !queue.entries.iter().any(|entry| entry.is_on_keys) {
        return Some(answers);
    }
    let keys = queue.keys(watched);
    let demand = Demand {
        keys: &keys,
        any_key: queue.touches_any_key(),
        watched,
    };
    let bytes_max = ctx.reply_bytes_max();
    let mut too_large = false;
    let (client, shared, now_ms, resp3) = (
        &mut *ctx.client,
        ctx.shared,
        ctx.now_ms,
        ctx.reply.is_resp3(),
    );
    let outcome = ctx
        .keys
        .atomically(&demand, &mut |inside: &mut dyn Keyspace| {
            answers.clear();
            for entry in &queue.entries {
                if entry.is_on_keys {
                    let reply = Reply::new(&mut answers.bytes, resp3);
                    run(
                        entry,
                        Context {
                            args: entry.args(),
                            keys: inside,
                            reply,
                            client,
                            shared,
                            now_ms,
                        },
                    );
                }
                answers.ends.push(answers.bytes.len());
                too_large = answers.bytes.len() > bytes_max;
                if too_large {
                    return Err(Error::Condition);
                }
            }
            Ok(())
        });
    match outcome {
        Ok(true) => return Some(answers),
        Ok(false) if too_large => {
            answers.clear();
            ctx.refuse_too_large();
        }
        Ok(false) => ctx.reply.null_array(),
        Err(error) => ctx.fail(&error),
    }
    None
}

fn run_on_connection(ctx: &mut Context<'_>, entry: &Entry) {
    let (shared, now_ms, resp3) = (ctx.shared, ctx.now_ms, ctx.client.resp3);
    let mut answer = Vec::new();
    run(
        entry,
        Context {
            args: entry.args(),
            keys: ctx.keys,
            reply: Reply::new(&mut answer, resp3),
            client: ctx.client,
            shared,
            now_ms,
        },
    );
    ctx.reply.raw(&answer);
    // HELLO changes the protocol of the replies after it.
    ctx.reply.switch(ctx.client.resp3);
}

fn run(entry: &Entry, mut ctx: Context<'_>) {
    match entry.command {
        Some(command) => (command.handler)(&mut ctx),
        // Only known commands are queued.
        None => ctx.reply.error("ERR unknown command"),
    }
}
