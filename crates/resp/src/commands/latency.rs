//! LATENCY: how long commands take. Execution times are kept for each command. Event samples are not; the
//! replies are those of Redis with its latency monitor off.

use super::help as write_help;
use crate::command::{self, Command};
use crate::context::Context;
use crate::server::statistics::{CallSums, sum_calls};

pub(crate) fn latest(ctx: &mut Context<'_>) {
    ctx.reply.array(0);
}

pub(crate) fn history(ctx: &mut Context<'_>) {
    ctx.reply.array(0);
}

pub(crate) fn reset(ctx: &mut Context<'_>) {
    ctx.reply.integer(0);
}

pub(crate) fn graph(ctx: &mut Context<'_>) {
    let text = [
        b"ERR No samples available for event '".as_slice(),
        ctx.args.get(2),
        b"'",
    ]
    .concat();
    ctx.reply.error_bytes(&text);
}

pub(crate) fn doctor(ctx: &mut Context<'_>) {
    let report = &ctx.shared.report;
    let text = format!(
        "No events are monitored. Making one small write durable took {} microseconds (median) when the \
         pool was opened, on medium {}, by {}. LATENCY HISTOGRAM has the execution times of commands; \
         the wait for durability comes on top.\n",
        report.latency.as_micros(),
        report.medium,
        report.persist
    );
    ctx.reply.verbatim("txt", &text);
}

pub(crate) fn histogram(ctx: &mut Context<'_>) {
    let mut numbers: Vec<u32> = Vec::new();
    if ctx.args.len() == 2 {
        numbers.extend(0..command::COUNT as u32);
    }
    for name in ctx.args.iter_from(2) {
        let Some(wanted) = command::lookup_full(name) else {
            continue;
        };
        let is_wanted = |found: &&Command| {
            found.name == wanted.name
                || wanted
                    .subcommands
                    .iter()
                    .any(|subcommand| subcommand.name == found.name)
        };
        let all = 0..command::COUNT as u32;
        numbers.extend(
            all.filter(|&number| command::by_number(number).as_ref().is_some_and(is_wanted)),
        );
    }
    let statistics = || {
        ctx.shared
            .mailboxes()
            .iter()
            .map(|mailbox| &mailbox.statistics)
    };
    let sums: Vec<(&str, CallSums)> = numbers
        .into_iter()
        .filter_map(|number| {
            Some((
                command::by_number(number)?.name,
                sum_calls(statistics(), number),
            ))
        })
        .filter(|(_, sums)| sums.calls > 0)
        .collect();
    ctx.reply.map(sums.len());
    for (name, sums) in &sums {
        ctx.reply.bulk(name.as_bytes());
        write_histogram(ctx, sums);
    }
}

fn write_histogram(ctx: &mut Context<'_>, sums: &CallSums) {
    let filled = sums
        .times
        .iter()
        .enumerate()
        .filter(|&(_, &count)| count > 0);
    let reply = &mut ctx.reply;
    reply.map(2);
    reply.bulk(b"calls");
    reply.integer(i64::try_from(sums.calls).unwrap_or(i64::MAX));
    reply.bulk(b"histogram_usec");
    reply.map(filled.clone().count());
    let mut cumulative = 0;
    for (bucket, count) in filled {
        cumulative += count;
        reply.integer(1 << bucket);
        reply.integer(i64::try_from(cumulative).unwrap_or(i64::MAX));
    }
}

pub(crate) fn help(ctx: &mut Context<'_>) {
    let lines = [
        "DOCTOR",
        "    What making a write durable costs here.",
        "GRAPH <event>",
        "    Always without samples: events are not monitored.",
        "HISTORY <event>",
        "    Always empty: events are not monitored.",
        "LATEST",
        "    Always empty: events are not monitored.",
        "RESET [<event> ...]",
        "    Accepted: there is nothing to forget.",
        "HISTOGRAM [COMMAND ...]",
        "    Cumulative distribution of execution times in microseconds.",
    ];
    write_help(&mut ctx.reply, "LATENCY", &lines);
}
