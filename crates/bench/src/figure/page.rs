//! A page about a figure: the picture, what it was measured with, what the paper says and whether it is so
//! here, and every row as a table.

use super::claims::{bars, claims, judged_workers};
use super::picture::stand_ins;
use super::{Figure, Measure, best, filled_in, label, measured, mib, of_volatile};
use crate::row::{LEFT_OUT, Metric, Row};
use crate::show::Table;
use crate::show::words;
use crate::show::words::count;
use crate::verdict::Verdict;
use std::fmt::Write as _;

/// A page of Markdown; `picture` is the file beside it.
#[must_use]
pub fn markdown(rows: &[Row], picture: &str) -> String {
    let (Some(figure), Some(first)) = (Figure::of(rows), rows.first()) else {
        return String::new();
    };
    let (machine, paper) = (&first.machine, figure.paper());
    let place = figure.place();
    let mut text = format!(
        "# {}\n\n{}{} of {}, measured with everdram {} at {}.\n\n![{}]({picture})\n\n",
        figure.what,
        place[..1].to_uppercase(),
        &place[1..],
        paper.paper,
        first.say("version"),
        first.commit,
        figure.what,
    );
    let conditions = paper.conditions.replace("{log sizes}", &log_sizes(rows));
    let _ = writeln!(
        text,
        "{} {}, {} cores, {}, {}.\n",
        filled_in(&conditions, &described(rows)),
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.flush,
    );
    for stand_in in stand_ins(rows) {
        let _ = writeln!(
            text,
            "**{stand_in}.** Statements about other systems are not about it.\n"
        );
    }
    for (title, is_of_bars, verdicts) in [
        ("What the paper says", false, claims(rows)),
        ("Bars", true, bars(rows)),
    ] {
        if !verdicts.is_empty() {
            let _ = writeln!(
                text,
                "## {title}\n\nWith {}. {} Time in which workers had no core is left out where that can \
                 be known; by the clock stands beside.\n\n{}",
                judged_workers(rows),
                paper.compared,
                Verdict::table(&verdicts, is_of_bars).markdown()
            );
        }
    }
    if let Some(printed) = figure.printed() {
        let _ = writeln!(
            text,
            "## The paper's figures\n\nMeasured by its authors on their machine, not here.\n\n{}",
            printed.markdown()
        );
    }
    if !figure.differs.is_empty() {
        let _ = writeln!(text, "**Not as in the paper:** {}.\n", figure.differs);
    }
    let left_out = left_out(rows);
    if !left_out.is_empty() {
        let _ = writeln!(text, "## Left out\n");
        for line in left_out {
            let _ = writeln!(text, "- {line}");
        }
        text.push('\n');
    }
    text.push_str("## Every line\n\n");
    text.push_str(&table(rows).markdown());
    text
}

/// The first row of an own system, with all delay models that rows were measured with.
fn described(rows: &[Row]) -> Row {
    let mut own = measured(rows).filter(|row| !row.is("rival"));
    let Some(mut first) = own.next().or_else(|| rows.first()).cloned() else {
        unreachable!("a page without rows");
    };
    let mut delays = vec![first.say("delays")];
    for row in own {
        if !delays.contains(&row.say("delays")) {
            delays.push(row.say("delays"));
        }
    }
    first
        .conditions
        .insert("delays".into(), delays.join("`, `").into());
    first
}

/// What was not measured, and why.
#[must_use]
pub fn left_out(rows: &[Row]) -> Vec<String> {
    let rows = rows.iter().filter(|row| row.suite == LEFT_OUT);
    rows.map(|row| format!("{}: {}", row.subject, row.say("why")))
        .collect()
}

fn log_sizes(rows: &[Row]) -> String {
    let mut sizes: Vec<String> = Vec::new();
    for size in measured(rows)
        .filter(|row| !row.is("rival"))
        .map(|row| label(row, "log_bytes"))
    {
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    sizes.join(", ")
}

/// Every row; what a terminal has no room for comes last.
#[must_use]
pub fn table(rows: &[Row]) -> Table {
    let figure = Figure::of(rows);
    if let Some(figure) = figure.filter(|figure| !figure.columns.is_empty()) {
        return table_of(figure, rows);
    }
    match figure.map(|figure| figure.measure) {
        Some(Measure::Calls) => table_of_calls(rows),
        Some(Measure::Phases) => table_of_phases(rows),
        _ => table_of_points(rows),
    }
}

/// The middles of the metrics that the figure names.
fn table_of(figure: &Figure, rows: &[Row]) -> Table {
    let has_logs = figure.has_sizes_of_logs();
    // Values have their units.
    let short = |metric: &Metric| -> &'static str {
        let name = metric.name();
        ["_ns", "_bytes_s", "_bytes"]
            .iter()
            .find_map(|unit| name.strip_suffix(unit))
            .unwrap_or(name)
    };
    let names: Vec<&str> = figure.columns.iter().map(short).collect();
    let log = match (has_logs, figure.memtable_mib.is_empty()) {
        (true, true) => " | log",
        (true, false) => " | log, memtable",
        (false, _) => "",
    };
    // What else tells one line from another.
    let others = figure.curves.split(", ");
    let others: Vec<&str> = others
        .filter(|by| ["device", "value", "back end", "sizes", "keys"].contains(by))
        .collect();
    let other = others.iter().map(|by| format!(" | {by}"));
    let other: String = other.collect();
    let heads = format!(
        "system{other}{log} | ground | load | writes | workers | {}",
        names.join(" | ")
    );
    let mut table = Table::new(&heads);
    for row in measured(rows) {
        let mut cells = vec![label(row, "system")];
        cells.extend(others.iter().map(|by| label(row, by)));
        cells.extend(has_logs.then(|| label(row, "log_bytes")));
        cells.extend([
            row.say("ground").to_uppercase(),
            row.workload.clone(),
            format!("{} %", row.say("writes")),
            row.threads.to_string(),
        ]);
        let value = |metric: &Metric| match row.median(*metric) {
            Some(value) => in_words(*metric, value),
            None => "-".into(),
        };
        cells.extend(figure.columns.iter().map(value));
        table.push_all(cells);
    }
    table
}

/// A value with the unit that the name of its metric ends with.
fn in_words(metric: Metric, value: f64) -> String {
    match metric.name() {
        name if name.ends_with("_ns") => words::time(value),
        name if name.ends_with("bytes_s") => format!("{}/s", words::bytes(value)),
        name if name.ends_with("_bytes") => words::bytes(value),
        name if name.ends_with("rate") => words::rate(value),
        name if name.ends_with("share") => format!("{:.1} %", value * 100.0),
        "operations" | "checkpoints" | "recovered" | "replayed" => count(value as u64),
        _ => format!("{value:.3}"),
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
