//! The kill loop over a fabric: the real program, under load from remote writers, killed with SIGKILL again
//! and again. After each restart every acknowledged put must be there, and nothing may be back.
//!
//! Over `tcp` on loopback and emulated memory, unless `EVERDRAM_TEST_FABRIC` names another door
//! (`verbs://10.77.0.1:0`) and `EVERDRAM_TEST_PMEM` persistent memory: a directory on a DAX file system, or
//! a devdax device, whose pool is erased. `EVERDRAM_KILLS` sets the number of kills (8), `EVERDRAM_SEED`
//! repeats a run's choices.

#[path = "support/forgetful.rs"]
mod forgetful;
#[path = "support/kill_loop.rs"]
#[allow(dead_code, reason = "this load is its own")]
mod kill_loop;

use everdram_cli::killing::place;
use everdram_cli::killing::process::Launch;
use everdram_fabric::{Client, ClientError, ClientOptions, Ticket, Way};
use forgetful::forgetful;
use kill_loop::{from_environment, launch, seed};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PASSWORD: &str = "secret";
const WRITERS: u64 = 4;
/// Keys of each writer, which nobody else writes.
const KEYS: u64 = 12;
/// Calls that a writer has under way.
const UNDER_WAY: usize = 8;
/// Acknowledgements before a kill, so that it says something.
const LEAST: u64 = 100;
/// For as many acknowledgements, or for an end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a key may hold: the value of this number, or nothing.
type State = Option<u64>;

/// The value of a number: with its request, written into memory of the door, or into lent blocks.
fn value(number: u64) -> Vec<u8> {
    let bytes = [40, 3000, 20_000, 70_000][number as usize % 4];
    let words = (0..bytes / 8).flat_map(|at| (number ^ (at << 40)).to_le_bytes());
    words.collect()
}

/// What a key may hold: what was acknowledged last, and behind that what was submitted since.
struct Key {
    name: Vec<u8>,
    may: VecDeque<(u64, State)>,
}

impl Key {
    /// Calls for one key take effect in their order, so those before this one have.
    fn acknowledged(&mut self, call: u64) {
        while self.may.front().is_some_and(|(first, _)| *first < call) {
            self.may.pop_front();
        }
    }

    /// Reads the key. `false`: it holds what it cannot.
    fn is_right(&mut self, client: &mut Client) -> bool {
        let found = client.get(&self.name).unwrap();
        let number = found.as_deref().and_then(|found| found.first_chunk());
        let state = number.map(|bytes| u64::from_le_bytes(*bytes));
        let is_whole = found.is_none_or(|found| state.is_some_and(|state| found == value(state)));
        let call = self.may.back().map_or(0, |(last, _)| *last);
        let may = std::mem::replace(&mut self.may, VecDeque::from([(call, state)]));
        is_whole && may.iter().any(|(_, may)| *may == state)
    }
}

/// A remote client, with its keys.
struct Writer {
    keys: Vec<Key>,
    random: StdRng,
    /// Of calls, and of values.
    next: u64,
    /// The key and the number of each call that is under way.
    calls: HashMap<Ticket, (usize, u64)>,
}

impl Writer {
    fn new(number: u64, seed: u64) -> Writer {
        let key = |key| Key {
            name: format!("writer {number}, key {key}").into_bytes(),
            may: VecDeque::from([(0, None)]),
        };
        Writer {
            keys: (0..KEYS).map(key).collect(),
            random: StdRng::seed_from_u64(seed.wrapping_add(number)),
            next: 1,
            calls: HashMap::new(),
        }
    }

    /// Writes until the connection ends.
    fn run(&mut self, address: &str, acknowledged: &AtomicU64) -> ClientError {
        let mut client = Client::connect(address, &options()).unwrap();
        self.calls.clear();
        loop {
            if let Err(error) = self.turn(&mut client, acknowledged) {
                return error;
            }
        }
    }

