//! A page about a figure: the picture, what it was measured with, what the paper says and whether it is so
//! here, and every line as a table.

use super::line::{Line, Measured, Ratio, Series, mib};
use super::verdict::{Verdict, bars, claims, judged_threads};
use crate::show::Table;
use crate::show::words::count;
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
        first.figure.what(),
        first.figure.name().trim_start_matches("bullet-"),
        what.version,
        first.commit,
        first.figure.what(),
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
    for (title, is_of_bars, verdicts) in [
        ("What the paper says", false, claims(lines)),
        ("Bars", true, bars(lines)),
    ] {
        if !verdicts.is_empty() {
            let threads = judged_threads(lines).unwrap_or(0);
            let plural = if threads == 1 { "" } else { "s" };
            let _ = writeln!(
                text,
                "## {title}\n\nWith {threads} worker{plural}. Figures are ratios between curves within rounds, in the \
                 middle; of gleaners, differences. Time in which workers had no core is left out where that can be \
                 known; by the clock stands beside.\n\n{}",
                Verdict::table(&verdicts, is_of_bars).markdown()
            );
        }
    }
    text.push_str("## Every line\n\n");
    text.push_str(&table(lines).markdown());
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

/// Every line; what a terminal has no room for comes last.
#[must_use]
pub fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(match lines.first().map(|line| &line.measured) {
        Some(Measured::Calls(_)) => {
            "system | call | calls | mean ns | p50 | p99 | p99.9 | slowest | of volatile's mean, \
             with a core | writes | workers"
        }
        Some(Measured::Course { .. }) => {
            "system | second | writes | Mops/s | by clock | gleaners | gleaning | workers"
        }
        _ => {
            "system | writes | workers | clients | log | Mops/s | mean ns | of volatile | its \
             latency | by clock | of volatile | no core | least to most | gleaning | logs written \
             | by clock: mean ns | of volatile's latency"
        }
    });
    for line in lines {
        add(line, &mut table);
    }
    table
}

fn add(line: &Line, table: &mut Table) {
    let system = || line.system.clone();
    let writes = |percent: f64| format!("{percent} %");
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    match &line.measured {
        Measured::Rate(rate) => {
            let (best, clock) = (rate.best(), &rate.by_clock);
            let ratio = |series: &Series, of: fn(&Ratio) -> f64| {
                let ratio = series.against_volatile.as_ref().map(of);
                ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
            };
            table.push([
                system(),
                writes(line.writes_percent),
                line.threads.to_string(),
                line.clients
                    .map_or("-".into(), |clients| clients.to_string()),
                mib(line.conditions.log_bytes),
                format!("{:.3}", best.mops.median),
                format!("{:.0}", best.mean_ns.median),
                ratio(best, |ratio| ratio.throughput),
                ratio(best, |ratio| ratio.latency),
                format!("{:.3}", clock.mops.median),
                ratio(clock, |ratio| ratio.throughput),
                share(rate.queued_share.median),
                format!("{:.3} to {:.3}", best.mops.min, best.mops.max),
                share(rate.gleaning_share.median),
                format!("{:.2} x", rate.log_turns),
                format!("{:.0}", clock.mean_ns.median),
                ratio(clock, |ratio| ratio.latency),
            ]);
        }
        Measured::Calls(calls) => {
            for (name, kind) in [("get", &calls.get), ("put", &calls.put)] {
                let Some(kind) = kind else { continue };
                table.push([
                    system(),
                    name.into(),
                    count(kind.calls),
                    format!("{:.0}", kind.mean_ns),
                    kind.all.p50.to_string(),
                    kind.all.p99.to_string(),
                    kind.all.p999.to_string(),
                    kind.all.max.to_string(),
                    kind.against_volatile
                        .map_or(String::new(), |ratio| format!("{ratio:.2}")),
                    writes(line.writes_percent),
                    line.threads.to_string(),
                ]);
            }
        }
        Measured::Course { moments } => {
            for moment in moments {
                table.push([
                    system(),
                    format!("{:.2}", moment.second),
                    writes(moment.writes_percent),
                    format!("{:.3}", moment.undisturbed_mops),
                    format!("{:.3}", moment.mops),
                    moment.gleaners.to_string(),
                    share(moment.gleaning_share),
                    line.threads.to_string(),
                ]);
            }
        }
    }
}
