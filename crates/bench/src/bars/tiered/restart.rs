//! How soon a store is back after a kill, and what a key costs in DRAM.

use super::bed::{Ground, Kind, TIMES};
use super::{Fill, Group, Host, Outcome, Settings, alone, ratio};
use crate::fixture::Place;
use crate::process;
use crate::recovery;
use crate::server::process::{Process, Starter};
use crate::subject::Error;
use crate::timing::Spread;
use anyhow::{Context, ensure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Name of the directory that Redis reads.
const AOF: &str = "aof";

pub(super) fn memory(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::usual(settings)?;
    host.begin(Group::Memory, "viper");
    let viper = ground.bed(Kind::Viper)?;
    let least = viper.fixture.memory(ground.records).dram;
    host.begin(Group::Memory, "tiered");
    let tiered = ground.bed(Kind::Tight)?;
    tiered.rest()?;
    let ours = tiered.fixture.memory(ground.records).dram;
    let says = format!("DRAM a key, of {}", ground.records);
    let (one, other) = ((ours, "B"), (least, "viper"));
    let bar = ratio((Group::Memory, &says), one, other, (0.0, Some(1.15)));
    outcome.bars.push(bar);
    Ok(())
}

pub(super) fn measure(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::usual(settings)?;
    let has_redis = Command::new("redis-server")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let [mut first, mut all, mut cpu, mut viper, mut redis] = [const { Vec::new() }; 5];
    for _ in 0..settings.repeat {
        host.begin(Group::Restart, "viper");
        let place = Place::within(&settings.dir)?;
        let fill = Fill {
            records: ground.records / TIMES,
            tiers: None,
        };
        let opened = crash(&ground, host, &fill, place.path())?;
        viper.push(opened.first.as_secs_f64());
        drop(place);
        host.begin(Group::Restart, "tiered");
        let place = Place::within(&settings.dir)?;
        let log = Place::within(&settings.file_dir)?;
        let fill = Fill {
            records: ground.records,
            tiers: Some((ground.pool_bytes(), log.path())),
        };
        let opened = crash(&ground, host, &fill, place.path())?;
        first.push(opened.first.as_secs_f64());
        all.push(opened.all.as_secs_f64());
        cpu.push(opened.cpu.as_secs_f64() * 1e6 / ground.records as f64);
        if has_redis {
            host.begin(Group::Restart, "redis-server");
            let files = Place::within(&settings.file_dir)?;
            export(&host.program()?, place.path(), files.path())?;
            redis.push(load(files.path(), ground.records)?.as_secs_f64());
        }
    }
    let [first, all, cpu, viper, redis] =
        [first, all, cpu, viper, redis].map(|of| Spread::of(of).median);
    let says = "first answer, a quarter of the keys in the pool";
    let ours = (first * 1e3, "ms");
    let other = (viper * 1e3, "viper, the pool's keys alone");
    let bounds = (0.0, Some(1.2));
    outcome
        .bars
        .push(ratio((Group::Restart, says), ours, other, bounds));
    let says = "all keys, processor time of one";
    let bar = alone((Group::Restart, says), (cpu, "us"), (0.0, Some(0.35)));
    outcome.bars.push(bar);
    if has_redis {
        let says = format!("all of {} keys", ground.records);
        let ours = (all * 1e3, "ms");
        let other = (redis * 1e3, "redis-server, from its AOF");
        let bounds = (0.0, Some(0.25));
        outcome
            .bars
            .push(ratio((Group::Restart, &says), ours, other, bounds));
    } else {
        let why = "redis-server is not installed";
        outcome.skipped.push((Group::Restart, why.into()));
    }
    Ok(())
}

/// A store that was opened after a kill.
struct Opened {
    /// From the call to open until the record was read that was written last, by the clock.
    first: Duration,
    /// The same until every key was known.
    all: Duration,
    /// Processor time of all threads until then.
    cpu: Duration,
}

/// Has a process fill a store in `dir`, kills it, and opens the store.
fn crash(
    ground: &Ground<'_>,
    host: &dyn Host,
    fill: &Fill<'_>,
    dir: &Path,
) -> Result<Opened, Error> {
    let mut opener = match fill.tiers {
        Some((_, below)) => ground.opener(Kind::Tight, below),
        None => ground.opener(Kind::Growing, dir),
    };
    // To make the pool's pages present takes longer than a restart.
    opener.prefault = false;
    recovery::kill(&mut host.filler(fill, dir)?)?;
    let (begun, cpu) = (Instant::now(), process::cpu());
    let (opened, subject) = recovery::open(&opener, &ground.corpus, dir, fill.records)?;
    // This waits for the rest.
    let keys = subject.store().context("no store of everdram")?.len();
    ensure!(keys == fill.records, "{keys} keys of {}", fill.records);
    Ok(Opened {
        first: opened.wall,
        all: begun.elapsed(),
        cpu: process::cpu().saturating_sub(cpu),
    })
}

/// Writes what is in the store in `dir` as append-only files.
fn export(program: &Path, dir: &Path, into: &Path) -> Result<(), Error> {
    let output = Command::new(program)
        .arg("export")
        .arg(dir.join("pool"))
        .arg("--aof")
        .arg(into.join(AOF))
        .output()
        .context("starting everdram export")?;
    ensure!(
        output.status.success(),
        "everdram export ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// How long a redis-server takes that starts with these files, until it answers.
fn load(dir: &Path, keys: u64) -> Result<Duration, Error> {
    let place = dir.to_str().context("a path that is not text")?;
    let options = [
        ("--bind", "127.0.0.1"),
        ("--save", ""),
        ("--dir", place),
        ("--appendonly", "yes"),
        ("--appenddirname", AOF),
    ];
    let arguments = options.iter().flat_map(|(name, value)| [*name, *value]);
    let starter = Starter {
        program: "redis-server".into(),
        arguments: arguments.map(str::to_owned).collect(),
        place: dir.to_owned(),
    };
    let begun = Instant::now();
    let server = Process::start(&starter, None)?;
    let taken = begun.elapsed();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port))?;
    stream.write_all(b"DBSIZE\r\n")?;
    let mut reply = [0; 32];
    let length = stream.read(&mut reply)?;
    let said = String::from_utf8_lossy(&reply[..length]);
    ensure!(
        said.trim() == format!(":{keys}"),
        "redis-server has {said:?} keys of {keys}"
    );
    server.stop()?;
    Ok(taken)
}
