//! From a parsed request to its handler: the checks that all commands share.
//!
//! In Redis' order: the command exists, has enough arguments, is allowed before AUTH, is allowed in a
//! transaction; in a transaction it is then queued. A refusal here makes the whole transaction fail.

use crate::command::{self, Command, Unknown};
use crate::connection::client::ReplyMode;
use crate::context::Context;
use crate::request::args::Args;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes that an error message repeats of a name, and of all arguments together.
const REPEATED_BYTES_MAX: usize = 128;
/// Most keys that a connection may watch; each is compared with the others.
const WATCHED_KEYS_MAX: usize = 10_000;

/// The outcome of a request.
pub(crate) enum Outcome {
    /// The handler of this command has run.
    Executed(u32, &'static Command),
    /// It waits for EXEC.
    Queued,
    /// It was refused; the number of its command, if there is one.
    Refused(Option<u32>),
}

/// Executes, queues or refuses a request, and writes its reply.
pub(crate) fn dispatch(ctx: &mut Context<'_>) -> Outcome {
    let start = ctx.reply.position();
    let outcome = decide(ctx);
    silence(ctx, start);
    outcome
}

fn decide(ctx: &mut Context<'_>) -> Outcome {
    if is_http(ctx.args.get(0)) {
        tracing::warn!(
            client = %ctx.client.peer.address,
            "closed a connection that speaks HTTP: it may be an attack through a browser"
        );
        ctx.client.close_now = true;
        return Outcome::Refused(None);
    }
    let (number, command) = match command::resolve(&ctx.args) {
        Ok(found) => found,
        Err(unknown) => {
            let text = unknown_text(&ctx.args, &unknown);
            return refuse(ctx, None, &text);
        }
    };
    if let Some(text) = objection(ctx, command) {
        return refuse(ctx, Some((number, command)), text.as_bytes());
    }
    if ctx.client.multi.is_some() && !is_immediate(command.name) {
        return queue(ctx, number);
    }
    ctx.client.peer.command.store(number, Relaxed);
    // A command that waits outside a transaction must not wait inside.
    ctx.client.is_in_exec = command.name == "exec";
    (command.handler)(ctx);
    ctx.client.is_in_exec = false;
    Outcome::Executed(number, command)
}

/// A browser can be made to send these to any port; later lines must not run as commands.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Commands that run at once inside a transaction.
fn is_immediate(name: &str) -> bool {
    matches!(
        name,
        "exec" | "discard" | "multi" | "watch" | "quit" | "reset"
    )
}

/// Why an existing command must not run now.
fn objection(ctx: &Context<'_>, command: &Command) -> Option<String> {
    if !command::check_arity(command, ctx.args.len()) {
        return Some(format!(
            "ERR wrong number of arguments for '{}' command",
            command.name
        ));
    }
    if command.name == "debug" {
        return Some(crate::commands::server::DEBUG_REFUSED.to_owned());
    }
    if !ctx.client.authenticated && !command.has_flag("no_auth") {
        return Some("NOAUTH Authentication required.".to_owned());
    }
    if ctx.client.multi.is_some() && command.has_flag("no_multi") {
        return Some("ERR Command not allowed inside a transaction".to_owned());
    }
    if command.name == "watch" && ctx.client.watched.len() + ctx.args.len() > WATCHED_KEYS_MAX {
        return Some(format!(
            "ERR too many watched keys (maximum {WATCHED_KEYS_MAX})"
        ));
    }
    None
}

fn refuse(ctx: &mut Context<'_>, command: Option<(u32, &Command)>, text: &[u8]) -> Outcome {
    if let Some(multi) = ctx.client.multi.as_mut() {
        multi.aborted = true;
    }
    if command.is_some_and(|(_, command)| command.name == "exec") {
        // An EXEC that cannot run still ends the transaction.
        ctx.client.multi = None;
        ctx.client.multi_bytes = 0;
        ctx.client.watched.clear();
        let reason = text.strip_prefix(b"ERR ").unwrap_or(text);
        let mut whole = b"EXECABORT Transaction discarded because of: ".to_vec();
        whole.extend_from_slice(reason);
        ctx.reply.error_bytes(&whole);
    } else {
        ctx.reply.error_bytes(text);
    }
    Outcome::Refused(command.map(|(number, _)| number))
}

fn unknown_text(args: &Args<'_>, unknown: &Unknown) -> Vec<u8> {
    let mut text = Vec::new();
    match unknown {
        Unknown::Command => {
            text.extend_from_slice(b"ERR unknown command '");
            text.extend_from_slice(front(args.get(0), REPEATED_BYTES_MAX));
            text.extend_from_slice(b"', with args beginning with: ");
            let mut repeated = 0;
            for argument in args.iter_from(1) {
                if repeated >= REPEATED_BYTES_MAX {
                    break;
                }
                let piece = front(argument, REPEATED_BYTES_MAX - repeated);
                text.push(b'\'');
                text.extend_from_slice(piece);
                text.extend_from_slice(b"' ");
                repeated += piece.len() + 3;
            }
        }
        Unknown::Subcommand => {
            text.extend_from_slice(b"ERR unknown subcommand '");
            text.extend_from_slice(front(args.get(1), REPEATED_BYTES_MAX));
            text.extend_from_slice(b"'. Try ");
            text.extend(args.get(0).iter().map(u8::to_ascii_uppercase));
            text.extend_from_slice(b" HELP.");
        }
    }
    text
}

fn front(bytes: &[u8], count: usize) -> &[u8] {
    bytes.get(..count).unwrap_or(bytes)
}

fn queue(ctx: &mut Context<'_>, number: u32) -> Outcome {
    let request: Vec<Vec<u8>> = ctx.args.iter_from(0).map(<[u8]>::to_vec).collect();
    // The vectors count, too: many empty arguments are not free.
    let bytes: usize = request
        .iter()
        .map(|argument| argument.len() + size_of::<Vec<u8>>())
        .sum();
    let limit = ctx.shared.config.query_buffer_bytes.load(Relaxed);
    if ctx.client.multi_bytes.saturating_add(bytes) > limit {
        if let Some(multi) = ctx.client.multi.as_mut() {
            multi.queued = Vec::new();
            multi.aborted = true;
        }
        ctx.client.multi_bytes = 0;
        ctx.reply
            .error("ERR the transaction is too large; raise client-query-buffer-limit or split it");
        return Outcome::Refused(Some(number));
    }
    ctx.client.multi_bytes += bytes;
    if let Some(multi) = ctx.client.multi.as_mut() {
        // A transaction that will fail needs no queue.
        if !multi.aborted {
            multi.queued.push(request);
        }
    }
    ctx.reply.simple("QUEUED");
    Outcome::Queued
}

/// Removes the reply if CLIENT REPLY asked for silence.
fn silence(ctx: &mut Context<'_>, start: usize) {
    ctx.client.reply_mode = match ctx.client.reply_mode {
        ReplyMode::On => return,
        ReplyMode::Off => ReplyMode::Off,
        ReplyMode::SkipNext => ReplyMode::Skip,
        ReplyMode::Skip => ReplyMode::On,
    };
    ctx.reply.take_back_to(start);
}
