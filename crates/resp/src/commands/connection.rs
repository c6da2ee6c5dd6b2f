//! Commands about the connection itself: protocol, authentication, greeting, closing.

use crate::context::Context;
use crate::request::number::parse_i64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The Redis version whose replies these are.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
/// How long a connection executes nothing after a wrong password, to slow down guessing.
const PAUSE_AFTER_WRONG_PASSWORD: Duration = Duration::from_millis(100);
/// Longest name of a connection; CLIENT LIST shows all names.
const NAME_BYTES_MAX: usize = 64 * 1024;

pub(crate) fn ping(ctx: &mut Context<'_>) {
    match ctx.args.len() {
        1 => ctx.reply.simple("PONG"),
        2 => ctx.reply.bulk(ctx.args.get(1)),
        _ => ctx
            .reply
            .error("ERR wrong number of arguments for 'ping' command"),
    }
}

pub(crate) fn echo(ctx: &mut Context<'_>) {
    ctx.reply.bulk(ctx.args.get(1));
}

pub(crate) fn select(ctx: &mut Context<'_>) {
    match parse_i64(ctx.args.get(1)) {
        Some(0) => ctx.reply.ok(),
        Some(index) if i32::try_from(index).is_ok() => {
            ctx.reply.error("ERR DB index is out of range")
        }
        Some(_) => ctx
            .reply
            .error("ERR value is out of range, value must between -2147483648 and 2147483647"),
        None => ctx
            .reply
            .error("ERR value is not an integer or out of range"),
    }
}

pub(crate) fn quit(ctx: &mut Context<'_>) {
    ctx.client.close_after_reply = true;
    ctx.reply.ok();
}

pub(crate) fn reset(ctx: &mut Context<'_>) {
    ctx.client.reset(!ctx.shared.config.password.is_set());
    ctx.reply.switch(false);
    ctx.reply.simple("RESET");
}

pub(crate) fn auth(ctx: &mut Context<'_>) {
    let (user, password): (&[u8], _) = match ctx.args.len() {
        2 => (b"default", ctx.args.get(1)),
        3 => (ctx.args.get(1), ctx.args.get(2)),
        _ => return ctx.reply.error("ERR syntax error"),
    };
    if ctx.args.len() == 2 && !ctx.shared.config.password.is_set() {
        return ctx.reply.error(
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        );
    }
    if authenticate(ctx, user, password) {
        ctx.reply.ok();
    } else {
        ctx.reply.error(WRONG_PASSWORD);
    }
}

/// There is one user. The password is compared in any case, so that the time reveals nothing about names.
fn authenticate(ctx: &mut Context<'_>, user: &[u8], password: &[u8]) -> bool {
    let accepted = ctx.shared.config.password.accepts(password) & (user == b"default");
    if accepted {
        ctx.client.authenticated = true;
    } else {
        ctx.client.paused_until = Some(Instant::now() + PAUSE_AFTER_WRONG_PASSWORD);
        ctx.shared.wrong_passwords.fetch_add(1, Relaxed);
        tracing::warn!(client = %ctx.client.peer.address, "wrong password");
    }
    accepted
}

/// The options of HELLO besides the protocol.
#[derive(Default)]
struct Greeting<'a> {
    credentials: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

pub(crate) fn hello(ctx: &mut Context<'_>) {
    let mut protocol = None;
    if ctx.args.len() > 1 {
        match parse_i64(ctx.args.get(1)) {
            Some(version @ (2 | 3)) => protocol = Some(version == 3),
            Some(_) => return ctx.reply.error("NOPROTO unsupported protocol version"),
            None => {
                return ctx
                    .reply
                    .error("ERR Protocol version is not an integer or out of range");
            }
        }
    }
    let greeting = match parse_greeting(ctx) {
        Ok(greeting) => greeting,
        Err(option) => {
            let text = [
                b"ERR Syntax error in HELLO option '".as_slice(),
                option,
                b"'",
            ]
            .concat();
            return ctx.reply.error_bytes(&text);
        }
    };
    if let Some((user, password)) = greeting.credentials
        && !authenticate(ctx, user, password)
    {
        return ctx.reply.error(WRONG_PASSWORD);
    }
    if !ctx.client.authenticated {
        return ctx.reply.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
             <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
             RESP protocol version at the same time",
        );
    }
    if greeting.name.is_some_and(|name| !set_name(ctx, name)) {
        return ctx.reply.error(BAD_NAME);
    }
    if let Some(resp3) = protocol {
        ctx.client.resp3 = resp3;
        ctx.client.peer.resp3.store(resp3, Relaxed);
        ctx.reply.switch(resp3);
    }
    greet(ctx);
}

/// `Err`: the option that is unknown or lacks its arguments.
fn parse_greeting<'a>(ctx: &Context<'a>) -> Result<Greeting<'a>, &'a [u8]> {
    let args = ctx.args;
    let mut greeting = Greeting::default();
    let mut at = 2;
    while at < args.len() {
        let option = args.get(at);
        let more = args.len() - at - 1;
        if option.eq_ignore_ascii_case(b"auth") && more >= 2 {
            greeting.credentials = Some((args.get(at + 1), args.get(at + 2)));
            at += 3;
        } else if option.eq_ignore_ascii_case(b"setname") && more >= 1 {
            greeting.name = Some(args.get(at + 1));
            at += 2;
        } else {
            return Err(option);
        }
    }
    Ok(greeting)
}

fn greet(ctx: &mut Context<'_>) {
    let id = i64::try_from(ctx.client.id).unwrap_or(i64::MAX);
    let protocol = if ctx.client.resp3 { 3 } else { 2 };
    let reply = &mut ctx.reply;
    reply.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in [("proto", protocol), ("id", id)] {
        reply.bulk(name.as_bytes());
        reply.integer(value);
    }
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

/// Names the connection; `false` if the name is not allowed.
pub(crate) fn set_name(ctx: &mut Context<'_>, name: &[u8]) -> bool {
    let fine = is_plain(name) && name.len() <= NAME_BYTES_MAX;
    if fine {
        ctx.client.peer.names.lock().name = name.to_vec();
    }
    fine
}

/// CLIENT LIST separates names by spaces, so names are printable and have none.
pub(crate) fn is_plain(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_graphic)
}