    fn turn(&mut self, client: &mut Client, told: &AtomicU64) -> Result<(), ClientError> {
        while self.calls.len() < UNDER_WAY {
            let index = self.random.random_range(0..self.keys.len());
            let (call, is_put) = (self.next, self.random.random_ratio(9, 10));
            self.next += 1;
            let key = &mut self.keys[index];
            // Before it is sent: whatever comes of it, it may have happened.
            key.may.push_back((call, is_put.then_some(call)));
            let ticket = match is_put {
                true => client.submit_put(&key.name, &value(call), 0, Way::Auto)?,
                false => client.submit_delete(&key.name)?,
            };
            self.calls.insert(ticket, (index, call));
        }
        for done in client.poll(PATIENCE)? {
            done.outcome?;
            let (index, call) = self
                .calls
                .remove(&done.ticket)
                .expect("a call of this client");
            self.keys[index].acknowledged(call);
            told.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn options() -> ClientOptions {
    ClientOptions {
        password: Some(PASSWORD.into()),
        connect_timeout: PATIENCE,
        ..ClientOptions::default()
    }
}

/// A server with a door, and where its pool and its log are; `None`: it cannot be here, which is said.
fn server() -> Option<(TempDir, Launch)> {
    if let Err(reason) = everdram_fabric::version() {
        println!("skipped: {reason}");
        return None;
    }
    let place = std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from);
    let medium = if place.is_some() { "pmem" } else { "emulated" };
    let made = match &place {
        Some(place) if place.is_dir() => Ok(tempfile::tempdir_in(place).unwrap()),
        Some(_) => Ok(tempfile::tempdir().unwrap()),
        None => place::for_emulation(),
    };
    let directory = match made {
        Ok(directory) => directory,
        Err(reason) => {
            println!("skipped: {reason:#}");
            return None;
        }
    };
    let pool = match place {
        Some(device) if !device.is_dir() => {
            everdram_pm::erase(&device).unwrap();
            device
        }
        _ => directory.path().join("pool"),
    };
    let password = directory.path().join("password");
    std::fs::write(&password, PASSWORD).unwrap();
    let address = std::env::var("EVERDRAM_TEST_FABRIC");
    let arguments = [
        "--medium",
        medium,
        "--engine",
        "viper",
        "--password-file",
        password.to_str().unwrap(),
        "--fabric",
        address.as_deref().unwrap_or("tcp://127.0.0.1:0"),
        "--fabric-trust-peers",
        "--fabric-lend-bytes",
        "16MiB",
        "--fabric-read-in-place",
    ];
    let launch = launch(&directory, pool, &arguments);
    Some((directory, launch))
}

/// Load, kills and starts: the keys that held what they could not.
fn wrong_keys(launch: &Launch, kills: u64, seed: u64) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer::new(number, seed))
        .collect();
    let (mut wrong, mut all, mut unknown) = (Vec::new(), 0, 0);
    for kill in 0..=kills {
        let process = launch.start().unwrap();
        let address = process.ready["fabric"].as_str().unwrap().to_owned();
        // Until the server knows all keys it refuses some calls.
        let mut redis = everdram_cli::client::Client::connect(("127.0.0.1", process.port)).unwrap();
        redis.call(&[b"AUTH", PASSWORD.as_bytes()]).unwrap();
        redis.count_keys().unwrap();
        let mut reader = Client::connect(&address, &options()).unwrap();
        for key in writers.iter_mut().flat_map(|writer| &mut writer.keys) {
            unknown += key.may.len() - 1;
            if !key.is_right(&mut reader) {
                let name = String::from_utf8_lossy(&key.name);
                wrong.push(format!("{name} after {kill} kills: {:?}", key.may));
            }
        }
        drop(reader);
        if kill == kills {
            process.close().unwrap();
            break;
        }
        let (acknowledged, is_killed) = (AtomicU64::new(0), AtomicBool::new(false));
        let length = Duration::from_millis(random.random_range(30..=400));
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let (address, acknowledged, is_killed) = (&address, &acknowledged, &is_killed);
                scope.spawn(move || {
                    let error = writer.run(address, acknowledged);
                    assert!(is_killed.load(Ordering::SeqCst), "before the kill: {error}");
                });
            }
            let begun = Instant::now();
            while begun.elapsed() < length || acknowledged.load(Ordering::Relaxed) < LEAST {
                // Then the writers end, too, each with its own words.
                if begun.elapsed() > PATIENCE {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            is_killed.store(true, Ordering::SeqCst);
            process.kill().unwrap();
        });
        let acknowledged = acknowledged.into_inner();
        assert!(
            acknowledged >= LEAST,
            "{acknowledged} acknowledgements in {PATIENCE:?}"
        );
        all += acknowledged;
    }
    let lost = wrong.len();
    let door = &launch.arguments[7];
    println!(
        "{door}: {kills} kills, {all} writes acknowledged, {unknown} not answered, {lost} keys wrong"
    );
    wrong
}

#[test]
fn kills_under_remote_writers_lose_nothing() {
    let Some((directory, launch)) = server() else {
        return;
    };
    let kills = from_environment("EVERDRAM_KILLS").unwrap_or(8);
    let wrong = wrong_keys(&launch, kills, seed("fabric_kill"));
    if !wrong.is_empty() {
        panic!("kept {}:\n{}", directory.keep().display(), wrong.join("\n"));
    }
}

/// A run over a server that keeps nothing shows that this test can fail.
#[test]
fn a_store_that_loses_everything_is_found_out() {
    if std::env::var_os("EVERDRAM_TEST_PMEM").is_some() {
        return println!("skipped: a device cannot be removed");
    }
    let Some((directory, launch)) = server() else {
        return;
    };
    let wrong = wrong_keys(&forgetful(launch, directory.path()), 1, seed("fabric_kill"));
    assert!(wrong.len() as u64 > KEYS, "{wrong:?}");
}
