//! The part of the page about servers: a row of charts for each load.

use super::chart::{Bar, Chart, Kind};
use super::stores::{latencies, part};
use crate::compare::Line;
use crate::server::{Load, Summary};
use crate::show::words::{bytes, count, rate, time};
use crate::timing::Spread;

/// The section; nothing without servers.
pub(super) fn section(lines: &[Line]) -> String {
    let summaries: Vec<&Summary> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Server { summary, .. } => Some(summary),
            _ => None,
        })
        .collect();
    let Some(first) = summaries.first() else {
        return String::new();
    };
    let loads: String = summaries
        .chunk_by(|one, other| one.load == other.load)
        .map(load)
        .collect();
    let keys = part(
        "DRAM a key",
        "What the server's own memory had grown by when all keys were set. A mapped pool is the medium, and not in it.",
        &memory(&summaries, &first.load),
    );
    format!(
        "<section><h2>Servers over sockets</h2><p>The Redis protocol over real sockets on this machine, from one thread \
         with many connections; every reply is checked. everdram answers a SET when it is durable, on both grounds; \
         Redis and its kin do so only with <code>always</code>. <code>everysec</code> may lose a second and more, and \
         <code>none</code> loses everything.</p>{loads}{keys}</section>\n"
    )
}

fn load(summaries: &[&Summary]) -> String {
    let Some(first) = summaries.first() else {
        return String::new();
    };
    let load = &first.load;
    let charts = [
        chart("replies a second", rate, summaries, |summary| summary.rate),
        chart("server's processor time a reply", time, summaries, |s| {
            scaled(s.server_cpu_us, 1e3)
        }),
        latencies("latency", bars(summaries, latency)),
    ];
    part(
        &format!("{}, {} at once", load.command.word(), load.pipeline),
        &format!(
            "{} keys of 16 bytes with values of {}, {} connections{}",
            count(load.data.keys),
            bytes(load.data.value_bytes as f64),
            load.connections,
            load.rate.map_or(String::new(), |requests| format!(
                ", {} due at fixed times",
                rate(requests)
            ))
        ),
        &charts.concat(),
    )
}

fn scaled(spread: Spread, factor: f64) -> Spread {
    Spread {
        min: spread.min * factor,
        median: spread.median * factor,
        max: spread.max * factor,
    }
}

/// `redis-server always` is `redis always` where there is little room.
fn short(label: &str) -> String {
    label.replace("-server", "")
}

fn latency(summary: &Summary) -> Spread {
    let [min, median, max] =
        [summary.p50_us, summary.p99_us, summary.p999_us].map(|us| us.median * 1e3);
    Spread { min, median, max }
}

fn bars(summaries: &[&Summary], values: impl Fn(&Summary) -> Spread) -> Vec<Bar> {
    let summaries = summaries.iter();
    summaries
        .map(|summary| Bar {
            label: short(&summary.label),
            kind: Kind::of_server(summary),
            values: values(summary),
        })
        .collect()
}

fn chart(
    title: &str,
    unit: fn(f64) -> String,
    summaries: &[&Summary],
    values: impl Fn(&Summary) -> Spread,
) -> String {
    Chart {
        title,
        note: "",
        unit,
        bars: bars(summaries, values),
        limit: None,
        is_log: false,
    }
    .figure()
}

fn memory(summaries: &[&Summary], load: &Load) -> String {
    let same: Vec<&Summary> = summaries
        .iter()
        .copied()
        .filter(|summary| summary.load == *load)
        .collect();
    chart("DRAM a key", bytes, &same, |summary| {
        Spread::of([summary.dram_bytes_a_key])
    })
}
