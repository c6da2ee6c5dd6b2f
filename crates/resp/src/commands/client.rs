//! CLIENT: lists connections, configures this one, and closes others.

use super::connection::{is_plain, set_name};
use super::help as write_help;
use crate::command;
use crate::connection::client::ReplyMode;
use crate::connection::peer::Peer;
use crate::context::Context;
use crate::request::number::parse_i64;
use crate::server::worker::Message;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) fn id(ctx: &mut Context<'_>) {
    ctx.reply
        .integer(i64::try_from(ctx.client.id).unwrap_or(i64::MAX));
}

pub(crate) fn info(ctx: &mut Context<'_>) {
    let mut text = Vec::new();
    describe(&ctx.client.peer, &mut text);
    ctx.reply.verbatim_bytes("txt", &text);
}

pub(crate) fn getname(ctx: &mut Context<'_>) {
    let name = ctx.client.peer.names.lock().name.clone();
    if name.is_empty() {
        ctx.reply.null()
    } else {
        ctx.reply.bulk(&name)
    }
}

pub(crate) fn setname(ctx: &mut Context<'_>) {
    let name = ctx.args.get(2);
    if set_name(ctx, name) {
        ctx.reply.ok();
    } else {
        ctx.reply
            .error("ERR Client names cannot contain spaces, newlines or special characters.");
    }
}

pub(crate) fn setinfo(ctx: &mut Context<'_>) {
    let (what, value) = (ctx.args.get(2), ctx.args.get(3));
    let lower = what.to_ascii_lowercase();
    if lower != b"lib-name" && lower != b"lib-ver" {
        let text = [b"ERR Unrecognized option '".as_slice(), what, b"'"].concat();
        return ctx.reply.error_bytes(&text);
    }
    if !is_plain(value) {
        let reason = b" cannot contain spaces, newlines or special characters.";
        return ctx
            .reply
            .error_bytes(&[b"ERR ".as_slice(), &lower, reason].concat());
    }
    let mut names = ctx.client.peer.names.lock();
    if lower == b"lib-name" {
        names.library = value.to_vec();
    } else {
        names.library_version = value.to_vec();
    }
    ctx.reply.ok();
}

pub(crate) fn reply(ctx: &mut Context<'_>) {
    let mode = ctx.args.get(2).to_ascii_lowercase();
    ctx.client.reply_mode = match (mode.as_slice(), ctx.client.reply_mode) {
        (b"on", _) => ReplyMode::On,
        (b"off", _) | (b"skip", ReplyMode::Off) => ReplyMode::Off,
        (b"skip", _) => ReplyMode::SkipNext,
        _ => return ctx.reply.error("ERR syntax error"),
    };
    // Off and skip silence this reply, like every other.
    ctx.reply.ok();
}

pub(crate) fn no_evict(ctx: &mut Context<'_>) {
    if let Some(on) = on_or_off(ctx) {
        ctx.client.peer.no_evict.store(on, Relaxed);
    }
}

pub(crate) fn no_touch(ctx: &mut Context<'_>) {
    if let Some(on) = on_or_off(ctx) {
        ctx.client.peer.no_touch.store(on, Relaxed);
    }
}

fn on_or_off(ctx: &mut Context<'_>) -> Option<bool> {
    let word = ctx.args.get(2);
    let on = word.eq_ignore_ascii_case(b"on");
    if on || word.eq_ignore_ascii_case(b"off") {
        ctx.reply.ok();
        return Some(on);
    }
    ctx.reply.error("ERR syntax error");
    None
}

/// Checked, and without effect: nothing here requires clients to pause.
pub(crate) fn pause(ctx: &mut Context<'_>) {
    let mode = ctx.args.get(3);
    let known = mode.eq_ignore_ascii_case(b"write") || mode.eq_ignore_ascii_case(b"all");
    if ctx.args.len() > 3 && !known {
        return ctx
            .reply
            .error("ERR CLIENT PAUSE mode must be WRITE or ALL");
    }
    match parse_i64(ctx.args.get(2)) {
        None => ctx
            .reply
            .error("ERR timeout is not an integer or out of range"),
        Some(timeout) if timeout < 0 => ctx.reply.error("ERR timeout is negative"),
        Some(_) => ctx.reply.ok(),
    }
}

