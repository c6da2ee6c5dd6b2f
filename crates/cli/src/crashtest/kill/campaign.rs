//! A campaign from start to end: pools one after the other, each loaded, killed, recovered and verified many
//! times.
//!
//! What connections know dies with the server: after each kill the expected-state file is read on, the keys
//! are judged by what it says, and the next load starts from that. Pools are small and short-lived, so that
//! growth, compaction and checkpoints of the log are as frequent as kills.

use super::books::Books;
use super::keys::Keys;
use super::mix::Mix;
use super::moment::{EVERY, Landing, Observer};
use super::reader::{Line, Pool, Reader};
use crate::killing;
use crate::killing::journal::{Journal, Ledger, now_ms};
use crate::killing::load::Shared;
use crate::killing::process::{Launch, Misconduct, Process, misconduct};
use crate::killing::stretch::stretch;
use crate::killing::tally::Tally;
use crate::killing::verify::Verifier;
use crate::pool;
use anyhow::Context;
use everdram::EngineKind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Load before a kill, in milliseconds.
const STRETCH_MS: RangeInclusive<u64> = 30..=200;
/// Kills that a pool of the campaign's own lives through.
const POOL_KILLS: Range<u64> = 15..40;
/// Sizes a pool starts with and grows by.
const CHUNKS: [u64; 3] = [512 << 10, 1 << 20, 4 << 20];
/// Sizes of the redo log. Half of it starts a checkpoint; a segment has 4 MiB.
const LOGS: [u64; 3] = [2 << 20, 8 << 20, 16 << 20];
/// How much of the pool is written between two checkpoints of the index, with which restarts begin.
const CHECKPOINTS: [&str; 4] = ["0", "24KiB", "256KiB", "2MiB"];

/// Delay models of the emulated medium, by name; none at all is one more. With slow flushes and fences a kill
/// lands more often between two that belong together.
const DELAYS: [&str; 3] = ["rdmp-kv", "ndhedis-pcm", "ndhedis-3dxpoint-storage"];
/// The moment of a kill while starting is drawn from the longest start so far, and from this if none took as
/// long.
const START_MIN: Duration = Duration::from_millis(2);
/// How long the server of an earlier campaign may take to give its pool back.
const ORPHAN_MAX: Duration = Duration::from_secs(20);

/// What a campaign does.
pub(crate) struct Plan {
    /// The `everdram` program.
    pub(crate) program: PathBuf,
    /// Where pools are made and servers log.
    pub(crate) directory: PathBuf,
    /// One pool for the whole campaign, new or the one of an expected-state file; `None` = many short-lived
    /// ones.
    pub(crate) pool: Option<PathBuf>,
    /// The expected-state file.
    pub(crate) expected: PathBuf,
    pub(crate) medium: String,
    pub(crate) engine: String,
    pub(crate) connections: usize,
    pub(crate) kills: u64,
    pub(crate) seed: u64,
}

/// What a campaign found.
#[derive(Default)]
pub(crate) struct Summary {
    /// SIGKILLs of a server under load, and of one that was starting.
    pub(crate) kills: u64,
    /// Those of a server that was starting and had not said that it is ready.
    pub(crate) kills_while_starting: u64,
    pub(crate) kills_in_compaction: u64,
    pub(crate) kills_in_growth: u64,
    pub(crate) kills_in_image_write: u64,
    pub(crate) pools: u64,
    pub(crate) blocks_reclaimed: u64,
    /// Bytes the pools grew by under load.
    pub(crate) grown_bytes: u64,
    /// Start of the process to its first reply, the longest.
    pub(crate) longest_start: Duration,
    /// Of that the pool, as the server says, the longest.
    pub(crate) longest_recovery: Duration,
    /// Pools walked after an orderly end, every checksum verified.
    pub(crate) pools_checked: u64,
    pub(crate) tally: Tally,
    /// Whether it was stopped before its last kill.
    pub(crate) is_interrupted: bool,
}

/// Is told how far the campaign is.
pub(crate) type Watch<'a> = &'a dyn Fn(&Summary);

/// Runs the plan to its end, to the first broken promise, or until `stop` is set and the round is over.
///
/// # Errors
/// If something else than a promise breaks: a program cannot be started, the expected-state file not be
/// written, a write is refused. What the server does wrong is in the tally.
pub(crate) fn run(
    plan: &Plan,
    books: Books,
    stop: &AtomicBool,
    watch: Watch<'_>,
) -> anyhow::Result<Summary> {
    let mut campaign = Campaign {
        plan,
        watch,
        stop,
        reader: books.reader,
        journal: books.journal,
        random: StdRng::seed_from_u64(plan.seed),
        summary: Summary::default(),
    };
    loop {
        match campaign.one_pool() {
            Err(error) if error.is::<Misconduct>() => campaign.convict(&error),
            ended => ended?,
        }
        if campaign.is_over() {
            return Ok(campaign.finish());
        }
    }
}

