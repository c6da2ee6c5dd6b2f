//! The fabric door against the Redis door of the same server, over loopback: libfabric's provider `tcp`,
//! which needs no adapter. What a modelled network shows is judged with the figures of RDMP-KV.

mod bare;

use self::bare::{Bare, HEAD_BYTES};
use crate::fixture::Place;
use crate::latency::histogram;
use crate::named::named;
use crate::row::Metric;
use crate::server::{Command, Contender, Data, Load, Pins, Running};
use crate::subject::Error;
use crate::timing::Spread;
use crate::verdict::{Compared, Verdict};
use anyhow::{Context, ensure};
use everdram::EngineKind;
use everdram_fabric::{Client, ClientOptions, Outcome, Way};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

named! {
    /// What is measured together.
    Group, "group":
    Put = "put": "Puts of 200 bytes, against SET",
    Bare = "bare": "Puts and gets, against the same messages, writes and reads without a store",
    Idle = "idle": "1000 clients that do nothing",
    Resp = "resp": "GET of a server whose pool has a landing area, against one without",
}

/// Bytes of a value that goes inline.
pub const SHORT_VALUE_BYTES: usize = 200;
/// Values that travel by writes and reads of their own, and keys of such puts.
const SHORT_BYTES: usize = 4 << 10;
const LONG_BYTES: usize = 64 << 10;
const KEYS_OF_LONG: u64 = 16;
/// Clients that keep a server busy, and those that do nothing.
const BUSY: usize = 50;
const IDLE: usize = 1000;
/// How long one of them may take to connect, where others come before it.
const CONNECTING: Duration = Duration::from_secs(30);
/// Seconds in which idle clients cost what they cost.
const IDLE_SECONDS: u64 = 2;

/// What to measure, and over how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory on tmpfs, for emulated persistent memory.
    pub dir: PathBuf,
    /// The program `everdram`.
    pub program: PathBuf,
    /// Keys.
    pub records: u64,
    /// Repetitions.
    pub repeat: usize,
    /// Seconds of each measurement in each repetition.
    pub seconds: f64,
    /// Seed of all choices.
    pub seed: u64,
    /// What to measure.
    pub groups: Vec<Group>,
}

/// Bars, and what was not measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// The bars.
    pub bars: Vec<Verdict>,
    /// Groups that cannot be measured here, and why.
    pub skipped: Vec<(Group, String)>,
}

/// Measures, telling what comes.
///
/// # Errors
/// What servers and clients say.
pub fn measure(settings: &Settings, tell: &mut dyn FnMut(Group)) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    for group in settings.groups.iter().copied() {
        tell(group);
        let bars = match (group, everdram_fabric::version()) {
            (Group::Resp, _) => with_landing_area(settings),
            (Group::Put | Group::Bare | Group::Idle, Err(error)) => {
                measured.skipped.push((group, error.to_string()));
                continue;
            }
            (Group::Put, Ok(_)) => puts(settings),
            (Group::Bare, Ok(_)) => against_bare(settings),
            (Group::Idle, Ok(_)) => idle(settings),
        };
        let bars = bars.with_context(|| format!("{group}: {}", group.what()))?;
        measured.bars.extend(bars);
    }
    Ok(measured)
}

/// A server with all keys, the address of its fabric door, and its directory.
struct Server {
    running: Running,
    address: String,
    _place: Place,
}

