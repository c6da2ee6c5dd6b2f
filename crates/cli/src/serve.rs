//! `everdram serve`: serves a pool by the Redis protocol until a signal or SHUTDOWN.
//!
//! Order at start: settings, pool (with recovery), report, listeners, "ready". Order at the end: refuse new
//! connections, drain replies, make everything durable, close the pool. An end without that order costs time
//! at the next start, never data.

use crate::settings::Layer;
use crate::terminal::{Tone, paint, row};
use crate::{Outcome, findings, pool, units};
use anyhow::Context;
use everdram::options::Create;
use everdram::{Durability, Store};
use everdram_fabric::Door;
use everdram_resp::Server;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long clients of the fabric may read a value in place. 1 MiB takes some ms over loopback; what others
/// free can be used again some tenths of a second later.
const READ_LEASE: Duration = Duration::from_millis(100);

/// Serve a pool to Redis clients.
#[derive(clap::Args)]
#[command(
    long_about = "Serves a pool over the Redis protocol (RESP2 and RESP3), strings and keys. A reply to a write is \
                  sent once the write is durable; what that means on this machine is printed at start, and in INFO. \
                  Killing the process at any moment loses nothing that was acknowledged. SIGTERM and SIGINT drain \
                  and close. With --fabric, clients of a fabric have a door of their own to the same store.\n\n\
                  Settings come from flags, then the environment, then the file of --config (TOML, same names), \
                  then defaults.\n\n\
                  A pool that is refused as damaged can be served read-only with --salvage: everything that verifies is \
                  there, and nothing of the pool changes, so it can be copied away before anything is tried. To have it in a \
                  new pool, use `everdram export --salvage` and `everdram import`.\n\n\
                  Example: everdram serve --pool ./data --port 6379\n\
                  Then:    redis-cli SET key value",
    after_help = "Logs go to standard error; EVERDRAM_LOG=debug says more.\n\
                  Exit codes: 0 closed in order; 1 failed; 2 usage."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    layer: Layer,
    /// Settings file in TOML: the long names of these flags, such as `port = 6379`
    #[arg(long, env = "EVERDRAM_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the TCP port to this file once the server is ready
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// Serve what verifies of a damaged pool, read-only: nothing of the pool changes, writes are refused, and
    /// a GET of a key that is known to be damaged is an error. What is missing is said at start, and in INFO
    #[arg(long)]
    salvage: bool,
    /// Announce on standard output, as one JSON object, that the server is ready
    #[arg(long)]
    json: bool,
    /// End as on SIGTERM when standard input closes: a server that does not outlive who started it
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    start_log();
    let file = arguments
        .config
        .as_deref()
        .map(Layer::from_file)
        .transpose()?
        .unwrap_or_default();
    let mut settings = arguments.layer.clone().resolve(file)?;
    settings
        .server
        .validate()
        .map_err(|error| crate::settings::usage(error.to_string()))?;
    // Catch signals from here on: one that arrives during recovery ends the server after recovery.
    let signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).context("signals")?;

    if arguments.salvage {
        settings.options.salvage = true;
        settings.options.create = Create::Never;
    }
    if settings.fabric.is_some() {
        // Before the pool has threads, and before a long recovery that would be for nothing.
        everdram_fabric::version().context("fabric door")?;
    }
    let lends = settings.options.lend_bytes > 0;
    let asked = settings.options.durability;
    let store = pool::open(&settings.pool, settings.options, arguments.json)
        .with_context(|| format!("pool {}", settings.pool.display()))?;
    let given = store.report().durability;
    anyhow::ensure!(
        strength(given) >= strength(asked),
        "the pool gives durability `{given}`, which is weaker than `{asked}`; ask for `{given}` if that will do"
    );
    if arguments.salvage {
        tell_damage(&store);
    }
    let server = Server::start(store.clone(), settings.server).context("server")?;
    let door = settings
        .fabric
        .map(|address| {
            let defaults = everdram_fabric::Settings::default();
            let fabric = everdram_fabric::Settings {
                password: server.password(),
                trusts_peers: settings.fabric_trusts_peers,
                read_lease: settings.fabric_reads_in_place.then_some(READ_LEASE),
                lends,
                memory_bytes: settings.fabric_memory.unwrap_or(defaults.memory_bytes),
                ..defaults
            };
            Door::start(&store, &address, fabric)
        })
        .transpose();
    let door = match door {
        Ok(door) => door,
        Err(error) => {
            server.shutdown_handle().shutdown();
            let _ = server.wait();
            return Err(error).context("fabric door");
        }
    };
    if let Some(door) = &door {
        server.tell_of_fabric(door.info());
    }
    end_on_request(&server, signals, arguments.until_stdin_closes)?;
    announce(arguments, &settings.pool, &store, &server, door.as_ref())?;
    let ended = server.wait();
    if let Some(door) = door {
        door.stop();
    }
    let keys = known_keys(&store);
    let closed = store.close();
    ended.context("server")?;
    closed.context("closing the pool")?;
    if !arguments.json && !arguments.salvage {
        match keys {
            Some(keys) => println!("closed; {} keys are durable", units::count(keys)),
            None => println!("closed; everything is durable"),
        }
    }
    Ok(Outcome::Sound)
}