struct Campaign<'a> {
    plan: &'a Plan,
    watch: Watch<'a>,
    stop: &'a AtomicBool,
    journal: Journal,
    reader: Reader,
    random: StdRng,
    summary: Summary,
}

impl Campaign<'_> {
    fn is_over(&self) -> bool {
        let is_stopped = self.stop.load(Ordering::Relaxed);
        is_stopped || self.is_done() || self.summary.tally.broken() > 0
    }

    fn is_done(&self) -> bool {
        self.summary.kills >= self.plan.kills
    }

    /// A pool that does not open, a server that hangs or dies: no answer is worth anything then.
    fn convict(&self, error: &anyhow::Error) {
        let (tally, kills) = (&self.summary.tally, self.reader.kills);
        let words = format!("after kill {kills}: {error:#}");
        tally.convict_of(&tally.failures, words);
    }

    fn finish(mut self) -> Summary {
        self.summary.is_interrupted = !self.is_done() && self.summary.tally.broken() == 0;
        self.summary
    }

    /// A pool from its creation (or from where an earlier campaign left it) to its orderly end.
    fn one_pool(&mut self) -> anyhow::Result<()> {
        let known = self.reader.pool.clone();
        let known = known.filter(|_| self.plan.pool.is_some());
        let is_new = known.is_none();
        let pool = known.map_or_else(|| self.new_pool(), Ok)?;
        self.summary.pools += 1;
        let kills_end = match self.plan.pool {
            Some(_) => self.plan.kills,
            None => self.summary.kills + self.random.random_range(POOL_KILLS),
        };
        let launch = self.launch(&pool);
        let mut process = first_start(&launch, is_new)?;
        self.note_start(&process);
        self.verify(pool.keys, process.port)?;
        while self.summary.kills < kills_end && !self.is_over() {
            self.load_and_kill(&pool, process)?;
            process = self.recover(&launch)?;
            self.verify(pool.keys, process.port)?;
            (self.watch)(&self.summary);
        }
        if self.summary.tally.broken() == 0 {
            self.end(&pool, &launch, process)?;
        }
        Ok(())
    }

    /// Decides on a pool and writes it down; its server makes it.
    fn new_pool(&mut self) -> anyhow::Result<Pool> {
        let own = || {
            self.plan
                .directory
                .join(format!("pool-{}", self.summary.pools + 1))
        };
        let path = self.plan.pool.clone().unwrap_or_else(own);
        let pool = Pool {
            keys: Keys {
                connections: self.plan.connections,
            },
            medium: self.plan.medium.clone(),
            engine: self.plan.engine.clone(),
            chunk_bytes: CHUNKS[self.random.random_range(0..CHUNKS.len())],
            log_bytes: LOGS[self.random.random_range(0..LOGS.len())],
            path,
        };
        self.journal
            .append(&Line::Pool(pool.clone()).to_string())
            .context("a new pool")?;
        self.reader.read_on()?;
        Ok(pool)
    }

    fn launch(&mut self, pool: &Pool) -> Launch {
        let (chunk, log) = (pool.chunk_bytes.to_string(), pool.log_bytes.to_string());
        let mut arguments = vec![
            "--medium",
            &pool.medium,
            "--engine",
            &pool.engine,
            "--durability",
            "always",
            "--chunk-bytes",
            &chunk,
            "--log-bytes",
            &log,
        ];
        if pool.engine == EngineKind::Tiered.name() {
            arguments.extend(killing::TIERED);
        }
        let checkpoint = CHECKPOINTS[self.random.random_range(0..CHECKPOINTS.len())];
        arguments.extend(["--checkpoint-bytes", checkpoint]);
        let delay = DELAYS.get(self.random.random_range(0..=DELAYS.len()));
        if let Some(delay) = delay.filter(|_| pool.medium == "emulated") {
            arguments.extend(["--delay", delay]);
        }
        Launch {
            program: self.plan.program.clone(),
            pool: pool.path.clone(),
            log: self.plan.directory.join("server.log"),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
        }
    }

    /// One stretch of load from all connections that a SIGKILL ends.
    fn load_and_kill(&mut self, pool: &Pool, process: Process) -> anyhow::Result<()> {
        let length = Duration::from_millis(self.random.random_range(STRETCH_MS));
        let seed: u64 = self.random.random();
        // What the connections learn beyond the file dies with the server.
        let expected = self.reader.expected.clone();
        let ledger = Ledger {
            expected: &expected,
            journal: Some(&self.journal),
        };
        let (port, mix) = (process.port, Mix { keys: pool.keys });
        let shared = Shared::new(&pool.keys, &mix, ledger, &self.summary.tally);
        let mut observer = Observer::start(port)?;
        let bytes_before = observer.pool_bytes();
        let (landing, _) = stretch(&shared, port, seed, || {
            let watched = watch_load(&mut observer, length, &shared.stop);
            let killed_at = (Instant::now(), SystemTime::now());
            let killing = shared.kill(process);
            let landing = observer.landing(killed_at, &pool.path);
            // A server that ended by itself is why it did not answer.
            killing.and(watched).map(|()| landing)
        })?;
        let grown = observer.pool_bytes().saturating_sub(bytes_before);
        self.summary.grown_bytes += grown;
        self.summary.blocks_reclaimed += observer.blocks_reclaimed();
        self.count(landing);
        self.note_kill()
    }

    fn note_kill(&mut self) -> anyhow::Result<()> {
        self.summary.kills += 1;
        let at_ms = now_ms();
        self.journal.append(&Line::Killed { at_ms }.to_string())
    }

    fn count(&mut self, landing: Landing) {
        self.summary.kills_in_compaction += u64::from(landing.compaction);
        self.summary.kills_in_growth += u64::from(landing.growth);
        let is_file = self.plan.medium == "file";
        self.summary.kills_in_image_write += u64::from(landing.image_write && is_file);
    }

    /// Starts the server on what the kill left; sometimes kills it while it recovers, and once more.
    fn recover(&mut self, launch: &Launch) -> anyhow::Result<Process> {
        while !self.is_over() && self.random.random_ratio(1, 4) {
            let longest = self.summary.longest_start.max(START_MIN);
            let delay = self.random.random_range(Duration::ZERO..longest);
            let was_ready = launch
                .start_and_kill(delay)
                .context("a start after a SIGKILL")?;
            self.summary.kills_while_starting += u64::from(!was_ready);
            self.note_kill()?;
        }
        let process = launch.start().context("the start after a SIGKILL")?;
        self.note_start(&process);
        let recovery = Duration::from_micros(process.reported("recovery_us"));
        let longest = &mut self.summary.longest_recovery;
        *longest = recovery.max(*longest);
        Ok(process)
    }

    fn note_start(&mut self, process: &Process) {
        let longest = &mut self.summary.longest_start;
        *longest = process.to_first_reply.max(*longest);
    }

    fn verify(&mut self, keys: Keys, port: u16) -> anyhow::Result<()> {
        self.reader.read_on()?;
        let expected = self.reader.expected.clone();
        let verifier = Verifier {
            keys: &keys,
            ledger: Ledger {
                expected: &expected,
                journal: Some(&self.journal),
            },
            tally: &self.summary.tally,
            kills: self.reader.kills,
        };
        verifier.run(port)?;
        self.reader.read_on()
    }

    /// Closes the server in order, walks the whole pool, and verifies once more that all is there.
    fn end(&mut self, pool: &Pool, launch: &Launch, process: Process) -> anyhow::Result<()> {
        process.close().context("the orderly end")?;
        self.walk(&pool.path)?;
        let process = launch.start().context("the start after an orderly end")?;
        self.verify(pool.keys, process.port)?;
        process.close().context("the orderly end")?;
        if self.plan.pool.is_none() && self.summary.tally.broken() == 0 {
            remove(&pool.path)?;
        }
        Ok(())
    }

    fn walk(&mut self, path: &Path) -> anyhow::Result<()> {
        let report = pool::open_existing(path, false, true).and_then(|store| Ok(store.check()?));
        let report =
            report.map_err(|error| misconduct(format_args!("walking the pool: {error:#}")))?;
        self.summary.pools_checked += 1;
        let tally = &self.summary.tally;
        for finding in &report.findings {
            let (path, at) = (path.display(), finding.offset);
            let words = format!("{path} at byte {at}: {}", finding.what);
            tally.convict_of(&tally.in_pools, words);
        }
        Ok(())
    }
}

