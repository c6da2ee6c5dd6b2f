//! Records what several clients see of a real server that is killed again and again.
//!
//! Few keys, many clients: some keys by themselves, one of them with long values, and three that transactions
//! use together. After a few kills
//! other keys are taken, so that no group of operations grows without end. After each restart one client
//! reads all keys before anybody writes: what the kill lost shows.

use super::history::{LONG, Operation, Step, answer};
use everdram_cli::client::{Client, Reply};
use everdram_cli::killing::process::{Launch, Process};
use everdram_fabric::{ClientError, ClientOptions, INLINE_BYTES, Way};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::convert::Infallible;
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Kills that a set of keys lives through.
const KILLS_OF_KEYS: usize = 3;
/// Operations after which a stretch is over early, so that a fast machine does not make a huge history.
const STRETCH_OPERATIONS: u64 = 6000;
/// Most requests under way on one connection. What a kill leaves unanswered may have happened in any order or
/// not at all, and a checker has to try that: its work doubles with each of them.
const DEPTH_MAX: usize = 2;

/// What is recorded.
pub(crate) struct Plan {
    pub(crate) launch: Launch,
    pub(crate) clients: usize,
    pub(crate) kills: usize,
    /// Load before each kill, in milliseconds.
    pub(crate) stretch_ms: RangeInclusive<u64>,
    pub(crate) seed: u64,
}

/// What happened.
#[derive(Default)]
pub(crate) struct Recorded {
    /// Ready to be judged.
    pub(crate) history: Vec<Operation>,
    /// Long values that stayed where clients of the fabric wrote them, and that they read there, as servers
    /// said just before they were killed.
    pub(crate) adopted: u64,
    pub(crate) read_in_place: u64,
}

/// Runs the plan.
pub(crate) fn record(plan: &Plan) -> Recorded {
    let mut random = StdRng::seed_from_u64(plan.seed);
    let clock = Instant::now();
    let mut recorded = Recorded::default();
    let mut process = plan.launch.start().unwrap();
    for kill in 0..plan.kills {
        let keys = Keys {
            generation: kill / KILLS_OF_KEYS,
        };
        let length = Duration::from_millis(random.random_range(plan.stretch_ms.clone()));
        let stretch = Stretch {
            keys,
            clock,
            port: process.port,
            fabric: process.ready["fabric"].as_str().map(str::to_owned),
            seed: random.random(),
            values: AtomicU64::new((kill as u64) << 32),
            operations: AtomicU64::new(0),
            killed: AtomicBool::new(false),
        };
        stretch.record(plan.clients, process, length, &mut recorded);
        while random.random_ratio(1, 4) {
            let delay = Duration::from_micros(random.random_range(0..20_000));
            plan.launch.start_and_kill(delay).unwrap();
        }
        process = plan.launch.start().unwrap();
        let history = &mut recorded.history;
        read_all(keys, process.port, clock, plan.clients, history);
    }
    process.close().unwrap();
    recorded
}

/// Names of the keys in use.
#[derive(Clone, Copy)]
struct Keys {
    generation: usize,
}

impl Keys {
    fn alone(self, number: usize) -> String {
        format!("{}:alone:{}", self.generation, number % 2)
    }

    fn together(self, number: usize) -> String {
        format!("{}:together:{}", self.generation, number % 3)
    }

    /// With long values.
    fn long(self) -> String {
        format!("{}:{LONG}", self.generation)
    }

    fn all(self) -> Vec<String> {
        let alone = (0..2).map(|number| self.alone(number));
        alone
            .chain([self.long()])
            .chain((0..3).map(|number| self.together(number)))
            .collect()
    }
}

fn nanoseconds(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap()
}

/// One client, nobody else, reads every key.
fn read_all(keys: Keys, port: u16, clock: Instant, client: usize, history: &mut Vec<Operation>) {
    let mut connection = Client::connect(("127.0.0.1", port)).unwrap();
    connection.count_keys().unwrap();
    for key in keys.all() {
        let mut step = Step::new("GET", &key, "");
        let called = nanoseconds(clock);
        step.answer = answer(&connection.call(&step.words(&[])).unwrap());
        history.push(Operation {
            client,
            called,
            returned: nanoseconds(clock),
            known: true,
            steps: vec![step],
        });
    }
}