pub(crate) fn unpause(ctx: &mut Context<'_>) {
    ctx.reply.ok();
}

/// Whether a client of type `name` is an ordinary one, as all are here; `None` if there is no such type.
fn is_normal_type(name: &[u8]) -> Option<bool> {
    match name.to_ascii_lowercase().as_slice() {
        b"normal" => Some(true),
        b"master" | b"slave" | b"replica" | b"pubsub" => Some(false),
        _ => None,
    }
}

fn unknown_type(ctx: &mut Context<'_>, name: &[u8]) {
    ctx.reply
        .error_bytes(&[b"ERR Unknown client type '".as_slice(), name, b"'"].concat());
}

pub(crate) fn list(ctx: &mut Context<'_>) {
    let args = ctx.args;
    let mut shown: Box<dyn Fn(&Peer) -> bool> = Box::new(|_| true);
    if args.len() == 4 && args.get(2).eq_ignore_ascii_case(b"type") {
        match is_normal_type(args.get(3)) {
            Some(normal) => shown = Box::new(move |_| normal),
            None => return unknown_type(ctx, args.get(3)),
        }
    } else if args.len() > 3 && args.get(2).eq_ignore_ascii_case(b"id") {
        let ids: Option<Vec<i64>> = args.iter_from(3).map(parse_i64).collect();
        match ids {
            Some(ids) => shown = Box::new(move |peer| ids.contains(&(peer.id as i64))),
            None => return ctx.reply.error("ERR Invalid client ID"),
        }
    } else if args.len() != 2 {
        return ctx.reply.error("ERR syntax error");
    }
    let mut text = Vec::new();
    for peer in ctx.shared.peers().iter().filter(|peer| shown(peer)) {
        describe(peer, &mut text);
    }
    ctx.reply.verbatim_bytes("txt", &text);
}

/// Appends the line of CLIENT LIST and CLIENT INFO, with its line break.
fn describe(peer: &Peer, into: &mut Vec<u8>) {
    let (age, idle) = peer.age_and_idle_s();
    let names = peer.names.lock().clone();
    let (output, output_room) = (
        peer.output_bytes.load(Relaxed),
        peer.output_room.load(Relaxed),
    );
    let (query, room) = (
        peer.query_bytes.load(Relaxed),
        peer.query_room.load(Relaxed),
    );
    let command =
        command::by_number(peer.command.load(Relaxed)).map_or("NULL", |command| command.name);
    let mut text = format!(
        "id={} addr={} laddr={} fd={} name=",
        peer.id, peer.address, peer.local_address, peer.descriptor
    );
    into.extend_from_slice(text.as_bytes());
    into.extend_from_slice(&names.name);
    text.clear();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        " age={age} idle={idle} flags={} db=0 sub=0 psub=0 ssub=0 multi={} qbuf={query} \
         qbuf-free={room} argv-mem=0 multi-mem=0 rbs={} rbp={} obl={output} oll=0 omem={output} \
         tot-mem={} events=rw cmd={command} user=default redir=-1 resp={} lib-name=",
        peer.flags(),
        peer.queued.load(Relaxed),
        output + output_room,
        output + output_room,
        query + room + output + output_room,
        if peer.resp3.load(Relaxed) { 3 } else { 2 },
    );
    into.extend_from_slice(text.as_bytes());
    into.extend_from_slice(&names.library);
    into.extend_from_slice(b" lib-ver=");
    into.extend_from_slice(&names.library_version);
    into.push(b'\n');
}

/// The connections to close.
struct Target<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    normal: bool,
    spare_self: bool,
}

impl Target<'_> {
    fn includes(&self, peer: &Peer, own_id: u64) -> bool {
        self.normal
            && self.id.is_none_or(|id| id == peer.id)
            && self
                .address
                .is_none_or(|address| address == peer.address.as_bytes())
            && self
                .local_address
                .is_none_or(|address| address == peer.local_address.as_bytes())
            && !(self.spare_self && peer.id == own_id)
    }
}

