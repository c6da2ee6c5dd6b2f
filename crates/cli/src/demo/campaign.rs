//! A run from start to end: load, mixed load, SIGKILL, recovery, check, and again; then an orderly end.
//!
//! `demo` and the kill loop test are this with different plans.

use crate::client::SILENCE_MAX;
use crate::demo::corpus::Corpus;
use crate::demo::keys::Keys;
use crate::demo::load::{Ended, Run};
use crate::killing::process::{Launch, Process};
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
    /// How long each stretch of load lasts: one before each kill, one after the last. In milliseconds.
    pub stretch_ms: RangeInclusive<u64>,
    /// Whether some of the kills hit a server that is still starting.
    pub kill_in_recovery: bool,
    /// Everything random comes from it.
    pub seed: u64,
}

/// What a run found.
#[derive(Default)]
pub struct Summary {
    /// Keys of the run.
    pub keys: u64,
    /// Bytes loaded first.
    pub loaded_bytes: u64,
    /// Time that took.
    pub load_time: Duration,
    /// SIGKILLs sent.
    pub kills: u64,
    /// Requests answered under mixed load.
    pub answered: u64,
    /// Writes acknowledged, the first load included.
    pub acknowledged: u64,
    /// Acknowledged writes accounted for at the last check.
    pub verified: u64,
    /// Keys that did not hold what was promised, over all checks.
    pub lost: u64,
    /// Reads under load that were judged.
    pub reads: u64,
    /// Answers under load that broke a promise.
    pub inconsistent: u64,
    /// Broken promises in words.
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

/// Is told what happens while it does: a stage, how far it is in percent, and a few words.
pub type Watch<'a> = &'a (dyn Fn(&str, u64, &str) + Sync);

/// Runs the plan to its end.
///
/// # Errors
/// If something else than a broken promise goes wrong: the server does not start, refuses a request, or
/// ends by itself. Broken promises are in the summary.
pub fn run(plan: &Plan, watch: Watch<'_>) -> anyhow::Result<Summary> {
    let mut campaign = Campaign {
        plan,
        watch,
        run: Run::new(Keys::new(&plan.corpus, plan.connections)),
        random: StdRng::seed_from_u64(plan.seed),
        summary: Summary::default(),
    };
    let mut process = campaign.first_start()?;
    campaign.load(process.port)?;
    let loaded = campaign.run.answered.load(Ordering::Relaxed);
    while campaign.kills_left() > 0 {
        process = campaign.mix_and_kill(process)?;
        campaign.check(process.port)?;
    }
    campaign.mix(&process)?;
    campaign.check(process.port)?;
    process.close().context("the orderly end")?;
    let process = plan
        .launch
        .start()
        .context("the start after an orderly end")?;
    campaign.check(process.port)?;
    process.close().context("the orderly end")?;
    Ok(campaign.finish(loaded))
}

struct Campaign<'a> {
    plan: &'a Plan,
    watch: Watch<'a>,
    run: Run,
    random: StdRng,
    summary: Summary,
}