/// The load between two kills.
struct Stretch {
    keys: Keys,
    clock: Instant,
    port: u16,
    /// The address of the fabric door, if there is one: every second client uses it.
    fabric: Option<String>,
    seed: u64,
    /// Every value is written once, so that a reader's answer says whose it is.
    values: AtomicU64,
    operations: AtomicU64,
    killed: AtomicBool,
}

impl Stretch {
    fn record(&self, clients: usize, process: Process, length: Duration, all: &mut Recorded) {
        // This waits until the server knows all keys: a refused request would be no operation.
        let mut connection = Client::connect(("127.0.0.1", self.port)).unwrap();
        connection.count_keys().unwrap();
        let end = self.clock.elapsed() + length;
        let (recorded, gone) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients)
                .map(|client| scope.spawn(move || self.run(client)))
                .collect();
            while self.clock.elapsed() < end
                && self.operations.load(Ordering::Relaxed) < STRETCH_OPERATIONS
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            if self.fabric.is_some() {
                let info = connection.call(&[b"INFO", b"fabric"]).unwrap();
                all.adopted += counter(&info, "fabric_values_adopted:");
                all.read_in_place += counter(&info, "fabric_values_read_in_place:");
            }
            self.killed.store(true, Ordering::SeqCst);
            process.kill().unwrap();
            let gone = nanoseconds(self.clock);
            let recorded: Vec<Vec<Operation>> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            (recorded, gone)
        });
        for mut operation in recorded.into_iter().flatten() {
            if !operation.known && operation.called > gone {
                // Sent to nobody.
                continue;
            }
            if !operation.known {
                operation.returned = gone;
            }
            all.history.push(operation);
        }
    }

    /// What one client sees until the server is gone.
    fn run(&self, client: usize) -> Vec<Operation> {
        let mut recorder = Recorder {
            stretch: self,
            client,
            random: StdRng::seed_from_u64(self.seed.wrapping_add(client as u64)),
            recorded: Vec::new(),
        };
        let error: Box<dyn std::error::Error> = match &self.fabric {
            Some(address) if client % 2 == 1 => {
                let Err(error) = recorder.run_over_fabric(address);
                error.into()
            }
            _ => {
                let Err(error) = recorder.run();
                error.into()
            }
        };
        assert!(
            self.killed.load(Ordering::SeqCst),
            "the connection broke before the server was killed: {error}"
        );
        recorder.recorded
    }
}

/// How several steps are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    One,
    Exec,
    Mget,
    Mset,
}

struct Recorder<'a> {
    stretch: &'a Stretch,
    client: usize,
    random: StdRng,
    recorded: Vec<Operation>,
}

