//! A page about a figure: the picture, what it was measured with, what the paper says and whether it is so
//! here, and every line as a table.

use super::line::{Line, Measured, Series, mib};
use super::verdict::{Verdict, bars, claims, judged_threads};
use std::fmt::Write as _;

/// A page of Markdown; `picture` is the file beside it.
#[must_use]
pub fn markdown(lines: &[Line], picture: &str) -> String {
    let Some(first) = lines.first() else {
        return String::new();
    };
    let what = &first.conditions;
    let machine = &first.machine;
    let mut text = format!(
        "# {}\n\nFigure {} of *Closing the Performance Gap between Volatile and Persistent Key-Value Stores Using Cross-Referencing Logs* \
         (USENIX ATC 2018), measured with everdram {} at {}.\n\n![{}]({picture})\n\n",
        first.figure.title(),
        first.figure.name().trim_start_matches("bullet-"),
        what.version,
        first.commit,
        first.figure.title(),
    );
    let _ = writeln!(
        text,
        "**{}** persistent memory with the delays `{}`; {} records of {} + {} bytes, all of them in the front; keys zipfian, {}; {} \
         logs of {}; {} round{} of {} s, each after {} s that do not count; seed {}. {}, {} cores, {}, {}.\n",
        what.medium,
        what.preset,
        what.records,
        what.key_bytes,
        what.value_bytes,
        what.skew,
        what.logs,
        log_sizes(lines),
        what.rounds,
        if what.rounds == 1 { "" } else { "s" },
        what.seconds,
        what.warm_up_seconds,
        what.seed,
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.flush,
    );
    text.push_str(&verdicts(
        "What the paper says",
        "paper says",
        "same shape?",
        &claims(lines),
        lines,
    ));
    text.push_str(&verdicts("Bars", "bar", "reached?", &bars(lines), lines));
    text.push_str("## Every line\n\n");
    text.push_str(&table(lines));
    text
}

fn log_sizes(lines: &[Line]) -> String {
    let mut sizes: Vec<String> = lines
        .iter()
        .map(|line| mib(line.conditions.log_bytes))
        .collect();
    sizes.dedup();
    sizes.join(", ")
}

fn verdicts(title: &str, says: &str, holds: &str, verdicts: &[Verdict], lines: &[Line]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let threads = judged_threads(lines).unwrap_or(0);
    let plural = if threads == 1 { "" } else { "s" };
    let mut text = format!(
        "## {title}\n\nWith {threads} worker{plural}. Figures are ratios between curves within rounds, in the middle; of gleaners, differences. \
         Time in which workers had no core is left out where that can be known; by the clock stands beside.\n\n\
         | {says} | section | measured | by the clock | {holds} |\n| --- | --- | --- | --- | --- |\n"
    );
    for verdict in verdicts {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            verdict.says,
            verdict.source,
            verdict.values(),
            verdict.clock_values(),
            verdict.word()
        );
    }
    text.push('\n');
    text
}

fn table(lines: &[Line]) -> String {
    let mut text = String::new();
    let mut head = "";
    for line in lines {
        let (names, rows) = cells(line);
        if names != head {
            let count = names.matches('|').count() - 1;
            let _ = writeln!(text, "{names}\n|{}", " --- |".repeat(count));
            head = names;
        }
        text.push_str(&rows);
    }
    text
}

/// The heads of a line's table, and its rows.
fn cells(line: &Line) -> (&'static str, String) {
    let Line {
        system,
        threads,
        writes_percent,
        ..
    } = line;
    match &line.measured {
        Measured::Rate(rate) => {
            let clients = line
                .clients
                .map_or("-".to_owned(), |clients| clients.to_string());
            let series = |series: &Series| {
                let ratio = series.against_volatile.map_or(" | ".to_owned(), |ratio| {
                    format!("{:.2} | {:.2}", ratio.throughput, ratio.latency)
                });
                format!(
                    "{:.3} ({:.3} to {:.3}) | {:.0} | {ratio}",
                    series.mops.median, series.mops.min, series.mops.max, series.mean_ns.median
                )
            };
            (
                "| system | log | writes | workers | clients | Mops/s (least to most) | mean ns | of volatile: throughput | latency | by the clock: \
                 Mops/s | mean ns | of volatile: throughput | latency | without a core | gleaning | logs written |",
                format!(
                    "| {system} | {} | {writes_percent} % | {threads} | {clients} | {} | {} | {:.0} % | {:.0} % | {:.2} x |\n",
                    mib(line.conditions.log_bytes),
                    series(rate.best()),
                    series(&rate.by_clock),
                    rate.queued_share.median * 100.0,
                    rate.gleaning_share.median * 100.0,
                    rate.log_turns,
                ),
            )
        }
        Measured::Calls(calls) => {
            let mut rows = String::new();
            for (name, kind) in [("get", &calls.get), ("put", &calls.put)] {
                let Some(kind) = kind else { continue };
                let _ = writeln!(
                    rows,
                    "| {system} | {name} | {writes_percent} % | {threads} | {} | {:.0} | {} | {} | {} | {} | {} |",
                    kind.calls,
                    kind.mean_ns,
                    kind.all.p50,
                    kind.all.p99,
                    kind.all.p999,
                    kind.all.max,
                    kind.against_volatile
                        .map_or(String::new(), |ratio| format!("{ratio:.2}")),
                );
            }
            (
                "| system | call | writes | workers | calls | mean ns | p50 | p99 | p99.9 | slowest | of volatile's mean, with a core |",
                rows,
            )
        }
        Measured::Course { moments } => {
            let mut rows = String::new();
            for moment in moments {
                let _ = writeln!(
                    rows,
                    "| {system} | {threads} | {:.2} | {} % | {:.3} | {:.3} | {} | {:.0} % |",
                    moment.second,
                    moment.writes_percent,
                    moment.undisturbed_mops,
                    moment.mops,
                    moment.gleaners,
                    moment.gleaning_share * 100.0
                );
            }
            (
                "| system | workers | second | writes | Mops/s | by the clock | gleaners | gleaning |",
                rows,
            )
        }
    }
}
