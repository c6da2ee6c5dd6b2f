//! COMMAND: describes this server's commands, from the command table.

use super::help as write_help;
use crate::command::table::COMMANDS;
use crate::command::{self, Command, check_arity, key_positions};
use crate::context::Context;
use crate::reply::Reply;
use crate::request::glob;

/// COMMAND itself; with a subcommand, calls it.
pub(crate) fn command(ctx: &mut Context<'_>) {
    if ctx.args.len() > 1 {
        return command::container(ctx);
    }
    ctx.reply.array(COMMANDS.len());
    for command in COMMANDS {
        describe(&mut ctx.reply, command);
    }
}

pub(crate) fn count(ctx: &mut Context<'_>) {
    ctx.reply.integer(COMMANDS.len() as i64);
}

pub(crate) fn info(ctx: &mut Context<'_>) {
    if ctx.args.len() == 2 {
        ctx.reply.array(COMMANDS.len());
        return COMMANDS
            .iter()
            .for_each(|command| describe(&mut ctx.reply, command));
    }
    let start = ctx.reply.position();
    ctx.reply.array(ctx.args.len() - 2);
    for name in ctx.args.iter_from(2) {
        if ctx.outgrown(start) {
            return;
        }
        match command::lookup_full(name) {
            Some(command) => describe(&mut ctx.reply, command),
            None => ctx.reply.null(),
        }
    }
}

/// The ten elements of one command.
fn describe(reply: &mut Reply<'_>, command: &Command) {
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(i64::from(command.arity));
    simple_set(reply, command.flags);
    for number in [command.first_key, command.last_key, command.step] {
        reply.integer(i64::from(number));
    }
    simple_set(reply, &categories(command));
    reply.set(0);
    describe_keys(reply, command);
    reply.set(command.subcommands.len());
    for subcommand in command.subcommands {
        describe(reply, subcommand);
    }
}

fn simple_set(reply: &mut Reply<'_>, words: &[&str]) {
    reply.set(words.len());
    for word in words {
        reply.simple(word);
    }
}

/// Access categories, in Redis' order: some follow from flags.
fn categories(command: &Command) -> Vec<&'static str> {
    let has = |category: &str| match category {
        "@read" => command.has_flag("readonly"),
        "@write" => command.has_flag("write"),
        "@admin" => command.has_flag("admin"),
        "@fast" => command.has_flag("fast"),
        "@slow" => !command.has_flag("fast"),
        "@dangerous" => command.has_flag("admin") || command.categories.contains(&category),
        other => command.categories.contains(&other),
    };
    let order = [
        "@keyspace",
        "@read",
        "@write",
        "@string",
        "@bitmap",
        "@admin",
        "@fast",
        "@slow",
        "@dangerous",
    ];
    order
        .into_iter()
        .chain(["@connection", "@transaction"])
        .filter(|category| has(category))
        .collect()
}

fn describe_keys(reply: &mut Reply<'_>, command: &Command) {
    reply.set(command.key_uses.len());
    let several = command.key_uses.len() > 1;
    for (index, uses) in command.key_uses.iter().enumerate() {
        // Keys of different use are adjacent.
        let first = i64::from(command.first_key) + index as i64;
        let last = match command.last_key {
            _ if several => 0,
            last if last < 0 => i64::from(last),
            last => i64::from(last) - first,
        };
        reply.map(3);
        reply.bulk(b"flags");
        simple_set(reply, uses);
        reply.bulk(b"begin_search");
        specification(reply, "index", &[("index", first)]);
        reply.bulk(b"find_keys");
        let step = i64::from(command.step);
        specification(
            reply,
            "range",
            &[("lastkey", last), ("keystep", step), ("limit", 0)],
        );
    }
}

fn specification(reply: &mut Reply<'_>, kind: &str, fields: &[(&str, i64)]) {
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(kind.as_bytes());
    reply.bulk(b"spec");
    reply.map(fields.len());
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.integer(*value);
    }
}

pub(crate) fn docs(ctx: &mut Context<'_>) {
    let wanted: Vec<&Command> = if ctx.args.len() == 2 {
        COMMANDS.iter().collect()
    } else {
        ctx.args
            .iter_from(2)
            .filter_map(command::lookup_full)
            .collect()
    };
    let start = ctx.reply.position();
    ctx.reply.map(wanted.len());
    for command in wanted {
        if ctx.outgrown(start) {
            return;
        }
        document(&mut ctx.reply, command);
    }
}

