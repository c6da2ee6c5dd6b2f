//! `everdram demo`: real data, real load, a real SIGKILL, and a count of what was lost.

pub mod campaign;
pub mod corpus;
mod keys;
mod mix;

use crate::killing::process::Launch;
use crate::killing::{self, place};
use crate::settings::{engine, usage};
use crate::terminal::{Progress, Tone, paint, row};
use crate::{Outcome, units};
use anyhow::Context;
use campaign::{Plan, Summary};
use corpus::Corpus;
use everdram::EngineKind;
use rand::RngExt;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;

/// Load real data, kill the server in the middle, and check every acknowledged write.
#[derive(clap::Args)]
#[command(
    long_about = "Starts a real server process on a free port, loads a directory tree over the Redis protocol (key = path, \
                  value = contents), runs a zipfian mixed load of GET, SET, DEL and INCR from several connections, \
                  kills the server with SIGKILL in the middle, starts it again on the same pool, and checks every \
                  acknowledged write.\n\n\
                  `lost` must be 0: an acknowledged write is there after the kill, unless a later write took its \
                  place. Writes that were under way may be there or not. A value that any reader was shown may never \
                  be older later.\n\n\
                  A killed process tests recovery, not the disk: the kernel still holds what the process wrote. Power \
                  loss is tested by other means.\n\n\
                  Example: everdram demo --input ~/src --seconds 20 --kills 3",
    after_help = "Exit codes: 0 nothing was lost; 1 something was, or the run failed; 2 usage."
)]
pub(crate) struct Arguments {
    /// Directory tree or TSV file to load; without it, the sources of this project and its dependencies
    #[arg(long, value_name = "DIR|FILE.tsv")]
    input: Option<PathBuf>,
    /// file, or emulated: emulated persistent memory on the tmpfs of /dev/shm
    #[arg(long, default_value = "file", value_parser = ["file", "emulated"])]
    medium: String,
    /// Connections that load and write
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    connections: u16,
    /// Seconds of mixed load, in all
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// SIGKILLs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    kills: u16,
    /// Pool to use, new or empty; it is kept. Without it, a temporary one
    #[arg(long, value_name = "DIR")]
    pool: Option<PathBuf>,
    /// Keep the temporary pool and say where it is
    #[arg(long)]
    keep: bool,
    /// Seed of everything random; without it, a new one each time
    #[arg(long)]
    seed: Option<u64>,
    /// Engine of the server
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// Engine dstore: where the values are, a new file, or a block device whose first MiB is zeros
    /// [default: the file `data` in the pool's directory]
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let seed = arguments
        .seed
        .unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    let directory = match arguments.medium.as_str() {
        "emulated" => place::for_emulation()?,
        _ => place::for_files()?,
    };
    let plan = plan(arguments, seed, directory.path())?;
    if !arguments.json {
        println!("{}", paint(Tone::Strong, "everdram demo"));
        row("input", &plan.corpus.source);
        let (keys, bytes) = (plan.corpus.documents.len() as u64, plan.corpus.bytes());
        row(
            "documents",
            format_args!("{}, {}", units::count(keys), units::bytes(bytes)),
        );
        row("pool", plan.launch.pool.display());
        row(
            "seed",
            format_args!("{seed} (repeat the load with --seed {seed})"),
        );
    }
    let summary = watched(&plan, arguments.json)?;
    if arguments.json {
        println!("{}", to_json(arguments, seed, &summary));
    } else {
        print(arguments, &summary);
    }
    leave(arguments, directory, &summary);
    Ok(if summary.is_sound() {
        Outcome::Sound
    } else {
        Outcome::Damaged
    })
}

fn plan(arguments: &Arguments, seed: u64, directory: &Path) -> anyhow::Result<Plan> {
    let corpus = Corpus::load(arguments.input.as_deref(), seed)?;
    let pool = arguments
        .pool
        .clone()
        .unwrap_or_else(|| directory.join("pool"));
    let serve = [
        "--medium",
        &arguments.medium,
        "--engine",
        arguments.engine.name(),
        "--durability",
        "always",
    ];
    let mut serve = serve.map(str::to_owned).to_vec();
    if let Some(data) = &arguments.data {
        // The server may have another working directory.
        let data = std::path::absolute(data)
            .with_context(|| format!("the data file {}", data.display()))?;
        let data = data.into_os_string().into_string();
        let data = data.map_err(|data| usage(format!("--data {}: no UTF-8", data.display())))?;
        serve.extend(["--data".to_owned(), data]);
    }
    if arguments.engine == EngineKind::Tiered {
        let small = killing::TIERED.into_iter().chain(["--chunk-bytes", "1MiB"]);
        serve.extend(small.map(str::to_owned));
    }
    let launch = Launch {
        program: std::env::current_exe().context("finding this program")?,
        pool,
        log: directory.join("server.log"),
        arguments: serve,
    };
    let stretch_ms = arguments.seconds * 1000 / (u64::from(arguments.kills) + 1);
    Ok(Plan {
        launch,
        corpus,
        connections: usize::from(arguments.connections),
        kills: usize::from(arguments.kills),
        stretch_ms: stretch_ms * 3 / 4..=stretch_ms * 5 / 4,
        kill_in_recovery: false,
        seed,
    })
}