pub(crate) fn kill(ctx: &mut Context<'_>) {
    let mut target = Target {
        id: None,
        address: None,
        local_address: None,
        normal: true,
        spare_self: true,
    };
    if ctx.args.len() == 3 {
        target.address = Some(ctx.args.get(2));
        target.spare_self = false;
        match kill_all(ctx, &target) {
            0 => ctx.reply.error("ERR No such client"),
            _ => ctx.reply.ok(),
        }
    } else if parse_target(ctx, &mut target) {
        let count = kill_all(ctx, &target);
        ctx.reply.integer(count);
    }
}

/// Parses filters; `false`: an error has been answered.
fn parse_target<'a>(ctx: &mut Context<'a>, target: &mut Target<'a>) -> bool {
    let args = ctx.args;
    for at in (2..args.len()).step_by(2) {
        let value = args.get(at + 1);
        let lower = value.to_ascii_lowercase();
        match args.get(at).to_ascii_lowercase().as_slice() {
            _ if at + 1 >= args.len() => return refuse_syntax(ctx),
            b"id" => match parse_i64(value).and_then(|id| u64::try_from(id).ok()) {
                Some(id) if id > 0 => target.id = Some(id),
                _ => {
                    ctx.reply.error("ERR client-id should be greater than 0");
                    return false;
                }
            },
            b"type" => match is_normal_type(value) {
                Some(normal) => target.normal = normal,
                None => {
                    unknown_type(ctx, value);
                    return false;
                }
            },
            b"addr" => target.address = Some(value),
            b"laddr" => target.local_address = Some(value),
            b"user" if value == b"default" => {}
            b"user" => {
                ctx.reply
                    .error_bytes(&[b"ERR No such user '".as_slice(), value, b"'"].concat());
                return false;
            }
            b"skipme" if lower == b"yes" => target.spare_self = true,
            b"skipme" if lower == b"no" => target.spare_self = false,
            _ => return refuse_syntax(ctx),
        }
    }
    true
}

fn refuse_syntax(ctx: &mut Context<'_>) -> bool {
    ctx.reply.error("ERR syntax error");
    false
}

fn kill_all(ctx: &mut Context<'_>, target: &Target<'_>) -> i64 {
    let own_id = ctx.client.id;
    let killed: Vec<Arc<Peer>> = ctx
        .shared
        .peers()
        .into_iter()
        .filter(|peer| target.includes(peer, own_id))
        .collect();
    for peer in &killed {
        if peer.id == own_id {
            // This connection still gets the reply.
            ctx.client.close_after_reply = true;
        } else {
            peer.killed.store(true, Relaxed);
        }
    }
    for worker in 0..ctx.shared.mailboxes().len() {
        if killed
            .iter()
            .any(|peer| peer.worker == worker && peer.id != own_id)
        {
            ctx.shared.send(worker, Message::Killed);
        }
    }
    killed.len() as i64
}

pub(crate) fn help(ctx: &mut Context<'_>) {
    let lines = [
        "GETNAME",
        "    This connection's name.",
        "ID",
        "    This connection's number.",
        "INFO",
        "    This connection, in the form of LIST.",
        "KILL <ip:port>",
        "    Close the connection made from there.",
        "KILL <option> <value> [<option> <value> [...]]",
        "    Close connections by ID, ADDR, LADDR, TYPE, USER; SKIPME (YES|NO) spares this one (default: yes).",
        "LIST [TYPE <type> | ID <id> [<id> ...]]",
        "    The open connections.",
        "NO-EVICT (ON|OFF)",
        "    Accepted: connections are not evicted here.",
        "NO-TOUCH (ON|OFF)",
        "    Accepted: reading does not change a key here.",
        "PAUSE <timeout> [WRITE|ALL]",
        "    Accepted: nothing pauses here.",
        "REPLY (ON|OFF|SKIP)",
        "    Whether this connection gets replies.",
        "SETINFO (LIB-NAME|LIB-VER) <value>",
        "    Note which library the client uses.",
        "SETNAME <name>",
        "    Name this connection.",
        "UNPAUSE",
        "    Accepted: nothing pauses here.",
    ];
    write_help(&mut ctx.reply, "CLIENT", &lines);
}
