//! `everdram bench run`: one store under one workload, as a table and as a row.

use super::store::{self, Store, ensure_directory};
use super::{recovery, rows};
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint, row};
use crate::{Outcome, units};
use anyhow::Context;
use everdram::Medium;
use everdram_bench::timing::Spread;
use everdram_bench::{Counted, Figures, Machine, Plan, Row, Tail, Workload, commit};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One store under one workload.
#[derive(clap::Args)]
#[command(
    long_about = "Fills a store in a directory of its own, asks it for what the workload says, and checks every \
                  answer. The throughput loop reads no clock; latencies are from a pass of their own, in which each \
                  call begins when the one before has ended, or, with --rate, at a time set beforehand. Processor \
                  time stands beside time by the clock: on a shared machine it is the steadier one.\n\n\
                  Example: everdram bench run --workload ycsb-a --threads 2"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: Store,
    /// What the store is asked for; --list says what there is.
    #[arg(long, default_value = "get")]
    workload: Workload,
    /// Operations of each repetition [default: as many as there are records].
    #[arg(long, value_parser = units::parse_count)]
    ops: Option<u64>,
    /// Threads that ask.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Operations at once, in put-many and get-many.
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Operations a second in the pass that times each call.
    #[arg(long)]
    rate: Option<f64>,
    /// Repetitions.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Keep each thread on a core of its own.
    #[arg(long)]
    pin: bool,
    /// Also kill a process that has filled the store, and time opening it.
    #[arg(long)]
    recovery: bool,
    /// Append the row to this file as a JSON line; `-` is standard output, without the table.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Say which workloads and stores there are, and measure nothing.
    #[arg(long)]
    list: bool,
}

impl Arguments {
    fn plan(&self) -> anyhow::Result<Plan> {
        let records = self.store.records;
        let plan = Plan {
            workload: self.workload,
            records,
            operations: self.ops.unwrap_or(records),
            threads: self.threads,
            keys: self.store.keys,
            values: self.store.values,
            batch: self.batch,
            rate: self.rate,
            repeat: self.repeat,
            seed: self.store.seed,
            pin: self.pin,
            dir: self.store.dir.clone(),
        };
        for (what, is_wrong) in [
            ("--records: at least one", records == 0),
            ("--threads: 1 to 1000", !(1..=1000).contains(&self.threads)),
            ("--repeat: at least 1", self.repeat == 0),
            (
                "--ops: at least one for each thread",
                plan.operations < self.threads as u64,
            ),
            ("--batch: 1 to 1024", !(1..=1024).contains(&self.batch)),
            (
                "--rate: more than 0",
                self.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0),
            ),
        ] {
            if is_wrong {
                return Err(usage(what));
            }
        }
        Ok(plan)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    if arguments.list {
        list();
        return Ok(Outcome::Sound);
    }
    let plan = arguments.plan()?;
    let opener = arguments.store.opener()?;
    ensure_directory(&plan.dir)?;
    let shown = Progress::start(&arguments.store.store, 1000, false);
    let measured = plan.measure(&*opener, &mut |done, what| {
        shown.at((done * 1000.0) as u64, what);
    });
    shown.finish();
    let mut figures = measured.with_context(|| failed(arguments))?;
    if arguments.store.store == "everdram" && arguments.store.medium != Medium::File {
        let fixed = arguments.store.fixed.then(|| arguments.store.exact());
        figures.traffic = plan.count(&Counted {
            engine: arguments.store.engine,
            fixed: fixed.transpose()?,
        })?;
    }
    if arguments.recovery {
        figures.recovery = Some(recovery::measure(&arguments.store)?);
    }
    let medium = arguments.store.medium_name();
    let row = Row {
        configuration: plan.configuration(&*opener, &medium, arguments.store.fixed),
        machine: Machine::here(&plan.dir),
        commit: commit(),
        figures,
    };
    let line = rows::lines([&row])?;
    if !rows::are_all(arguments.json.as_deref()) {
        print(&row);
    }
    append(arguments.json.as_deref(), &line)?;
    Ok(Outcome::Sound)
}

fn failed(arguments: &Arguments) -> String {
    let Store { store, seed, .. } = &arguments.store;
    format!("{store} under {}, seed {seed}", arguments.workload)
}

fn list() {
    println!("{}", paint(Tone::Strong, "Workloads"));
    for workload in Workload::ALL {
        row(workload.name(), workload.what());
    }
    println!("\n{}", paint(Tone::Strong, "Stores"));
    for name in store::names() {
        println!("  {name}");
    }
    if cfg!(not(feature = "rivals")) {
        println!("  (others are in a build with --features rivals)");
    }
}

