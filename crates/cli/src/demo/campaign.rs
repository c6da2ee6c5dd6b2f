//! One run: first load, mixed load, SIGKILL, recovery, check, repeatedly, then an orderly end. The first
//! broken promise ends the run, and its pool is kept as evidence.
//!
//! `demo` and the kill loop test both run it, each with its own plan.

use super::corpus::Corpus;
use super::keys::DemoKeys;
use super::mix::Mix;
use crate::killing::expected::Expected;
use crate::killing::journal::Ledger;
use crate::killing::keys::Keys;
use crate::killing::load::{Connection, Shared, empty_times};
use crate::killing::process::{Launch, Process};
use crate::killing::stretch::{on_each, stretch};
use crate::killing::tally::Tally;
use crate::killing::verify::Verifier;
use crate::units;
use anyhow::Context;
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Requests under way while the corpus is loaded.
const BULK_DEPTH: usize = 128;
/// Requests of the first load are sent when this many bytes are queued, also before [`BULK_DEPTH`].
const BULK_BYTES: usize = 1 << 20;

/// What a run does.
pub struct Plan {
    /// How the server is started.
    pub launch: Launch,
    /// What is loaded first.
    pub corpus: Corpus,
    /// Connections that load and write.
    pub connections: usize,
    /// SIGKILLs, those in recovery included.
    pub kills: usize,
    /// How long each stretch of load lasts, in milliseconds: one before each kill, one after the last.
    pub stretch_ms: RangeInclusive<u64>,
    /// Whether some of the kills hit a server that is still starting.
    pub kill_in_recovery: bool,
    /// Seed of everything random.
    pub seed: u64,
}

/// What a run found.
#[derive(Default)]
pub struct Summary {
    /// Keys of the run.
    pub keys: u64,
    /// Bytes of the first load.
    pub loaded_bytes: u64,
    /// Requests of the first load.
    pub loaded: u64,
    /// Duration of the first load.
    pub load_time: Duration,
    /// SIGKILLs sent.
    pub kills: u64,
    /// Requests answered under mixed load.
    pub answered: u64,
    /// Writes acknowledged, the first load included.
    pub acknowledged: u64,
    /// Acknowledged writes accounted for at the last check.
    pub verified: u64,
    /// Keys that did not hold what was promised: a value is gone, has returned, or is damaged.
    pub lost: u64,
    /// Reads under load that were judged.
    pub reads: u64,
    /// Answers under load that were older than what was promised, or wrong.
    pub inconsistent: u64,
    /// Broken promises, in words.
    pub told: Vec<String>,
    /// Time under mixed load.
    pub mix_time: Duration,
    /// Request to answer, in nanoseconds, pipelined.
    pub times: Option<Histogram<u64>>,
    /// Start of the process to its first reply, after each kill.
    pub recoveries: Vec<Duration>,
    /// Recovery of the pool alone, after each kill.
    pub pool_recoveries: Vec<Duration>,
    /// Records that the last recovery after a kill indexed.
    pub recovered_records: u64,
    /// The server's report: medium, durability, what an acknowledgement means.
    pub report: Value,
}

impl Summary {
    /// Whether every promise was kept.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.inconsistent == 0
    }
}

/// Receives the progress: a stage, its percentage, and a few words.
pub type Watch<'a> = &'a (dyn Fn(&str, u64, &str) + Sync);

/// Runs the plan to its end.
///
/// # Errors
/// If something other than a promise fails: the server does not start, refuses a request, or ends by itself.
/// Broken promises are in the summary.
pub fn run(plan: &Plan, watch: Watch<'_>) -> anyhow::Result<Summary> {
    let keys = DemoKeys::new(&plan.corpus, plan.connections);
    let mut campaign = Campaign {
        plan,
        watch,
        mix: Mix::new(&keys)?,
        keys: &keys,
        expected: Expected::new(keys.len()),
        tally: Tally::default(),
        random: StdRng::seed_from_u64(plan.seed),
        summary: Summary::default(),
    };
    campaign.run()?;
    Ok(campaign.finish())
}

struct Campaign<'a> {
    plan: &'a Plan,
    watch: Watch<'a>,
    keys: &'a DemoKeys,
    mix: Mix<'a>,
    expected: Expected,
    tally: Tally,
    random: StdRng,
    summary: Summary,
}

