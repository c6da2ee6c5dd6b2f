//! `everdram doctor`: a path's medium, its latency, and what an acknowledgement will mean.
//!
//! An existing pool is opened as it is. In any other directory, doctor creates a small pool in a temporary
//! subdirectory, tries it, and removes it. On a device without a pool it writes nothing.

use crate::terminal::{Tone, paint, row};
use crate::{Outcome, pool, units};
use anyhow::Context;
use everdram::options::Create;
use everdram::{Durability, Medium, MediumChoice, Options, Session, Store};
use everdram_fabric::{Bounds, Commit};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Say what a path gives: medium, latency, and what an acknowledgement will mean.
#[derive(clap::Args)]
#[command(
    long_about = "Says which medium everdram takes at a path and why, measures how long the medium needs to make a small \
                  write durable, and states what an acknowledgement will mean there. If the path holds a pool, that \
                  one is opened; otherwise a small one is tried in a temporary subdirectory and removed. A devdax \
                  device without a pool is only looked at.\n\n\
                  A disk that syncs in a few microseconds most likely answers from a cache: whether that cache \
                  survives a power loss is for its maker to say. everdram cannot see it.\n\n\
                  Example: everdram doctor /var/lib",
    after_help = "Exit codes: 0 measured; 1 no pool can live there; 2 usage."
)]
pub(crate) struct Arguments {
    /// A directory, a pool, or a devdax device.
    path: PathBuf,
    /// auto, pmem, file or emulated
    #[arg(long, default_value = "auto")]
    medium: MediumChoice,
    /// Say also which providers of libfabric `serve --fabric` can use
    #[arg(long)]
    fabric: bool,
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
}

const SAMPLES: usize = 200;
const PROBE_POOL_BYTES: u64 = 16 << 20;
/// A faster sync probably did not reach a medium that keeps bytes without power. Only a very good medium is
/// faster.
const SUSPICIOUS: Duration = Duration::from_micros(20);

/// Times of one kind of operation, sorted.
struct Samples(Vec<Duration>);

impl Samples {
    fn take(mut operation: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Samples> {
        let mut times = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            let begun = Instant::now();
            operation()?;
            times.push(begun.elapsed());
        }
        times.sort();
        Ok(Samples(times))
    }