/// The number of keys; `None` while a log is being read, which may take long: nobody is to wait for that.
fn known_keys(store: &Store) -> Option<u64> {
    let is_loading = store.engine().loading().is_some();
    (!is_loading).then(|| store.len())
}

/// Prints what a salvaged store lacks on standard error, since the operator must know it.
fn tell_damage(store: &Store) {
    /// Number of findings printed; `everdram check` lists all.
    const SAID: usize = 200;
    let found = store.damage();
    for finding in found.iter().take(SAID) {
        eprintln!("damaged {}", findings::line(finding));
    }
    if found.len() > SAID {
        let more = units::count((found.len() - SAID) as u64);
        eprintln!("and {more} more: `everdram check` lists all");
    }
}

fn strength(durability: Durability) -> u8 {
    match durability {
        Durability::Always => 2,
        Durability::EverySec => 1,
        Durability::None => 0,
    }
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("EVERDRAM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // If a log is already set up, that one serves.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}

/// Starts the threads that shut the server down at a signal, or at the end of standard input.
fn end_on_request(
    server: &Server,
    mut signals: signal_hook::iterator::Signals,
    until_stdin_closes: bool,
) -> anyhow::Result<()> {
    let handle = server.shutdown_handle();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for _ in signals.forever() {
                handle.shutdown();
            }
        })?;
    if until_stdin_closes {
        let handle = server.shutdown_handle();
        std::thread::Builder::new()
            .name("stdin".into())
            .spawn(move || {
                let mut sink = [0; 64];
                while std::io::stdin()
                    .read(&mut sink)
                    .is_ok_and(|count| count > 0)
                {}
                handle.shutdown();
            })?;
    }
    Ok(())
}

fn announce(
    arguments: &Arguments,
    path: &Path,
    store: &Store,
    server: &Server,
    door: Option<&Door>,
) -> anyhow::Result<()> {
    let addresses = server.local_addrs();
    let port = addresses.first().map(|address| address.port());
    // Before the announcement, so that its reader finds the file.
    if let (Some(file), Some(port)) = (&arguments.port_file, port) {
        write_port(file, port)?;
    }
    let stats = store.stats();
    if arguments.json {
        let mut object = json!({
            "event": "ready", "pool": path, "port": port,
            "addresses": addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "keys": known_keys(store), "recovery_us": stats.recovery_us,
            "recovered_records": stats.recovered_records, "recovered_losers": stats.recovered_losers,
        });
        if let Some(lacks) = stats.salvage {
            object["salvage"] = json!({
                "damaged_places": lacks.findings, "missing_records": lacks.missing_records,
                "doubtful_keys": lacks.doubtful_keys, "skipped_bytes": lacks.skipped_bytes,
            });
        }
        if let Some(door) = door {
            object["fabric"] = json!(door.address());
        }
        object["report"] = pool::report_json(store.report());
        println!("{object}");
    } else {
        println!(
            "{} {}",
            paint(Tone::Strong, "everdram"),
            env!("CARGO_PKG_VERSION")
        );
        row("pool", path.display());
        pool::print_report(store.report());
        let recovery = units::time(Duration::from_micros(stats.recovery_us));
        let records = units::count(stats.recovered_records);
        row("recovered", format_args!("{records} records in {recovery}"));
        match store.engine().loading() {
            None => row("keys", units::count(store.len())),
            Some((_, bytes)) => {
                let log = units::bytes(bytes);
                row(
                    "keys",
                    format_args!("{log} of log are being read; those of the pool are served"),
                );
            }
        }
        if let Some(lacks) = stats.salvage {
            let (places, records) = (
                units::count(lacks.findings),
                units::count(lacks.missing_records),
            );
            let words = match lacks.findings {
                0 => "nothing is damaged; read-only all the same".into(),
                _ => format!(
                    "{places} places are damaged, at least {records} records are missing; read-only"
                ),
            };
            row("salvage", words);
        }
        for address in addresses {
            row("listening on", address);
        }
        if let Some(door) = door {
            row("fabric", door.address());
        }
        println!("{}", paint(Tone::Good, "ready"));
    }
    Ok(())
}

/// Writes the port file by a rename. Without this, a reader could find half a port.
fn write_port(file: &Path, port: u16) -> anyhow::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, format!("{port}\n"))
        .and_then(|()| std::fs::rename(&beside, file))
        .with_context(|| format!("port file {}", file.display()))
}