impl Campaign<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        let mut process = self.first_start()?;
        self.load(process.port)?;
        while self.kills_left() > 0 {
            process = self.mix_and_kill(process)?;
            if !self.check(process.port)? {
                return Ok(());
            }
        }
        self.stretch(process.port, None)?;
        if !self.check(process.port)? {
            return Ok(());
        }
        process.close().context("the orderly end")?;
        let start = self.plan.launch.start();
        let process = start.context("the start after an orderly end")?;
        self.check(process.port)?;
        process.close().context("the orderly end")
    }

    fn kills_left(&self) -> u64 {
        let kills = self.plan.kills as u64;
        kills.saturating_sub(self.summary.kills)
    }

    fn first_start(&mut self) -> anyhow::Result<Process> {
        let process = self.plan.launch.start()?;
        anyhow::ensure!(
            process.reported("keys") == 0,
            "{} holds keys already; the check needs a pool of its own",
            self.plan.launch.pool.display()
        );
        self.summary.report = process.ready.get("report").cloned().unwrap_or_default();
        Ok(process)
    }

    fn ledger(&self) -> Ledger<'_> {
        Ledger {
            expected: &self.expected,
            journal: None,
        }
    }

    fn shared(&self) -> Shared<'_> {
        Shared::new(self.keys, &self.mix, self.ledger(), &self.tally)
    }

    /// Writes the first values of all documents.
    fn load(&mut self, port: u16) -> anyhow::Result<()> {
        let begun = Instant::now();
        let documents = &self.plan.corpus.documents;
        (self.watch)("load", 0, &format!("{} documents", documents.len()));
        let shared = self.shared();
        on_each(self.keys.connections(), |number| {
            let mut connection = Connection::open(&shared, number, port, 0)?;
            let mut times = empty_times()?;
            for key in self.keys.owned_by(number) {
                let Some((_, value)) = documents.get(key) else {
                    break;
                };
                connection.put_bytes(key, value);
                let (requests, bytes) = connection.queued();
                if requests >= BULK_DEPTH || bytes >= BULK_BYTES {
                    connection.exchange(&mut times)?;
                }
            }
            connection.exchange(&mut times)
        })
        .context("loading")?;
        drop(shared);
        self.summary.load_time = begun.elapsed();
        self.summary.loaded_bytes = self.plan.corpus.bytes();
        self.summary.loaded = self.tally.answered.get();
        Ok(())
    }

    /// Whether every key holds what it should.
    fn check(&mut self, port: u16) -> anyhow::Result<bool> {
        (self.watch)("check", 0, &format!("{} keys", self.keys.len()));
        let verifier = Verifier {
            keys: self.keys,
            ledger: self.ledger(),
            tally: &self.tally,
            kills: self.summary.kills,
        };
        self.summary.verified = verifier.run(port).context("checking")?;
        Ok(self.tally.broken() == 0)
    }

    /// Loads the server for one stretch, kills it with SIGKILL under load, and starts it again.
    fn mix_and_kill(&mut self, process: Process) -> anyhow::Result<Process> {
        self.stretch(process.port, Some(process))?;
        self.summary.kills += 1;
        if self.plan.kill_in_recovery && self.kills_left() > 0 && self.random.random_ratio(1, 4) {
            let delay = Duration::from_micros(self.random.random_range(1_000..60_000));
            self.plan.launch.start_and_kill(delay)?;
            self.summary.kills += 1;
        }
        (self.watch)("recover", 0, "killed with SIGKILL; starting again");
        let start = self.plan.launch.start();
        let process = start.context("the start after a SIGKILL")?;
        self.summary.recoveries.push(process.to_first_reply);
        let recovery = Duration::from_micros(process.reported("recovery_us"));
        self.summary.pool_recoveries.push(recovery);
        self.summary.recovered_records = process.reported("recovered_records");
        Ok(process)
    }

    /// Loads the server from all connections for a random time; then kills `victim`, or stops the load.
    fn stretch(&mut self, port: u16, victim: Option<Process>) -> anyhow::Result<()> {
        let length = Duration::from_millis(self.random.random_range(self.plan.stretch_ms.clone()));
        let (seed, begun) = (self.random.random(), Instant::now());
        let shared = self.shared();
        let (_, times) = stretch(&shared, port, seed, || {
            self.watch_stretch(begun, length, &shared.stop);
            victim.map_or(Ok(()), |process| shared.kill(process))
        })?;
        drop(shared);
        self.summary.mix_time += begun.elapsed();
        match &mut self.summary.times {
            Some(all) => all.add(times)?,
            none => *none = Some(times),
        }
        Ok(())
    }

    fn watch_stretch(&self, begun: Instant, length: Duration, stop: &AtomicBool) {
        let before = self.tally.answered.get();
        while begun.elapsed() < length && !stop.load(Ordering::Relaxed) {
            thread::sleep((length.saturating_sub(begun.elapsed())).min(Duration::from_millis(100)));
            let elapsed = begun.elapsed();
            let answered = self.tally.answered.get() - before;
            let rate = answered as f64 / elapsed.as_secs_f64().max(0.001);
            let percent = elapsed.as_millis().saturating_mul(100) / length.as_millis().max(1);
            let (answered, broken) = (units::count(answered), self.tally.broken());
            let words = format!("{rate:.0} requests/s, {answered} answered, {broken} lost");
            let percent = u64::try_from(percent).unwrap_or(100).min(100);
            (self.watch)("mixed load", percent, &words);
        }
    }

    fn finish(self) -> Summary {
        let tally = &self.tally;
        Summary {
            keys: self.keys.len() as u64,
            answered: tally.answered.get() - self.summary.loaded,
            acknowledged: tally.acknowledged.get(),
            lost: tally.broken() - tally.inconsistent.get(),
            reads: tally.reads.get(),
            inconsistent: tally.inconsistent.get(),
            told: tally.told(),
            ..self.summary
        }
    }
}