fn document(reply: &mut Reply<'_>, command: &Command) {
    let has_more = !command.subcommands.is_empty();
    reply.bulk(command.name.as_bytes());
    reply.map(if has_more { 5 } else { 4 });
    let fields = [
        ("summary", command.summary),
        ("since", command.since),
        ("group", command.group),
        ("complexity", command.complexity),
    ];
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    if has_more {
        reply.bulk(b"subcommands");
        reply.map(command.subcommands.len());
        for subcommand in command.subcommands {
            document(reply, subcommand);
        }
    }
}

pub(crate) fn list(ctx: &mut Context<'_>) {
    let args = ctx.args;
    let value = args.get(4);
    let all = COMMANDS
        .iter()
        .flat_map(|command| std::iter::once(command).chain(command.subcommands));
    let wanted: Vec<&Command> = match args.len() {
        2 => all.collect(),
        5 if args.get(2).eq_ignore_ascii_case(b"filterby") => {
            match args.get(3).to_ascii_lowercase().as_slice() {
                b"module" => Vec::new(),
                b"aclcat" => all
                    .filter(|command| is_in_category(command, value))
                    .collect(),
                b"pattern" => {
                    let value = value.to_ascii_lowercase();
                    all.filter(|command| glob::matches(&value, command.name.as_bytes()))
                        .collect()
                }
                _ => return ctx.reply.error("ERR syntax error"),
            }
        }
        _ => return ctx.reply.error("ERR syntax error"),
    };
    ctx.reply.set(wanted.len());
    for command in wanted {
        ctx.reply.bulk(command.name.as_bytes());
    }
}

fn is_in_category(command: &Command, name: &[u8]) -> bool {
    categories(command)
        .iter()
        .any(|category| category.as_bytes().get(1..) == Some(name))
}

pub(crate) fn getkeys(ctx: &mut Context<'_>) {
    keys_of(ctx, |reply, _, key| reply.bulk(key));
}

pub(crate) fn getkeysandflags(ctx: &mut Context<'_>) {
    keys_of(ctx, |reply, uses, key| {
        reply.array(2);
        reply.bulk(key);
        simple_set(reply, uses);
    });
}

/// Answers with the keys of the request that follows the subcommand's name.
fn keys_of(ctx: &mut Context<'_>, write: fn(&mut Reply<'_>, &[&str], &[u8])) {
    let args = ctx.args;
    let found = command::lookup(args.get(2)).map(|command| {
        let subcommand = command
            .subcommand(args.get(3))
            .map(|(_, subcommand)| subcommand);
        subcommand.unwrap_or(command)
    });
    let Some(command) = found else {
        return ctx.reply.error("ERR Invalid command specified");
    };
    let arguments = args.len() - 2;
    if command.first_key == 0 {
        return ctx.reply.error("ERR The command has no key arguments");
    }
    if !check_arity(command, arguments) {
        return ctx
            .reply
            .error("ERR Invalid number of arguments specified for command");
    }
    let positions: Vec<usize> = key_positions(command, arguments).collect();
    ctx.reply.array(positions.len());
    for (index, position) in positions.iter().enumerate() {
        // One use for all keys, or one for each.
        let uses = command
            .key_uses
            .get(index)
            .or(command.key_uses.first())
            .copied()
            .unwrap_or(&[]);
        write(&mut ctx.reply, uses, args.get(position + 2));
    }
}

pub(crate) fn help(ctx: &mut Context<'_>) {
    let lines = [
        "(no subcommand)",
        "    All commands, as INFO describes them.",
        "COUNT",
        "    How many commands there are.",
        "DOCS [<command-name> ...]",
        "    What commands do.",
        "GETKEYS <full-command>",
        "    The keys of a request.",
        "GETKEYSANDFLAGS <full-command>",
        "    The keys of a request and what is done to them.",
        "INFO [<command-name> ...]",
        "    Arity, flags and keys of commands.",
        "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
        "    Names of commands.",
    ];
    write_help(&mut ctx.reply, "COMMAND", &lines);
}