impl Recorder<'_> {
    /// Ends only with the connection.
    fn run(&mut self) -> io::Result<Infallible> {
        let mut connection = Client::connect(("127.0.0.1", self.stretch.port))?;
        loop {
            if self.random.random_ratio(1, 12) {
                self.compare_and_set(&mut connection)?;
                continue;
            }
            let depth = self.random.random_range(1..=DEPTH_MAX);
            let requests: Vec<_> = (0..depth).map(|_| self.request()).collect();
            self.exchange(&mut connection, requests)?;
        }
    }

    /// Sends the requests in one write, and records each with its answer. Those that the kill left without
    /// one are recorded as unknown, except reads, which say nothing then.
    fn exchange(
        &mut self,
        connection: &mut Client,
        requests: Vec<(Door, Vec<Step>)>,
    ) -> io::Result<()> {
        let count = requests.len() as u64;
        self.stretch.operations.fetch_add(count, Ordering::Relaxed);
        for (door, steps) in &requests {
            queue(connection, *door, steps);
        }
        let called = nanoseconds(self.stretch.clock);
        let mut ended = connection.send();
        for (door, mut steps) in requests {
            if ended.is_ok() {
                ended = receive(connection, door, &mut steps);
            }
            let known = ended.is_ok();
            if known || !steps.iter().all(Step::is_read) {
                self.recorded.push(Operation {
                    client: self.client,
                    called,
                    returned: nanoseconds(self.stretch.clock),
                    known,
                    steps,
                });
            }
        }
        ended
    }

    fn request(&mut self) -> (Door, Vec<Step>) {
        let keys = self.stretch.keys;
        let number = self.random.random_range(0..1000);
        match self.random.random_range(0..11) {
            0..5 => (Door::One, vec![self.step(&keys.alone(number))]),
            5 | 6 => (Door::One, vec![self.step(&keys.together(number))]),
            7 => {
                let count = self.random.random_range(2..=3);
                let steps = (0..count).map(|next| self.step(&keys.together(number + next)));
                (Door::Exec, steps.collect())
            }
            8 => {
                let get = |next| Step::new("GET", &keys.together(next), "");
                (Door::Mget, (0..3).map(get).collect())
            }
            9 => (Door::One, vec![self.long_step(&keys.long())]),
            _ => {
                let set = |next| Step::new("SET", &keys.together(number + next), self.value());
                (Door::Mset, (0..2).map(set).collect())
            }
        }
    }

    /// The same keys through the other door: one call after the other, values by either way.
    fn run_over_fabric(&mut self, address: &str) -> Result<Infallible, ClientError> {
        let mut client = everdram_fabric::Client::connect(address, &ClientOptions::default())?;
        loop {
            let (keys, number) = (self.stretch.keys, self.random.random_range(0..1000));
            let key = match self.random.random_range(0..5) {
                0 | 1 => keys.alone(number),
                2 | 3 => keys.together(number),
                _ => keys.long(),
            };
            let mut step = match self.random.random_range(0..10) {
                0..4 => Step::new("GET", &key, ""),
                4..9 => Step::new("SET", &key, self.value()),
                _ => Step::new("DEL", &key, ""),
            };
            let (key, value) = (key.as_bytes(), step.sent().into_owned());
            let called = nanoseconds(self.stretch.clock);
            let reply = match step.command {
                "GET" => client
                    .get(key)
                    .map(|value| value.map_or(Reply::Null, Reply::Bulk)),
                "DEL" => client.delete(key).map(|was| Reply::Integer(was.into())),
                _ => {
                    let ways = match (client.takes_client_centric(), client.takes_immediate()) {
                        (false, _) => 2,
                        (true, false) => 4,
                        (true, true) => 5,
                    };
                    let way = match self.random.random_range(0..ways) {
                        // Long ones do not fit into a request.
                        0 if value.len() > INLINE_BYTES => Way::Auto,
                        0 => Way::Inline,
                        1 => Way::ServerAssisted,
                        2 => Way::ClientCentric,
                        3 => Way::ClientCentricAsked,
                        _ => Way::ClientCentricImmediate,
                    };
                    let put = client.put_expiring(key, &value, 0, way);
                    put.map(|_| Reply::Simple("OK".into()))
                }
            };
            self.stretch.operations.fetch_add(1, Ordering::Relaxed);
            let known = reply.is_ok();
            if let Ok(reply) = &reply {
                step.answer = answer(reply);
            }
            if known || !step.is_read() {
                self.recorded.push(Operation {
                    client: self.client,
                    called,
                    returned: nanoseconds(self.stretch.clock),
                    known,
                    steps: vec![step],
                });
            }
            reply?;
        }
    }

    fn value(&self) -> String {
        let value = self.stretch.values.fetch_add(1, Ordering::Relaxed);
        // Far enough apart that increments do not make one value another.
        (value * 10_000).to_string()
    }

    fn step(&mut self, key: &str) -> Step {
        match self.random.random_range(0..100) {
            0..30 => Step::new("GET", key, ""),
            30..50 => Step::new("SET", key, self.value()),
            50..70 => Step::new("INCR", key, ""),
            70..80 => Step::new("GETSET", key, self.value()),
            80..86 => Step::new("DEL", key, ""),
            86..90 => Step::new("GETDEL", key, ""),
            90..95 => Step::new("SETNX", key, self.value()),
            _ => Step::new("APPEND", key, "x"),
        }
    }

    fn long_step(&mut self, key: &str) -> Step {
        match self.random.random_range(0..10) {
            0..4 => Step::new("GET", key, ""),
            4..7 => Step::new("SET", key, self.value()),
            7 => Step::new("GETSET", key, self.value()),
            8 => Step::new("SETNX", key, self.value()),
            _ => Step::new("GETDEL", key, ""),
        }
    }

    /// WATCH, GET, MULTI, SET, EXEC: the read and the write are one operation if EXEC goes through.
    fn compare_and_set(&mut self, connection: &mut Client) -> io::Result<()> {
        let key = self.stretch.keys.together(self.random.random_range(0..3));
        connection.call(&[b"WATCH", key.as_bytes()])?;
        let read = Step::new("GET", &key, "");
        self.exchange(connection, vec![(Door::One, vec![read])])?;
        let Some(mut read) = self.recorded.last().map(|last| last.steps[0].clone()) else {
            return Ok(());
        };
        let mut set = Step::new("SET", &key, self.value());
        queue(connection, Door::Exec, std::slice::from_ref(&set));
        let called = nanoseconds(self.stretch.clock);
        let mut known = true;
        let ended = connection.send().and_then(|()| receive_exec(connection, 1));
        match &ended {
            // Somebody else wrote the key: nothing happened.
            Ok(Reply::Null) => return Ok(()),
            Ok(Reply::Array(answers)) => set.answer = answers.first().map_or(String::new(), answer),
            Ok(other) => panic!("EXEC was answered {other:?}"),
            Err(_) => {
                known = false;
                read.answer.clear();
            }
        }
        self.recorded.push(Operation {
            client: self.client,
            called,
            returned: nanoseconds(self.stretch.clock),
            known,
            steps: vec![read, set],
        });
        ended.map(|_| ())
    }
}