impl Server {
    /// One with a fabric door.
    fn start(settings: &Settings, arguments: &[&str]) -> Result<Server, Error> {
        let address = format!("tcp://127.0.0.1:{}", free_port()?);
        let door = ["--fabric", &address];
        let server = Server::start_with(settings, &[&door, arguments].concat(), address.clone())?;
        // The fabric door opens behind the Redis door.
        let begun = Instant::now();
        loop {
            match server.client() {
                Ok(_) => return Ok(server),
                Err(error) if begun.elapsed() > CONNECTING => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn start_with(
        settings: &Settings,
        arguments: &[&str],
        address: String,
    ) -> Result<Server, Error> {
        let place = Place::within(&settings.dir)?;
        let server = contender(settings, place.path())?.with(arguments.iter().copied());
        Ok(Server {
            running: Running::start(&server, data(settings), Pins::apart())?,
            address,
            _place: place,
        })
    }

    /// The same requests over the Redis door.
    fn asked(
        &self,
        settings: &Settings,
        command: Command,
        connections: usize,
        metric: Metric,
    ) -> Result<f64, Error> {
        let row = self.running.measure(&Load {
            command,
            data: data(settings),
            connections,
            pipeline: 1,
            rate: None,
            most: None,
            warm_up_seconds: settings.seconds / 4.0,
            seconds: settings.seconds,
            seed: settings.seed,
        })?;
        row.median(metric).context("a load without its metric")
    }

    fn client(&self) -> Result<Client, Error> {
        let options = ClientOptions {
            connect_timeout: CONNECTING,
            ..ClientOptions::default()
        };
        Ok(Client::connect(&self.address, &options)?)
    }
}

fn contender(settings: &Settings, place: &Path) -> Result<Contender, Error> {
    Contender::everdram(&settings.program, "emulated", place, EngineKind::Viper)
}

fn data(settings: &Settings) -> Data {
    Data {
        keys: settings.records,
        value_bytes: SHORT_VALUE_BYTES,
    }
}

/// One that nobody has just now.
fn free_port() -> Result<u16, Error> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Keys of 16 bytes, one after another.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"fabric__________";
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

/// Latency of a put at a time, and processor time of the server with many clients.
fn puts(settings: &Settings) -> Result<Vec<Verdict>, Error> {
    let server = Server::start(settings, &[])?;
    let (mut latency, mut work) = (Vec::new(), Vec::new());
    for _ in 0..settings.repeat {
        let put_ns = median_of_puts(&server, settings)?;
        let set_ns = server.asked(settings, Command::Set, 1, Metric::P50Ns)?;
        latency.push((put_ns, set_ns));
        let put_ns = work_of_puts(&server, settings)?;
        let set_ns = server.asked(settings, Command::Set, BUSY, Metric::ProcessCpuNs)?;
        work.push((put_ns, set_ns));
    }
    server.running.stop()?;
    Ok(vec![
        bar(
            "latency of an inline put of 200 bytes",
            "SET",
            &latency,
            1.05,
        ),
        bar(
            "the server's processor time for a put of 200 bytes, 50 clients",
            "SET",
            &work,
            1.1,
        ),
    ])
}

/// What a server takes for a put of [`SHORT_VALUE_BYTES`] of one client over a network whose adapters move
/// the bytes, in nanoseconds of each round, against a SET of the same value by [`BUSY`] clients over
/// loopback. The first is on memory with the paper's delays, the second on memory without.
///
/// # Errors
/// What the server says.
pub fn put_over_adapters(settings: &Settings, put_ns: &[f64]) -> Result<Verdict, Error> {
    let server = Server::start_with(settings, &[], String::new())?;
    let set_ns = put_ns
        .iter()
        .map(|_| server.asked(settings, Command::Set, BUSY, Metric::ProcessCpuNs));
    let set_ns = set_ns.collect::<Result<Vec<_>, Error>>()?;
    server.running.stop()?;
    let pairs: Vec<_> = put_ns.iter().copied().zip(set_ns).collect();
    Ok(bar(
        "the server's time for a put of 200 bytes where adapters move the bytes (a modelled network)",
        "SET, 50 clients",
        &pairs,
        0.5,
    ))
}

/// The median of what one is of the other, with its name, in each repetition; and the medians of both, in us.
fn bar(says: &str, beside: &str, pairs: &[(f64, f64)], most: f64) -> Verdict {
    let middle = |of: fn(&(f64, f64)) -> f64| Spread::of(pairs.iter().map(of)).median;
    let compared = Compared {
        made_of: Some((middle(|pair| pair.0) / 1000.0, "us".into())),
        against: Some((middle(|pair| pair.1) / 1000.0, beside.into())),
        ..Compared::new("ratio", middle(|(one, other)| one / other))
    };
    Verdict::new(("bar", says), vec![compared], (0.0, Some(most)), true)
}

fn median_of_puts(server: &Server, settings: &Settings) -> Result<f64, Error> {
    let mut client = server.client()?;
    median(server, settings, |number| {
        let key = key(number % settings.records);
        client.put_expiring(&key, &[7; SHORT_VALUE_BYTES], 0, Way::Inline)?;
        Ok(())
    })
}

/// The median time of a call, in ns, one after another where clients run.
fn median(
    server: &Server,
    settings: &Settings,
    mut call: impl FnMut(u64) -> Result<(), Error>,
) -> Result<f64, Error> {
    let (latencies, _) = server.running.beside(|| {
        let mut latencies = histogram();
        let begun = Instant::now();
        for number in 0.. {
            let before = Instant::now();
            if (before - begun).as_secs_f64() > settings.seconds {
                break;
            }
            call(number)?;
            latencies.saturating_record(u64::try_from(before.elapsed().as_nanos())?);
        }
        Ok(latencies)
    })?;
    Ok(latencies.value_at_quantile(0.5) as f64)
}

/// Calls against what libfabric takes for their messages, writes and reads.
fn against_bare(settings: &Settings) -> Result<Vec<Verdict>, Error> {
    let server = Server::start(
        settings,
        &[
            "--landing-bytes",
            "64MiB",
            "--fabric-read-in-place",
            "--fabric-trust-peers",
        ],
    )?;
    let (mut client, mut bare) = (server.client()?, Bare::start(Pins::apart())?);
    ensure!(
        client.takes_client_centric() && client.reads_in_place(),
        "a door without RDMP-CC"
    );
    let request = HEAD_BYTES + key(0).len();
    let long = vec![7; LONG_BYTES];
    client.put(b"long", &long)?;
    // The first get makes the checks of the pieces.
    client.get(b"long")?;
    let (mut inline, mut written, mut read) = (Vec::new(), [Vec::new(), Vec::new()], Vec::new());
    for _ in 0..settings.repeat {
        let put = median_of_puts(&server, settings)?;
        let asked = median(&server, settings, |_| bare.ask(request + SHORT_VALUE_BYTES))?;
        inline.push((put, asked));
        for (pairs, bytes) in written.iter_mut().zip([SHORT_BYTES, LONG_BYTES]) {
            let value = &long[..bytes];
            let put = median(&server, settings, |number| {
                let key = key(number % KEYS_OF_LONG);
                client.put_expiring(&key, value, 0, Way::ClientCentric)?;
                Ok(())
            })?;
            let both = median(&server, settings, |_| {
                bare.ask(request)?;
                bare.write_durably(bytes)
            })?;
            pairs.push((put, both));
        }
        let got = median(&server, settings, |_| {
            let value = client.get(b"long")?;
            ensure!(
                value.is_some_and(|value| value.len() == LONG_BYTES),
                "no value"
            );
            Ok(())
        })?;
        let both = median(&server, settings, |_| {
            bare.ask(request)?;
            bare.read(LONG_BYTES)
        })?;
        read.push((got, both));
    }
    bare.stop()?;
    drop(client);
    server.running.stop()?;
    let [short, long] = written;
    Ok(vec![
        bar(
            "latency of an inline put of 200 bytes",
            "a message of its length, and an answer",
            &inline,
            1.25,
        ),
        bar(
            "latency of a put of 4 KiB by RDMP-CC-ADP",
            "a message, an answer and a durable write",
            &short,
            1.15,
        ),
        bar(
            "latency of a put of 64 KiB by RDMP-CC-ADP",
            "a message, an answer and a durable write",
            &long,
            1.15,
        ),
        bar(
            "latency of a get of 64 KiB in place",
            "a message, an answer and a read",
            &read,
            1.15,
        ),
    ])
}

/// Nanoseconds of the server's processors for a put, while each client has one under way.
fn work_of_puts(server: &Server, settings: &Settings) -> Result<f64, Error> {
    let clients = (0..BUSY).map(|_| server.client());
    let mut clients = clients.collect::<Result<Vec<_>, Error>>()?;
    let (puts, spent) = server.running.beside(|| {
        let (mut begun_puts, mut puts) = (0_u64, 0_u64);
        let begun = Instant::now();
        while begun.elapsed().as_secs_f64() < settings.seconds {
            for client in &mut clients {
                for done in client.poll(Duration::ZERO)? {
                    ensure!(matches!(done.outcome?, Outcome::Stored(_)), "no put");
                    puts += 1;
                }
                if client.calls_under_way() == 0 {
                    begun_puts += 1;
                    let key = key(begun_puts % settings.records);
                    client.submit_put(&key, &[7; SHORT_VALUE_BYTES], 0, Way::Inline)?;
                }
            }
        }
        Ok(puts)
    })?;
    ensure!(puts > 0, "no put ended");
    Ok(spent.as_nanos() as f64 / puts as f64)
}

fn idle(settings: &Settings) -> Result<Vec<Verdict>, Error> {
    let server = Server::start(settings, &[])?;
    // What the first one takes is the door's.
    let first = server.client()?;
    let before = server.running.anonymous_bytes()?;
    let clients = (0..IDLE).map(|_| server.client());
    let clients = clients.collect::<Result<Vec<_>, Error>>()?;
    let grown = server.running.anonymous_bytes()?.saturating_sub(before);
    // What it still has to do for those who came last.
    std::thread::sleep(Duration::from_secs(1));
    let (_, spent) = server.running.beside(|| {
        std::thread::sleep(Duration::from_secs(IDLE_SECONDS));
        Ok(())
    })?;
    drop((clients, first));
    server.running.stop()?;
    let of = |says, unit: &str, value, most| {
        let measured = vec![Compared {
            made_of: Some((value, unit.into())),
            ..Compared::new(unit, value)
        }];
        Verdict::new(("bar", says), measured, (0.0, Some(most)), true)
    };
    Ok(vec![
        of(
            "1000 clients that do nothing: memory of the server for each",
            "KiB",
            grown as f64 / IDLE as f64 / 1024.0,
            32.0,
        ),
        of(
            "1000 clients that do nothing: processor time of the server",
            "of a core",
            spent.as_secs_f64() / IDLE_SECONDS as f64,
            0.01,
        ),
    ])
}

fn with_landing_area(settings: &Settings) -> Result<Vec<Verdict>, Error> {
    let start = |bytes| Server::start_with(settings, &["--landing-bytes", bytes], String::new());
    let (with, without) = (start("64MiB")?, start("0")?);
    let mut work = Vec::new();
    for _ in 0..settings.repeat {
        let of = |server: &Server| server.asked(settings, Command::Get, BUSY, Metric::ProcessCpuNs);
        work.push((of(&with)?, of(&without)?));
    }
    with.running.stop()?;
    without.running.stop()?;
    Ok(vec![bar(
        "the server's processor time for a GET, with a landing area",
        "without one",
        &work,
        1.01,
    )])
}
