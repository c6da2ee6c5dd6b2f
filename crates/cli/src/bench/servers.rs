//! `everdram bench servers`: this program beside Redis and Valkey, over real sockets.

use super::rows;
use crate::settings::engine;
use crate::terminal::Progress;
use crate::{Outcome, units};
use anyhow::Context;
use everdram::EngineKind;
use everdram_bench::server::{self, Command, Comparison, Data, Load, Pins, Places};
use std::path::PathBuf;

/// Values of all keys together are at most this, unless --keys says otherwise.
const VALUES_BYTES: u64 = 256 << 20;

/// Compare servers: everdram, Redis, Valkey.
#[derive(clap::Args)]
#[command(
    long_about = "Starts everdram (emulated persistent memory, and files), Redis and Valkey (no persistence, \
                  everysec, always), sets all keys, and then asks each in turn, load by load and repetition by \
                  repetition, over many connections of one thread. Replies are checked byte by byte. Processor time \
                  of the server is the steadiest figure on a machine that others use, too.\n\n\
                  Each server has a directory of its own, which is removed afterwards.\n\n\
                  Example: everdram bench servers --dir . --pipeline 1,16"
)]
pub(crate) struct Arguments {
    /// A directory on a disk, for everdram on files and for Redis.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// A directory on tmpfs, for emulated persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    emulated_dir: PathBuf,
    /// Engine of everdram.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// Only servers whose names contain one of these, such as `emulated,always`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Commands: set, get.
    #[arg(long, value_delimiter = ',', default_value = "set,get", value_parser = parse_command)]
    commands: Vec<Command>,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Requests of a connection under way at once.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    pipeline: Vec<usize>,
    /// Bytes of a value, such as 200,4KiB,64KiB.
    #[arg(long = "value", value_delimiter = ',', default_value = "200", value_parser = units::parse_bytes)]
    value_bytes: Vec<u64>,
    /// Keys [default: 1M, fewer if values are large].
    #[arg(long, value_parser = units::parse_count)]
    keys: Option<u64>,
    /// Requests a second, due at fixed times (open loop) [default: as fast as replies come].
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Repetitions.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Where the random keys start.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave it to the kernel which cores servers and load run on.
    #[arg(long)]
    no_pin: bool,
    /// Short measurements over fewer keys, for a first look.
    #[arg(long)]
    quick: bool,
    /// Write each row as a JSON line to this file as well; `-` is standard output, without the table.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let is_standard = rows::are_all(arguments.json.as_deref());
    let comparison = comparison(arguments)?;
    let progress = Progress::start("servers", 1000, is_standard);
    let measured = server::compare(&comparison, &mut |done, what| {
        progress.at((done * 1000.0) as u64, what);
    });
    progress.finish();
    let measured = measured?;
    if !is_standard {
        print!("{}", server::text(&measured));
    }
    rows::write(arguments.json.as_deref(), &rows::lines(&measured)?)?;
    Ok(Outcome::Sound)
}

fn comparison(arguments: &Arguments) -> anyhow::Result<Comparison> {
    let places = Places {
        emulated: arguments.emulated_dir.clone(),
        file: arguments.dir.clone(),
    };
    let everdram = std::env::current_exe().context("finding this program")?;
    let (mut contenders, left_out) = server::known(&everdram, arguments.engine, &places)?;
    for reason in left_out {
        eprintln!("left out: {reason}");
    }
    if !arguments.only.is_empty() {
        contenders.retain(|contender| {
            let label = contender.label();
            arguments.only.iter().any(|part| label.contains(part))
        });
        anyhow::ensure!(
            !contenders.is_empty(),
            "no server is called like that; --only names too little"
        );
    }
    Ok(Comparison {
        contenders,
        loads: loads(arguments)?,
        repetitions: if arguments.quick {
            1
        } else {
            arguments.repeat.max(1)
        },
        pins: if arguments.no_pin {
            Pins::default()
        } else {
            Pins::apart()
        },
    })
}

fn loads(arguments: &Arguments) -> anyhow::Result<Vec<Load>> {
    let mut loads = Vec::new();
    let seconds = if arguments.quick {
        1.0
    } else {
        arguments.seconds
    };
    for &value_bytes in &arguments.value_bytes {
        let shrink = if arguments.quick { 10 } else { 1 };
        let keys = (VALUES_BYTES / value_bytes.max(1)).min(1_000_000) / shrink;
        let data = Data {
            keys: arguments.keys.unwrap_or(keys).max(1),
            value_bytes: usize::try_from(value_bytes)?,
        };
        for &pipeline in &arguments.pipeline {
            loads.extend(arguments.commands.iter().map(|&command| Load {
                command,
                data,
                connections: arguments.connections,
                pipeline,
                rate: arguments.rate,
                most: None,
                warm_up_seconds: (seconds / 5.0).min(0.5),
                seconds,
                seed: arguments.seed,
            }));
        }
    }
    Ok(loads)
}

fn parse_command(text: &str) -> Result<Command, String> {
    [Command::Set, Command::Get]
        .into_iter()
        .find(|command| command.word().eq_ignore_ascii_case(text))
        .ok_or_else(|| format!("command `{text}`: set or get"))
}