/// A counter of INFO.
fn counter(info: &Reply, name: &str) -> u64 {
    let Reply::Bulk(text) = info else {
        panic!("INFO was answered {info:?}");
    };
    let text = String::from_utf8_lossy(text);
    let count = text.lines().find_map(|line| line.strip_prefix(name));
    count.unwrap().trim().parse().unwrap()
}

fn queue(connection: &mut Client, door: Door, steps: &[Step]) {
    let together = |command: &'static str| {
        let words = |step| Step::words(step, step.argument.as_bytes()).split_off(1);
        let words = steps.iter().flat_map(words);
        std::iter::once(command.as_bytes()).chain(words).collect()
    };
    match door {
        Door::One => steps
            .iter()
            .for_each(|step| connection.queue(&step.words(&step.sent()))),
        Door::Mget | Door::Mset => {
            let name = if door == Door::Mget { "MGET" } else { "MSET" };
            let words: Vec<&[u8]> = together(name);
            connection.queue(&words);
        }
        Door::Exec => {
            connection.queue(&[b"MULTI"]);
            steps
                .iter()
                .for_each(|step| connection.queue(&step.words(&step.sent())));
            connection.queue(&[b"EXEC"]);
        }
    }
}

/// Takes the answer of [`queue`] into the steps.
fn receive(connection: &mut Client, door: Door, steps: &mut [Step]) -> io::Result<()> {
    let reply = match door {
        Door::Exec => receive_exec(connection, steps.len())?,
        _ => connection.receive()?,
    };
    match (door, reply) {
        (Door::Exec | Door::Mget, Reply::Array(answers)) if answers.len() == steps.len() => {
            let pairs = steps.iter_mut().zip(&answers);
            pairs.for_each(|(step, reply)| step.answer = answer(reply));
        }
        (Door::Exec | Door::Mget, other) => panic!("{steps:?} were answered {other:?}"),
        (Door::One | Door::Mset, reply) => {
            let text = answer(&reply);
            steps
                .iter_mut()
                .for_each(|step| step.answer.clone_from(&text));
        }
    }
    Ok(())
}

/// The answer to EXEC, behind those to MULTI and to `commands` queued commands.
fn receive_exec(connection: &mut Client, commands: usize) -> io::Result<Reply> {
    for _ in 0..=commands {
        let queued = connection.receive()?;
        assert!(matches!(queued, Reply::Simple(_)), "{queued:?}");
    }
    connection.receive()
}