/// Runs the plan with a progress line for each stage.
fn watched(plan: &Plan, quiet: bool) -> anyhow::Result<Summary> {
    let shown: Mutex<Option<(String, Progress)>> = Mutex::new(None);
    let summary = campaign::run(plan, &|stage, percent, words| {
        let Ok(mut shown) = shown.lock() else { return };
        if shown.as_ref().is_none_or(|(title, _)| title != stage) {
            if let Some((_, before)) = shown.take() {
                before.finish();
            }
            let progress = Progress::start(stage, 100, quiet);
            progress.begin(words);
            *shown = Some((stage.to_owned(), progress));
        }
        if let Some((_, progress)) = &*shown {
            progress.at(percent, words);
        }
    });
    if let Ok(Some((_, last))) = shown.into_inner() {
        last.finish();
    }
    summary
}

/// A pool that lost something is evidence and is never removed.
fn leave(arguments: &Arguments, directory: TempDir, summary: &Summary) {
    if arguments.keep || !summary.is_sound() {
        let kept = directory.keep();
        eprintln!("kept: {}", kept.display());
    }
}

fn percentile(summary: &Summary, quantile: f64) -> Duration {
    let times = summary.times.as_ref();
    Duration::from_nanos(times.map_or(0, |times| times.value_at_quantile(quantile)))
}

fn rate(summary: &Summary) -> f64 {
    summary.answered as f64 / summary.mix_time.as_secs_f64().max(0.001)
}

fn longest(times: &[Duration]) -> Duration {
    times.iter().max().copied().unwrap_or_default()
}

fn print(arguments: &Arguments, summary: &Summary) {
    let said = |name: &str| {
        summary
            .report
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or("not said")
            .to_owned()
    };
    let load_rate = summary.loaded_bytes as f64 / summary.load_time.as_secs_f64().max(0.001);
    let loaded = units::bytes(summary.loaded_bytes);
    row(
        "loaded",
        format_args!("{loaded} at {}/s", units::bytes(load_rate as u64)),
    );
    row("kills (SIGKILL)", summary.kills);
    row("writes acknowledged", units::count(summary.acknowledged));
    row("writes verified", units::count(summary.verified));
    row("reads judged", units::count(summary.reads));
    let tone = if summary.is_sound() {
        Tone::Good
    } else {
        Tone::Bad
    };
    row("lost", paint(tone, &units::count(summary.lost)));
    row(
        "inconsistent answers",
        paint(tone, &units::count(summary.inconsistent)),
    );
    let seconds = summary.mix_time.as_secs_f64();
    let connections = arguments.connections;
    row(
        "throughput",
        format_args!(
            "{:.0} requests/s for {seconds:.1} s, {connections} connections",
            rate(summary)
        ),
    );
    let [median, p99, p999] = [0.5, 0.99, 0.999].map(|q| units::time(percentile(summary, q)));
    row(
        "answer times",
        format_args!("p50 {median}, p99 {p99}, p99.9 {p999} (16 in flight each)"),
    );
    if !summary.recoveries.is_empty() {
        let (process, pool) = (
            longest(&summary.recoveries),
            longest(&summary.pool_recoveries),
        );
        row(
            "time to recover",
            format_args!(
                "{} from start to first reply, {} of it the pool",
                units::time(process),
                units::time(pool)
            ),
        );
        row("records recovered", units::count(summary.recovered_records));
    }
    let label = if arguments.medium == "emulated" {
        " EMULATED persistent memory:"
    } else {
        ""
    };
    row(
        "medium",
        format_args!("{}:{label} {}", said("medium"), said("why")),
    );
    row("an answer meant", said("acknowledgement"));
    for broken in &summary.told {
        println!("  {} {broken}", paint(Tone::Bad, "broken:"));
    }
}

fn to_json(arguments: &Arguments, seed: u64, summary: &Summary) -> Value {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let all = |times: &[Duration]| times.iter().copied().map(nanoseconds).collect::<Vec<_>>();
    json!({
        "seed": seed, "engine": arguments.engine.name(), "connections": arguments.connections,
        "kills": summary.kills,
        "keys": summary.keys, "loaded_bytes": summary.loaded_bytes,
        "load_ns": nanoseconds(summary.load_time),
        "writes_acknowledged": summary.acknowledged, "writes_verified": summary.verified,
        "reads_judged": summary.reads, "lost": summary.lost, "inconsistent": summary.inconsistent,
        "broken": summary.told,
        "requests_per_second": rate(summary),
        "p50_ns": nanoseconds(percentile(summary, 0.5)),
        "p99_ns": nanoseconds(percentile(summary, 0.99)),
        "p999_ns": nanoseconds(percentile(summary, 0.999)),
        "recover_to_first_reply_ns": all(&summary.recoveries),
        "recover_pool_ns": all(&summary.pool_recoveries),
        "records_recovered": summary.recovered_records,
        "emulated": arguments.medium == "emulated",
        "report": summary.report,
    })
}
