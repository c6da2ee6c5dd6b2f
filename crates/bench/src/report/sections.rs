//! The parts of the page: embedded stores, servers, and the machine's limits.

use super::chart::{Bar, Chart, Kind};
use crate::compare::{Ground, Group, of_suite};
use crate::limits;
use crate::row::{LIMITS, Metric, Row, SERVERS};
use crate::server::title;
use crate::show::words::{bytes, count, escaped, percent, rate, time};
use crate::timing::Spread;
use crate::workload::Workload;

/// Workloads whose latency and processor time are drawn; the table has all.
const DRAWN: [Workload; 3] = [Workload::Put, Workload::Get, Workload::YcsbA];

/// Sections of stores, one for each scenario, in their order.
pub(super) fn stores(groups: &[Group<'_>]) -> String {
    let scenarios = groups.chunk_by(|one, other| one.scenario() == other.scenario());
    scenarios.map(scenario).collect()
}

fn scenario(groups: &[Group<'_>]) -> String {
    let Some(first) = groups.first() else {
        return String::new();
    };
    let drawn = groups
        .iter()
        .filter(|group| DRAWN.contains(&group.workload));
    let (mut latency, mut processor) = (String::new(), String::new());
    for group in drawn {
        let (title, rows) = (group.workload.name(), &group.rows[..]);
        latency.push_str(&Chart::of_latency(title, percentiles(rows)).figure());
        let spent = bars(rows, |row| row.spread(Metric::ProcessCpuNs));
        processor.push_str(&Chart::least_first(title, time, spent).figure());
    }
    let throughput: String = groups.iter().map(throughput).collect();
    format!(
        "<section><h2>{}</h2><p>{}</p><h3>Operations a second</h3><p class=\"hint\">By the clock, all threads \
         together. More is better; the thin line spans all repetitions, and » is a bar that goes on.</p>{}{}{}{}</section>\n",
        escaped(&first.scenario()),
        escaped(about(first.ground)),
        grid(&throughput),
        part(
            "Latency of single calls",
            "Less is better, and the scale is of powers of ten. Dot: half of the calls; ring, and the number: 99 \
             of 100; end of the line: 999 of 1000.",
            &latency,
        ),
        part(
            "Processor time of an operation",
            "Of the whole process, with what a store does in the background. Less is better.",
            &processor,
        ),
        part(
            "Space and restart",
            "Bytes a record beside its medium and on it; time from opening a store whose process was killed to the first \
             answer. Less is better.",
            &space(groups),
        ),
    )
}

fn about(ground: Ground) -> &'static str {
    match ground {
        Ground::Emulated => {
            "Emulated: a directory on tmpfs plays persistent memory. everdram flushes and fences as on the real thing; \
             the others write files there, whose syncs cost no more than the call. Real persistent memory is slower \
             than this, for everybody."
        }
        Ground::Disk => {
            "A file system on an ordinary disk, where a write is durable when the disk has said so. How long that takes \
             is the disk's; how many writes share one sync is the store's."
        }
    }
}

fn throughput(group: &Group<'_>) -> String {
    let limit = |bound: &crate::compare::Bound| {
        (bound.rate, format!("limit of the machine ({})", bound.name))
    };
    Chart {
        note: group.workload.what(),
        limit: group.bound.as_ref().map(limit),
        ..Chart::new(
            group.workload.name(),
            rate,
            bars(&group.rows, |row| row.spread(Metric::Rate)),
        )
    }
    .figure()
}

/// Of the first group of stores that were opened after a crash.
fn space(groups: &[Group<'_>]) -> String {
    let has_crashed = |row: &&Row| row.spread(Metric::RecoveryNs).is_some();
    let mut groups = groups.iter();
    let Some(group) = groups.find(|group| group.rows.iter().any(has_crashed)) else {
        return String::new();
    };
    let chart = |title, unit, metric| {
        let middle = |row: &Row| Some(Spread::of([row.median(metric)?]));
        Chart::least_first(title, unit, bars(&group.rows, middle)).figure()
    };
    [
        chart("DRAM a record", bytes, Metric::DramBytes),
        chart("on the medium, a record", bytes, Metric::MediumBytes),
        chart("open after a crash, first answer", time, Metric::RecoveryNs),
    ]
    .concat()
}

/// The section of servers: a line of charts for each load; nothing without servers.
pub(super) fn servers(rows: &[Row]) -> String {
    let servers: Vec<&Row> = of_suite(rows, SERVERS).collect();
    let mut loads = servers.chunk_by(|one, other| title(one) == title(other));
    let Some(first) = loads.clone().next() else {
        return String::new();
    };
    let all: String = loads.by_ref().map(load).collect();
    let memory = bars(first, |row| row.spread(Metric::DramBytes));
    let keys = part(
        "DRAM a key",
        "What the server's own memory had grown by when all keys were set. A mapped pool is the medium, and not in it.",
        &Chart::new("DRAM a key", bytes, memory).figure(),
    );
    format!(
        "<section><h2>Servers over sockets</h2><p>The Redis protocol over real sockets on this machine, from one thread \
         with many connections; every reply is checked. everdram answers a SET when it is durable, on both grounds; \
         Redis and its kin do so only with <code>always</code>. <code>everysec</code> may lose a second and more, and \
         <code>none</code> loses everything.</p>{all}{keys}</section>\n"
    )
}

fn load(rows: &[&Row]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let replies = bars(rows, |row| row.spread(Metric::Rate));
    let spent = bars(rows, |row| row.spread(Metric::ProcessCpuNs));
    let charts = [
        Chart::new("replies a second", rate, replies),
        Chart::new("server's processor time a reply", time, spent),
        Chart::of_latency("latency", percentiles(rows)),
    ];
    let due = match first.number("due_each_second") {
        0.0 => String::new(),
        requests => format!(", {} due at fixed times", rate(requests)),
    };
    part(
        &format!("{}, {} at once", first.workload, first.say("pipeline")),
        &format!(
            "{} keys of 16 bytes with values of {}, {} connections{due}",
            count(first.number("keys") as u64),
            bytes(first.number("value")),
            first.say("connections"),
        ),
        &charts.map(|chart| chart.figure()).concat(),
    )
}

/// The section of limits: everdram's shares of them, and the limits themselves; nothing without limits.
pub(super) fn limits(rows: &[Row], groups: &[Group<'_>]) -> String {
    let table = limits::table(of_suite(rows, LIMITS)).html("All limits");
    if table.is_empty() {
        return String::new();
    }
    let charts = Ground::ALL.map(|ground| shares(ground, groups, Group::share));
    let charts = part(
        "everdram as a share of the limit",
        "On emulated persistent memory of processor time, background work included; on a disk by the clock. 100 % is a \
         loop without a store around it.",
        &charts.concat(),
    );
    let chains = part(
        "everdram as a share of the chain",
        "Of a loop without a store in which each call waits for the record of the one before: index line, record, next \
         key.",
        &shares(Ground::Emulated, groups, Group::share_of_chain),
    );
    format!(
        "<section><h2>What the machine can do at most</h2><p>Bare loops, without a store: measured once in each round \
         of the same run.</p>{charts}{chains}{table}</section>\n"
    )
}

fn shares<'a>(
    ground: Ground,
    groups: &[Group<'a>],
    share: fn(&Group<'a>, &Row) -> Option<f64>,
) -> String {
    let mut shares = Vec::new();
    for group in groups.iter().filter(|group| group.ground == ground) {
        let mut own: Vec<&Row> = group.rows.clone();
        own.retain(|row| row.is_own());
        own.sort_by_key(|row| row.subject.len());
        for row in own {
            let Some(share) = share(group, row) else {
                continue;
            };
            let pages = match row.subject.split_once(", ") {
                Some((_, pages)) => format!(", {pages}"),
                None => String::new(),
            };
            let threads = match (ground, group.threads) {
                (Ground::Disk, threads) if threads > 1 => format!(", {threads} threads"),
                _ => String::new(),
            };
            shares.push(Bar {
                label: format!("{}{threads}{pages}", group.workload),
                kind: Kind::Own,
                values: Spread::of([share]),
            });
        }
    }
    Chart {
        limit: Some((1.0, "limit of the machine".into())),
        ..Chart::new(ground.what(), percent, shares)
    }
    .figure()
}

/// `redis-server always` is `redis always` where there is little room.
fn bars(rows: &[&Row], values: impl Fn(&Row) -> Option<Spread>) -> Vec<Bar> {
    let bar = |row: &&Row| {
        Some(Bar {
            label: row.subject.replace("-server", ""),
            kind: Kind::of(row),
            values: values(row)?,
        })
    };
    rows.iter().filter_map(bar).collect()
}

fn percentiles(rows: &[&Row]) -> Vec<Bar> {
    bars(rows, Row::percentiles)
}

fn grid(charts: &str) -> String {
    format!("<div class=\"grid\">\n{charts}</div>\n")
}

/// A heading, a hint and charts; nothing without charts.
fn part(title: &str, hint: &str, charts: &str) -> String {
    if charts.is_empty() {
        return String::new();
    }
    format!(
        "<h3>{}</h3><p class=\"hint\">{}</p>{}",
        escaped(title),
        escaped(hint),
        grid(charts)
    )
}
