//! The part of the page about embedded stores: a section for each ground and number of threads.

use super::chart::{Bar, Chart, Kind};
use crate::compare::{Ground, Group, label};
use crate::row::{Figures, Row};
use crate::show::words::{bytes, escaped, rate, time};
use crate::timing::Spread;
use crate::workload::Workload;

/// Workloads whose latency and processor time are drawn; the table has all.
const DRAWN: [Workload; 3] = [Workload::Put, Workload::Get, Workload::YcsbA];

/// Sections of all scenes, in their order.
pub(super) fn sections(groups: &[Group<'_>]) -> String {
    groups
        .chunk_by(|one, other| (one.ground, one.threads) == (other.ground, other.threads))
        .map(section)
        .collect()
}

fn section(groups: &[Group<'_>]) -> String {
    let Some(first) = groups.first() else {
        return String::new();
    };
    let drawn = || {
        groups
            .iter()
            .filter(|group| DRAWN.contains(&group.workload))
    };
    let throughput: String = groups.iter().map(throughput).collect();
    let latency: String = drawn().map(latency).collect();
    let processor: String = drawn().map(processor).collect();
    let mut text = format!(
        "<section><h2>{}</h2><p>{}</p><h3>Operations a second</h3><p class=\"hint\">By the clock, all threads \
         together. More is better; the thin line spans all repetitions, and » is a bar that goes on.</p>{}",
        escaped(&first.scene()),
        escaped(about(first.ground)),
        grid(&throughput),
    );
    text.push_str(&part(
        "Latency of single calls",
        "Less is better, and the scale is of powers of ten. Dot: half of the calls; ring, and the number: 99 \
         of 100; end of the line: 999 of 1000.",
        &latency,
    ));
    text.push_str(&part(
        "Processor time of an operation",
        "Of the whole process, with what a store does in the background. Less is better.",
        &processor,
    ));
    text.push_str(&part(
        "Space and restart",
        "Bytes a record beside its medium and on it; time from opening a store whose process was killed to the first \
         answer. Less is better.",
        &space(groups),
    ));
    text.push_str("</section>\n");
    text
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

fn grid(charts: &str) -> String {
    format!("<div class=\"grid\">\n{charts}</div>\n")
}

/// A heading, a hint and charts; nothing without charts.
pub(super) fn part(title: &str, hint: &str, charts: &str) -> String {
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

fn bars(rows: &[&Row], figure: impl Fn(&Figures) -> Option<Spread>) -> Vec<Bar> {
    rows.iter()
        .filter_map(|row| {
            Some(Bar {
                label: label(&row.configuration),
                kind: Kind::of(&row.configuration),
                values: figure(&row.figures)?,
            })
        })
        .collect()
}

fn throughput(group: &Group<'_>) -> String {
    Chart {
        title: group.workload.name(),
        note: group.workload.what(),
        unit: rate,
        bars: bars(&group.rows, |figures| Some(figures.rate)),
        limit: group
            .bound
            .as_ref()
            .map(|bound| (bound.rate, format!("limit of the machine ({})", bound.name))),
        is_log: false,
    }
    .figure()
}

fn latency(group: &Group<'_>) -> String {
    let all = bars(&group.rows, |figures| Some(figures.latency?.all.spread()));
    latencies(group.workload.name(), all)
}

/// Latencies, those first that are short for 99 of 100 calls.
pub(super) fn latencies(title: &str, mut bars: Vec<Bar>) -> String {
    bars.sort_by(|one, other| one.values.median.total_cmp(&other.values.median));
    Chart {
        title,
        note: "",
        unit: time,
        bars,
        limit: None,
        is_log: true,
    }
    .figure()
}

fn processor(group: &Group<'_>) -> String {
    least_first(
        group.workload.name(),
        time,
        bars(&group.rows, |figures| Some(figures.process_cpu_ns)),
    )
}

fn space(groups: &[Group<'_>]) -> String {
    let Some(group) = groups
        .iter()
        .find(|group| group.rows.iter().any(|row| row.figures.recovery.is_some()))
    else {
        return String::new();
    };
    let one = |value: Option<f64>| Some(Spread::of([value?]));
    let charts = [
        least_first(
            "DRAM a record",
            bytes,
            bars(&group.rows, |figures| one(figures.dram_bytes)),
        ),
        least_first(
            "on the medium, a record",
            bytes,
            bars(&group.rows, |figures| one(figures.medium_bytes)),
        ),
        least_first(
            "open after a crash, first answer",
            time,
            bars(&group.rows, |figures| {
                one(figures
                    .recovery
                    .map(|recovery| recovery.wall.as_nanos() as f64))
            }),
        ),
    ];
    charts.concat()
}

fn least_first(title: &str, unit: fn(f64) -> String, mut bars: Vec<Bar>) -> String {
    bars.sort_by(|one, other| one.values.median.total_cmp(&other.values.median));
    Chart {
        title,
        note: "",
        unit,
        bars,
        limit: None,
        is_log: false,
    }
    .figure()
}
