//! SLOWLOG: slow commands, from the log that all connections share.

use super::help as write_help;
use crate::context::Context;
use crate::request::number::parse_i64;

/// Entries of GET without a count.
const ENTRIES: usize = 10;

pub(crate) fn get(ctx: &mut Context<'_>) {
    let count = match ctx.args.len() {
        2 => ENTRIES,
        3 => match parse_i64(ctx.args.get(2)) {
            Some(-1) => usize::MAX,
            Some(count) if count >= 0 => usize::try_from(count).unwrap_or(usize::MAX),
            _ => {
                return ctx
                    .reply
                    .error("ERR count should be greater than or equal to -1");
            }
        },
        _ => {
            let word = ctx.args.get(1);
            let rest = b"'. Try SLOWLOG HELP.";
            let text = [
                b"ERR unknown subcommand or wrong number of arguments for '".as_slice(),
                word,
                rest,
            ];
            return ctx.reply.error_bytes(&text.concat());
        }
    };
    let entries = ctx.shared.slowlog.newest(count);
    let reply = &mut ctx.reply;
    reply.array(entries.len());
    for entry in entries {
        reply.array(6);
        for number in [entry.id, entry.at_s, entry.microseconds] {
            reply.integer(i64::try_from(number).unwrap_or(i64::MAX));
        }
        reply.array(entry.arguments.len());
        for argument in &entry.arguments {
            reply.bulk(argument);
        }
        reply.bulk(entry.address.as_bytes());
        reply.bulk(&entry.name);
    }
}

pub(crate) fn len(ctx: &mut Context<'_>) {
    ctx.reply.integer(ctx.shared.slowlog.len() as i64);
}

pub(crate) fn reset(ctx: &mut Context<'_>) {
    ctx.shared.slowlog.reset();
    ctx.reply.ok();
}

pub(crate) fn help(ctx: &mut Context<'_>) {
    let lines = [
        "GET [<count>]",
        "    The newest slow commands (default: 10, -1 = all): id, Unix time, microseconds, arguments,",
        "    address and name of the client.",
        "LEN",
        "    How many are kept.",
        "RESET",
        "    Forget them.",
    ];
    write_help(&mut ctx.reply, "SLOWLOG", &lines);
}