    fn percentile(&self, percent: usize) -> Duration {
        let index = self.0.len().saturating_mul(percent) / 100;
        self.0
            .get(index.min(self.0.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }

    fn text(&self) -> String {
        format!(
            "p50 {}, p99 {}",
            units::time(self.percentile(50)),
            units::time(self.percentile(99))
        )
    }

    fn json(&self) -> Value {
        let nanoseconds =
            |percent| u64::try_from(self.percentile(percent).as_nanos()).unwrap_or(u64::MAX);
        json!({ "p50_ns": nanoseconds(50), "p99_ns": nanoseconds(99), "samples": self.0.len() })
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let path = &arguments.path;
    // Before opening: a directory in which no pool may live can have a subdirectory in which one may.
    match everdram_pm::Pool::inspect(path) {
        Err(everdram_pm::Error::NotFound { .. }) if path.is_dir() => {
            try_new(arguments)?;
            return Ok(Outcome::Sound);
        }
        Err(everdram_pm::Error::NotAPool { .. }) if is_device(path) => {
            print_unused(arguments, &everdram_pm::probe(path)?);
            return Ok(Outcome::Sound);
        }
        _ => {}
    }
    anyhow::ensure!(
        path.exists(),
        "{}: not there; give a directory, a pool or a device",
        path.display()
    );
    let store = open_existing(arguments)?;
    let sync = path.is_dir().then(|| measure_sync(path)).transpose()?;
    print(arguments, path, &store, sync.as_ref(), None);
    store.close()?;
    Ok(Outcome::Sound)
}

fn is_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// A device without a pool may hold something else, so nothing is tried on it.
fn print_unused(arguments: &Arguments, probe: &everdram_pm::Probe) {
    let remark = "nothing was written, so nothing was measured; a pool that is made here measures its latency";
    if arguments.json {
        let object = json!({
            "path": arguments.path, "existing_pool": false, "medium": probe.medium.to_string(),
            "why": probe.why, "remarks": [remark],
        });
        println!("{object}");
        return;
    }
    row(
        "path",
        format_args!("{} (a device without a pool)", arguments.path.display()),
    );
    row("medium", format_args!("{}: {}", probe.medium, probe.why));
    println!("  {} {remark}", paint(Tone::Strong, "note:"));
}

fn options(arguments: &Arguments, create: Create) -> Options {
    let mut options = Options::default();
    options.medium = arguments.medium;
    options.create = create;
    options
}

fn open_existing(arguments: &Arguments) -> anyhow::Result<Store> {
    let mut options = options(arguments, Create::Never);
    options.reclaim_background = false;
    Ok(Store::open(&arguments.path, &options)?)
}

/// Makes a pool in a temporary subdirectory, which is removed again also after an error.
fn try_new(arguments: &Arguments) -> anyhow::Result<()> {
    let made = tempfile::Builder::new()
        .prefix(".everdram-doctor-")
        .tempdir_in(&arguments.path);
    let directory =
        made.with_context(|| format!("{}: cannot be written to", arguments.path.display()))?;
    let sync = measure_sync(directory.path())?;
    let mut options = options(arguments, Create::New);
    options.initial_bytes = PROBE_POOL_BYTES;
    options.chunk_bytes = PROBE_POOL_BYTES;
    options.log_bytes = PROBE_POOL_BYTES;
    let path = directory.path().join("pool");
    let store = Store::open(&path, &options)?;
    let mut session = store.session()?;
    let puts = measure_puts(&mut session)?;
    drop(session);
    print(arguments, &path, &store, Some(&sync), Some(&puts));
    store.close()?;
    Ok(directory.close()?)
}

/// Overwrites 4 KiB of an allocated file at the same place and calls fdatasync, repeatedly.
fn measure_sync(directory: &Path) -> anyhow::Result<Samples> {
    let mut file: File = tempfile::tempfile_in(directory)?;
    let page = [0x5a_u8; 4096];
    file.write_all(&page)?;
    file.sync_all()?;
    Samples::take(|| {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&page)?;
        Ok(file.sync_data()?)
    })
}

fn measure_puts(session: &mut Session) -> anyhow::Result<Samples> {
    let mut number = 0_u64;
    Samples::take(|| {
        number += 1;
        session.put(&number.to_le_bytes(), &[0x5a; 200])?;
        Ok(())
    })
}

/// The pool lies at `path`.
fn print(
    arguments: &Arguments,
    path: &Path,
    store: &Store,
    sync: Option<&Samples>,
    puts: Option<&Samples>,
) {
    let report = store.report();
    let remarks = remarks(store, sync);
    // Others are private memory, or what the device has.
    let pages = (report.medium == Medium::Emulated)
        .then(|| everdram_pm::Pool::huge_bytes(path).ok())
        .flatten();
    if arguments.json {
        let mut object = pool::report_json(report);
        object["path"] = json!(arguments.path);
        object["existing_pool"] = json!(puts.is_none());
        object["write_and_sync"] = json!(sync.map(Samples::json));
        object["put"] = json!(puts.map(Samples::json));
        object["remarks"] = json!(remarks);
        object["huge_bytes"] = json!(pages.map(|(huge, _)| huge));
        object["image_bytes"] = json!(pages.map(|(_, all)| all));
        if arguments.fabric {
            object["fabric"] = match fabric() {
                Ok((version, providers)) => json!({
                    "libfabric": version,
                    "providers": providers.iter().map(Tried::json).collect::<Vec<_>>(),
                }),
                Err(reason) => json!({ "error": reason }),
            };
        }
        println!("{object}");
        return;
    }
    let what = if puts.is_none() {
        "an existing pool"
    } else {
        "no pool yet; tried a temporary one"
    };
    row(
        "path",
        format_args!("{} ({what})", arguments.path.display()),
    );
    pool::print_report(report);
    if let Some((huge, all)) = pages {
        let (huge, all) = (units::bytes(huge), units::bytes(all));
        row("pages", format_args!("of 2 MiB for {huge} of {all}"));
    }
    if let Some(sync) = sync {
        row(
            "write + fdatasync",
            format_args!("{} (4 KiB over the same place of a file)", sync.text()),
        );
    }
    if let Some(puts) = puts {
        row(
            "put, one session",
            format_args!("{} (200 bytes, durable on return)", puts.text()),
        );
    }
    if arguments.fabric {
        match fabric() {
            Ok((version, providers)) => {
                row("libfabric", version);
                for tried in &providers {
                    row(&format!("provider {}", tried.name), tried.text());
                }
            }
            Err(reason) => row("libfabric", reason),
        }
    }
    for remark in remarks {
        println!("  {} {remark}", paint(Tone::Strong, "note:"));
    }
}

/// A provider of libfabric that was tried out within this process.
struct Tried {
    name: String,
    probe: everdram_fabric::Probe,
}

impl Tried {
    fn commit(&self) -> String {
        match &self.probe.commit {
            Commit::NotOffered => "no durable writes: RDMP-CC is not offered".into(),
            Commit::Fails(why) => format!("its durable writes fail: {why}"),
            Commit::Completes(times) => format!(
                "durable writes for RDMP-CC, {} for {} (plain: {})",
                units::time(times.durable),
                units::bytes(times.bytes as u64),
                units::time(times.sent)
            ),
        }
    }

    fn bounds(&self) -> String {
        match &self.probe.bounds {
            Bounds::Kept => "peers stay inside of their memory".into(),
            Bounds::ByDevice => "the device refuses what is outside of a peer's memory, but keys of memory can be \
                                 guessed: serve others only with --fabric-trust-peers"
                .into(),
            Bounds::Forgeable => {
                "a peer can write outside of its memory: serve others only with --fabric-trust-peers".into()
            }
            Bounds::Unknown(why) => format!("whether peers stay inside of their memory is unknown: {why}"),
        }
    }

    fn text(&self) -> String {
        format!("{}; {}", self.commit(), self.bounds())
    }

    fn json(&self) -> Value {
        json!({ "name": self.name, "durable_writes": self.commit(), "bounds": self.bounds() })
    }
}

/// The version of libfabric, and the providers with which a door opens.
fn fabric() -> Result<(String, Vec<Tried>), String> {
    let version = everdram_fabric::version().map_err(|error| error.to_string())?;
    let found = everdram_fabric::providers().map_err(|error| error.to_string())?;
    // One address of each; loopback where it serves that.
    let mut places: BTreeMap<String, Option<IpAddr>> = BTreeMap::new();
    for provider in found {
        let place = places.entry(provider.name).or_default();
        let is_better = place.is_none() || provider.address.is_some_and(|at| at.is_loopback());
        *place = if is_better { provider.address } else { *place };
    }
    let tried = places.into_iter().map(|(name, address)| {
        let here = SocketAddr::new(address.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0);
        let probe = everdram_fabric::probe(&name, here).map_err(|error| error.to_string())?;
        Ok(Tried { name, probe })
    });
    let tried = tried.collect::<Result<Vec<_>, String>>()?;
    Ok((format!("{}.{}", version.0, version.1), tried))
}

fn remarks(store: &Store, sync: Option<&Samples>) -> Vec<&'static str> {
    let report = store.report();
    let mut remarks = Vec::new();
    if report.medium == Medium::Emulated {
        remarks.push("emulated: survives a killed process, not a power loss or a reboot");
    }
    if report.medium == Medium::File && sync.is_some_and(|sync| sync.percentile(50) < SUSPICIOUS) {
        remarks.push(
            "this sync is faster than any disk: memory, or a write cache; ask its maker about power loss",
        );
    }
    if report.durability != Durability::Always {
        remarks.push(
            "acknowledgements come before durability: a power loss may take what was acknowledged",
        );
    }
    remarks
}