impl Campaign<'_> {
    fn kills_left(&self) -> usize {
        self.plan
            .kills
            .saturating_sub(usize::try_from(self.summary.kills).unwrap_or(usize::MAX))
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

    /// Runs `work` once for each connection, in parallel.
    fn on_each_connection(
        &self,
        work: impl Fn(usize) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<()> {
        let work = &work;
        thread::scope(|scope| {
            let connections = 0..self.run.keys.connections;
            let threads: Vec<_> = connections.map(|c| scope.spawn(move || work(c))).collect();
            threads.into_iter().try_for_each(join)
        })
    }

    fn load(&mut self, port: u16) -> anyhow::Result<()> {
        let begun = Instant::now();
        let (documents, run) = (&self.plan.corpus.documents, &self.run);
        (self.watch)("load", 0, &format!("{} documents", documents.len()));
        self.on_each_connection(|connection| run.load(connection, port, documents))
            .context("loading")?;
        self.summary.load_time = begun.elapsed();
        self.summary.loaded_bytes = self.plan.corpus.bytes();
        Ok(())
    }

    fn check(&mut self, port: u16) -> anyhow::Result<()> {
        (self.watch)("check", 0, &format!("{} keys", self.run.keys.len()));
        self.run.verified.store(0, Ordering::Relaxed);
        let run = &self.run;
        self.on_each_connection(|connection| run.verify(connection, port))
            .context("checking")
    }

    /// One stretch of load that ends in order.
    fn mix(&mut self, process: &Process) -> anyhow::Result<()> {
        self.stretch(process.port, None).map(|_| ())
    }

    /// One stretch of load, a SIGKILL in the middle of it, and the server started again.
    fn mix_and_kill(&mut self, process: Process) -> anyhow::Result<Process> {
        self.stretch(process.port, Some(process))?;
        self.summary.kills += 1;
        if self.plan.kill_in_recovery && self.kills_left() > 0 && self.random.random_ratio(1, 4) {
            let delay = Duration::from_micros(self.random.random_range(1_000..60_000));
            self.plan.launch.start_and_kill(delay)?;
            self.summary.kills += 1;
        }
        (self.watch)("recover", 0, "killed with SIGKILL; starting again");
        let process = self
            .plan
            .launch
            .start()
            .context("the start after a SIGKILL")?;
        self.summary.recoveries.push(process.to_first_reply);
        self.summary
            .pool_recoveries
            .push(Duration::from_micros(process.reported("recovery_us")));
        self.summary.recovered_records = process.reported("recovered_records");
        Ok(process)
    }

    /// Load from all connections for a random time; then `victim` is killed, or the load stops.
    fn stretch(&mut self, port: u16, victim: Option<Process>) -> anyhow::Result<()> {
        let length = Duration::from_millis(self.random.random_range(self.plan.stretch_ms.clone()));
        let (seed, is_kill) = (self.random.random(), victim.is_some());
        let (stop, killed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (run, begun) = (&self.run, Instant::now());
        let mut times = empty_times()?;
        let connection = |connection| {
            let mut times = empty_times()?;
            let ended = run.mix(connection, port, seed, &stop, &mut times);
            match ended {
                Ok(Ended::Cut(error)) if !killed.load(Ordering::SeqCst) => {
                    stop.store(true, Ordering::Relaxed);
                    Err(error).context("the connection broke before the server was killed")
                }
                Ok(_) => Ok(times),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    Err(error)
                }
            }
        };
        thread::scope(|scope| {
            let connection = &connection;
            let threads: Vec<_> = (0..run.keys.connections)
                .map(|c| scope.spawn(move || connection(c)))
                .collect();
            self.watch_stretch(begun, length, &stop);
            killed.store(is_kill, Ordering::SeqCst);
            let killing = victim.map_or(Ok(()), Process::kill);
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                times.add(join(thread)?)?;
            }
            killing
        })?;
        self.summary.mix_time += begun.elapsed();
        match &mut self.summary.times {
            Some(all) => all.add(times)?,
            none => *none = Some(times),
        }
        Ok(())
    }

    fn watch_stretch(&self, begun: Instant, length: Duration, stop: &AtomicBool) {
        let before = self.run.answered.load(Ordering::Relaxed);
        while begun.elapsed() < length && !stop.load(Ordering::Relaxed) {
            thread::sleep((length.saturating_sub(begun.elapsed())).min(Duration::from_millis(100)));
            let elapsed = begun.elapsed();
            let answered = self.run.answered.load(Ordering::Relaxed) - before;
            let rate = answered as f64 / elapsed.as_secs_f64().max(0.001);
            let percent = elapsed.as_millis().saturating_mul(100) / length.as_millis().max(1);
            let (answered, broken) = (units::count(answered), self.broken());
            let words = format!("{rate:.0} requests/s, {answered} answered, {broken} lost");
            (self.watch)(
                "mixed load",
                u64::try_from(percent).unwrap_or(100).min(100),
                &words,
            );
        }
    }

    fn broken(&self) -> u64 {
        self.run.lost.load(Ordering::Relaxed) + self.run.inconsistent.load(Ordering::Relaxed)
    }

    fn finish(self, loaded: u64) -> Summary {
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Summary {
            keys: self.run.keys.len() as u64,
            answered: read(&self.run.answered) - loaded,
            acknowledged: read(&self.run.acknowledged),
            verified: read(&self.run.verified),
            lost: read(&self.run.lost),
            reads: read(&self.run.reads),
            inconsistent: read(&self.run.inconsistent),
            told: self.run.told(),
            ..self.summary
        }
    }
}

/// From a nanosecond to the longest a client waits, to three digits; longer times count as the longest.
fn empty_times() -> anyhow::Result<Histogram<u64>> {
    let longest = u64::try_from(SILENCE_MAX.as_nanos())?;
    Ok(Histogram::new_with_bounds(1, longest, 3)?)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread of the load panicked")))
}