/// Adds a line to a file of rows.
fn append(path: Option<&Path>, line: &str) -> anyhow::Result<()> {
    let Some(path) = path.filter(|path| !rows::are_all(Some(path))) else {
        return rows::write(path, line);
    };
    let writing = || format!("writing {}", path.display());
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(path);
    let mut file = file.with_context(writing)?;
    file.write_all(line.as_bytes()).with_context(writing)
}

fn print(measured: &Row) {
    let (what, figures) = (&measured.configuration, &measured.figures);
    println!(
        "{} {} on {}, {}: {} + {} bytes, {} records, {} operations, {} thread{}, {} repetitions",
        what.store,
        what.version,
        what.medium,
        paint(Tone::Strong, what.workload.name()),
        what.keys,
        what.values,
        units::count(what.records),
        units::count(what.operations),
        what.threads,
        if what.threads == 1 { "" } else { "s" },
        what.repeat,
    );
    row("rate", spread(figures.rate, 1e6, "M/s"));
    row("time an operation", spread(figures.wall_ns, 1.0, "ns"));
    row("processor time", spread(figures.cpu_ns, 1.0, "ns"));
    row(
        "of the whole process",
        spread(figures.process_cpu_ns, 1.0, "ns"),
    );
    row(
        "waiting for a core",
        format!(
            "{:.1} % of the time, {} times preempted",
            figures.queued_share * 100.0,
            figures.preempted
        ),
    );
    print_latency(what.batch, figures);
    print_space(figures);
}

fn print_latency(batch: usize, figures: &Figures) {
    let Some(tail) = figures.latency else { return };
    let calls = if batch > 1 {
        format!(" (calls of {batch})")
    } else {
        String::new()
    };
    row("latency", format!("{}{calls}", percentiles(tail, false)));
    row("  had it a core", percentiles(tail, true));
    row(
        "  above 20 us",
        format!(
            "{:.4} % of the calls; {:.0} % of these waited for a core",
            tail.slow_share * 100.0,
            tail.slow_disturbed_share * 100.0
        ),
    );
}

fn print_space(figures: &Figures) {
    if let Some(bytes) = figures.dram_bytes {
        let counted = figures.counted_dram_bytes.map_or(String::new(), |bytes| {
            format!("; the store counts {bytes:.1} B")
        });
        row(
            "DRAM a record",
            format!("{bytes:.1} B of the process{counted}"),
        );
    }
    if let Some(bytes) = figures.medium_bytes {
        row("medium a record", format!("{bytes:.1} B"));
    }
    if let Some(traffic) = figures.traffic {
        row(
            "to the medium, each",
            format!(
                "{:.2} fences, {:.2} lines, {:.1} B stored",
                traffic.fences, traffic.lines, traffic.bytes
            ),
        );
    }
    if let Some(recovery) = figures.recovery {
        row(
            "open after a crash",
            format!(
                "{} for {} records; {:.3} us of processor time a record",
                units::time(recovery.wall),
                units::count(recovery.records),
                recovery.cpu_us()
            ),
        );
    }
}

fn spread(spread: Spread, unit: f64, name: &str) -> String {
    let number = |value: f64| match value / unit {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.5}"),
    };
    format!(
        "{} {name}  ({} to {})",
        number(spread.median),
        number(spread.min),
        number(spread.max)
    )
}

fn percentiles(tail: Tail, is_undisturbed: bool) -> String {
    let latency = if is_undisturbed {
        tail.undisturbed
    } else {
        tail.all
    };
    let time = |ns| units::time(Duration::from_nanos(ns));
    format!(
        "p50 {}, p99 {}, p99.9 {}, slowest {}",
        time(latency.p50),
        time(latency.p99),
        time(latency.p999),
        time(latency.max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Ok(Line::try_parse_from(std::iter::once("run").chain(line.split_whitespace()))?.arguments)
    }

    #[test]
    fn a_line_becomes_a_plan() {
        let line =
            "--workload ycsb-a --records 20k --threads 2 --value normal:200 --rate 1000 --pin";
        let plan = parse(line).unwrap().plan().unwrap();
        assert_eq!(plan.workload, Workload::YcsbA);
        assert_eq!(
            (plan.records, plan.operations, plan.threads),
            (20_000, 20_000, 2)
        );
        assert_eq!(plan.values.to_string(), "normal:200");
        assert_eq!((plan.rate, plan.pin, plan.repeat), (Some(1000.0), true, 3));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--workload ycsb-z",
            "--records x",
            "--value 0",
            "--medium disk",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in [
            "--threads 0",
            "--records 0",
            "--rate 0",
            "--rate NaN",
            "--batch 0",
            "--repeat 0",
        ] {
            let error = parse(line).unwrap().plan().err().unwrap();
            assert!(error.is::<crate::settings::UsageError>(), "{line}");
        }
        let unknown = parse("--store nosql").unwrap();
        assert!(unknown.store.opener().is_err());
        let mixed = parse("--fixed --value normal:200").unwrap();
        assert!(mixed.store.opener().is_err());
    }
}