/// Asks the server all the time until `length` is over, or `stop` set.
fn watch_load(observer: &mut Observer, length: Duration, stop: &AtomicBool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < length && !stop.load(Ordering::Relaxed) {
        observer.look()?;
        thread::sleep(EVERY.min(length.saturating_sub(begun.elapsed())));
    }
    Ok(())
}

/// Starts the server of a pool. One that an earlier campaign left must open; whether a new one can be made at
/// all is up to the machine.
fn first_start(launch: &Launch, is_new: bool) -> anyhow::Result<Process> {
    let started = start_once_free(launch);
    started.map_err(|error| {
        if is_new || is_in_use(&error) {
            anyhow::anyhow!("{error:#}")
        } else {
            error.context("the start after a campaign")
        }
    })
}

/// A campaign that was killed leaves a server that notices, closes in order and gives the pool back soon.
fn start_once_free(launch: &Launch) -> anyhow::Result<Process> {
    let begun = Instant::now();
    loop {
        match launch.start() {
            Err(error) if is_in_use(&error) && begun.elapsed() < ORPHAN_MAX => {
                thread::sleep(EVERY);
            }
            started => return started,
        }
    }
}

fn is_in_use(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("open elsewhere")
}

fn remove(pool: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(pool) {
        // An engine that keeps nothing makes no pool.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", pool.display()))
        }
        _ => Ok(()),
    }
}
