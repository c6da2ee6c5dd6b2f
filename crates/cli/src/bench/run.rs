//! `everdram bench run`: one store under one workload, as a table and as a row.

use super::store::{self, Store, ensure_directory};
use super::{recovery, rows};
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint, row};
use crate::{Outcome, units};
use anyhow::Context;
use everdram::Medium;
use everdram_bench::timing::Spread;
use everdram_bench::{Counted, Extent, Metric, Plan, Row, Workload};
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
        let operations = self.ops.unwrap_or(records);
        let plan = Plan {
            workloads: vec![self.workload],
            records,
            extent: Extent::Operations(operations),
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
                operations < self.threads as u64,
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
    let mut measured = None;
    let ended = plan.measure(
        &*opener,
        &mut |done, what| shown.at((done * 1000.0) as u64, what),
        &mut |row| {
            measured = Some(row);
            Ok(())
        },
    );
    shown.finish();
    ended.with_context(|| failed(arguments))?;
    let mut row = measured.context("nothing was measured")?;
    if arguments.store.store == "everdram" && arguments.store.medium != Medium::File {
        let fixed = arguments.store.fixed.then(|| arguments.store.exact());
        let counted = Counted {
            engine: arguments.store.engine,
            fixed: fixed.transpose()?,
        };
        plan.count(&counted, &mut row)?;
    }
    if arguments.recovery {
        recovery::measure(&arguments.store)?.add_to(&mut row);
    }
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
    let get = |metric| measured.get(metric);
    let line = |name, metric, unit, of| row(name, spread(get(metric), unit, of));
    println!(
        "{} {} on {}, {}: {} + {} bytes, {} records, {} operations, {} thread{}, {} repetitions",
        measured.subject,
        measured.say("version"),
        measured.say("medium"),
        paint(Tone::Strong, &measured.workload),
        measured.say("key"),
        measured.say("value"),
        units::count(measured.number("records") as u64),
        units::count(get(Metric::Operations).median as u64),
        measured.threads,
        if measured.threads == 1 { "" } else { "s" },
        measured.rounds(Metric::Rate).len(),
    );
    line("rate", Metric::Rate, 1e6, "M/s");
    line("time an operation", Metric::WallNs, 1.0, "ns");
    line("processor time", Metric::CpuNs, 1.0, "ns");
    line("of the whole process", Metric::ProcessCpuNs, 1.0, "ns");
    row(
        "waiting for a core",
        format!(
            "{:.1} % of the time, {} times preempted",
            measured.mean(Metric::QueuedShare) * 100.0,
            measured.rounds(Metric::Preempted).iter().sum::<f64>()
        ),
    );
    print_latency(measured);
    print_space(measured);
}

fn print_latency(measured: &Row) {
    use Metric::{
        CoreMaxNs, CoreP50Ns, CoreP99Ns, CoreP999Ns, MaxNs, P50Ns, P99Ns, P999Ns, SlowQueuedShare,
        SlowShare,
    };
    if measured.percentiles().is_none() {
        return;
    }
    let calls = match measured.number("batch") {
        batch if batch > 1.0 => format!(" (calls of {batch})"),
        _ => String::new(),
    };
    let all = percentiles(measured, [P50Ns, P99Ns, P999Ns, MaxNs]);
    row("latency", format!("{all}{calls}"));
    let with_core = [CoreP50Ns, CoreP99Ns, CoreP999Ns, CoreMaxNs];
    row("  had it a core", percentiles(measured, with_core));
    row(
        "  above 20 us",
        format!(
            "{:.4} % of the calls; {:.0} % of these waited for a core",
            measured.get(SlowShare).median * 100.0,
            measured.get(SlowQueuedShare).median * 100.0
        ),
    );
}

fn print_space(measured: &Row) {
    let middle = |metric| measured.median(metric);
    if let Some(bytes) = middle(Metric::DramBytes) {
        let counted = middle(Metric::CountedDramBytes).map_or(String::new(), |bytes| {
            format!("; the store counts {bytes:.1} B")
        });
        row(
            "DRAM a record",
            format!("{bytes:.1} B of the process{counted}"),
        );
    }
    if let Some(bytes) = middle(Metric::MediumBytes) {
        row("medium a record", format!("{bytes:.1} B"));
    }
    if let Some(fences) = middle(Metric::Fences) {
        row(
            "to the medium, each",
            format!(
                "{fences:.2} fences, {:.2} lines, {:.1} B stored",
                measured.get(Metric::Lines).median,
                measured.get(Metric::StoredBytes).median
            ),
        );
    }
    if let Some(ns) = middle(Metric::RecoveryNs) {
        let records = measured.get(Metric::Recovered).median;
        let cpu_ns = measured.get(Metric::RecoveryCpuNs).median;
        row(
            "open after a crash",
            format!(
                "{} for {} records; {:.3} us of processor time a record",
                time(ns),
                units::count(records as u64),
                cpu_ns / 1e3 / records.max(1.0)
            ),
        );
    }
}

fn time(ns: f64) -> String {
    units::time(Duration::from_nanos(ns as u64))
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

fn percentiles(measured: &Row, metrics: [Metric; 4]) -> String {
    let [p50, p99, p999, max] = metrics.map(|metric| time(measured.get(metric).max));
    format!("p50 {p50}, p99 {p99}, p99.9 {p999}, slowest {max}")
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
        assert_eq!(plan.workloads, [Workload::YcsbA]);
        assert_eq!(plan.extent, Extent::Operations(20_000));
        assert_eq!((plan.records, plan.threads), (20_000, 2));
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
