//! A page about a figure: the picture, what it was measured with, what the paper says and whether it is so
//! here, and every row as a table.

use super::claims::{bars, claims, judged_threads};
use super::{Figure, Measure, best, label, mib, of_volatile};
use crate::row::{Metric, Row};
use crate::show::Table;
use crate::show::words::count;
use crate::verdict::Verdict;
use std::fmt::Write as _;

/// A page of Markdown; `picture` is the file beside it.
#[must_use]
pub fn markdown(rows: &[Row], picture: &str) -> String {
    let (Some(figure), Some(first)) = (Figure::of(rows), rows.first()) else {
        return String::new();
    };
    let say = |condition| first.say(condition);
    let machine = &first.machine;
    let mut text = format!(
        "# {}\n\nFigure {} of {}, measured with everdram {} at {}.\n\n![{}]({picture})\n\n",
        figure.what,
        figure.number,
        figure.paper().paper,
        say("version"),
        first.commit,
        figure.what,
    );
    let _ = writeln!(
        text,
        "**{}** persistent memory with the delays `{}`; {} records of {} + {} bytes, all of them in the front; keys zipfian, {}; {} \
         logs of {}; {} round{} of {} s, each after {} s that do not count; seed {}. {}, {} cores, {}, {}.\n",
        say("medium"),
        say("delays"),
        say("records"),
        say("key"),
        say("value"),
        say("skew"),
        say("logs"),
        log_sizes(rows),
        say("rounds"),
        if first.number("rounds") == 1.0 {
            ""
        } else {
            "s"
        },
        say("seconds"),
        say("warm_up_seconds"),
        say("seed"),
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.flush,
    );
    for (title, is_of_bars, verdicts) in [
        ("What the paper says", false, claims(rows)),
        ("Bars", true, bars(rows)),
    ] {
        if !verdicts.is_empty() {
            let threads = judged_threads(rows).unwrap_or(0);
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
    text.push_str(&table(rows).markdown());
    text
}

fn log_sizes(rows: &[Row]) -> String {
    let mut sizes: Vec<String> = rows.iter().map(|row| label(row, "log_bytes")).collect();
    sizes.dedup();
    sizes.join(", ")
}

/// Every row; what a terminal has no room for comes last.
#[must_use]
pub fn table(rows: &[Row]) -> Table {
    match Figure::of(rows).map(|figure| figure.measure) {
        Some(Measure::Calls) => table_of_calls(rows),
        Some(Measure::Phases) => table_of_phases(rows),
        _ => table_of_points(rows),
    }
}

fn table_of_points(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "system | writes | workers | clients | log | Mops/s | mean ns | of volatile | its \
             latency | by clock | of volatile | no core | least to most | gleaning | logs written \
             | by clock: mean ns | of volatile's latency",
    );
    for row in rows {
        let middle = |metric| row.get(metric).median;
        let of_base = |metric| {
            let ratio = of_volatile(rows, row, metric);
            ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
        };
        let (rate, mean) = (best(row, Metric::Rate), best(row, Metric::MeanNs));
        let spread = row.get(rate);
        let clients = row.say("clients");
        table.push([
            row.subject.clone(),
            format!("{} %", row.say("writes")),
            row.threads.to_string(),
            if clients.is_empty() {
                "-".into()
            } else {
                clients
            },
            mib(row.number("log_bytes") as u64),
            format!("{:.3}", spread.median / 1e6),
            format!("{:.0}", middle(mean)),
            of_base(rate),
            of_base(mean),
            format!("{:.3}", middle(Metric::Rate) / 1e6),
            of_base(Metric::Rate),
            share(middle(Metric::QueuedShare)),
            format!("{:.3} to {:.3}", spread.min / 1e6, spread.max / 1e6),
            share(middle(Metric::GleaningShare)),
            format!("{:.2} x", middle(Metric::LogTurns)),
            format!("{:.0}", middle(Metric::MeanNs)),
            of_base(Metric::MeanNs),
        ]);
    }
    table
}

fn table_of_calls(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "system | call | calls | mean ns | p50 | p99 | p99.9 | slowest | of volatile's mean, \
             with a core | writes | workers",
    );
    for row in rows {
        let whole = |metric| format!("{:.0}", row.get(metric).median);
        let ratio = of_volatile(rows, row, Metric::CoreMeanNs);
        table.push([
            row.subject.clone(),
            row.workload.clone(),
            count(row.rounds(Metric::Operations).iter().sum::<f64>() as u64),
            format!("{:.0}", row.mean(Metric::MeanNs)),
            whole(Metric::P50Ns),
            whole(Metric::P99Ns),
            whole(Metric::P999Ns),
            whole(Metric::MaxNs),
            ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            format!("{} %", row.say("writes")),
            row.threads.to_string(),
        ]);
    }
    table
}

fn table_of_phases(rows: &[Row]) -> Table {
    let mut table =
        Table::new("system | second | writes | Mops/s | by clock | gleaners | gleaning | workers");
    for row in rows {
        for moment in 0..row.rounds(Metric::Second).len() {
            let at = |metric| row.rounds(metric).get(moment).copied().unwrap_or(0.0);
            table.push([
                row.subject.clone(),
                format!("{:.2}", at(Metric::Second)),
                row.workload.clone(),
                format!("{:.3}", at(Metric::CoreRate) / 1e6),
                format!("{:.3}", at(Metric::Rate) / 1e6),
                at(Metric::Gleaners).to_string(),
                share(at(Metric::GleaningShare)),
                row.threads.to_string(),
            ]);
        }
    }
    table
}

fn share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
