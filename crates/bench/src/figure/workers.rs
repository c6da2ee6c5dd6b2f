//! Worker threads, as the thread that measures sees them: what it tells them, and what they have done.
//!
//! A worker counts for itself and reports when it is asked, at its next pause between requests. Its counts
//! are then of one moment in which it had a core, and what the kernel says of its waiting is complete.

use super::stream::Writes;
use crate::pass::Passed;
use crate::process::{self, Waiting};
use crate::row::{Metric, Row};
use crate::subject::Error;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Sleep between two looks at whether a worker has failed, and at whether all have reported.
const NAP: Duration = Duration::from_millis(10);
const NAP_SHORT: Duration = Duration::from_millis(1);
/// A span that is to see so many puts takes so many times its seconds at most.
const LONGER: u32 = 4;
/// Naps that settling may take.
const SETTLING_NAPS: u32 = 1000;
/// Requests between two pauses.
const BLOCK: u64 = 32;

/// Shared by all threads of a run.
pub(super) struct Workers {
    writes: AtomicU32,
    is_timed: AtomicBool,
    is_over: AtomicBool,
    /// How often workers were asked what they have done.
    asked: AtomicU32,
    slots: Box<[Slot]>,
}

/// What one thread reports. Two lines, since processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Slot {
    /// The kernel's number of the thread.
    thread: AtomicU32,
    is_gleaning: AtomicBool,
    report: Mutex<Report>,
}

/// What one thread had done when it was asked.
#[derive(Clone, Copy, Default)]
struct Report {
    /// The last request for a report that this answers; all of them once the thread has ended.
    asked: u32,
    counts: Counts,
}

/// What one thread has done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    at: Option<Instant>,
    requests: u64,
    puts: u64,
    answering_ns: u64,
    gleaning_ns: u64,
    /// Ready to run, and without a core.
    queued_ns: u64,
}

/// What some threads had done at a moment.
pub(super) struct Tally {
    counts: Vec<Counts>,
    /// On a processor: these threads, and the whole process.
    ran_ns: u64,
    process_ns: u64,
}

/// What some threads did between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    pub(super) threads: usize,
    pub(super) seconds: f64,
    pub(super) requests: u64,
    pub(super) puts: u64,
    answering_ns: f64,
    gleaning_ns: f64,
    /// Requests a second.
    rate: f64,
    /// The same without time in which a thread had no core.
    answering_ns_with_core: f64,
    rate_with_core: f64,
    queued_share: f64,
    /// Share of the process's time on processors that was these threads'.
    own_share: f64,
}

impl Workers {
    /// For so many threads.
    pub(super) fn new(threads: usize, writes: Writes) -> Workers {
        Workers {
            writes: AtomicU32::new(writes.0),
            is_timed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            slots: (0..threads).map(|_| Slot::default()).collect(),
        }
    }

    /// Which requests are puts.
    #[inline]
    pub(super) fn writes(&self) -> Writes {
        Writes(self.writes.load(Relaxed))
    }

    pub(super) fn set_writes(&self, writes: Writes) {
        self.writes.store(writes.0, Relaxed);
    }

    /// Whether latencies count.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed.load(Relaxed)
    }

    pub(super) fn time_from_now(&self) {
        self.is_timed.store(true, Relaxed);
    }

    /// Whether all threads are to stop.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Runs a part of the work; if it fails, all threads are to stop.
    pub(super) fn or_end(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        work().inspect_err(|_| self.end())
    }

    /// How many threads there are.
    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Sleeps; less if it is over.
    pub(super) fn sleep(&self, seconds: f64) {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while !self.is_over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Asks all threads for a report, and waits for those of some of them; not once the run is over.
    pub(super) fn tally(&self, threads: std::ops::Range<usize>) -> Tally {
        let asked = self.asked.fetch_add(1, Relaxed) + 1;
        let slots = &self.slots[threads];
        let has_reported = |slot: &Slot| slot.report().asked >= asked;
        while !self.is_over() && !slots.iter().all(has_reported) {
            std::thread::sleep(NAP_SHORT);
        }
        let ran = slots
            .iter()
            .map(|slot| process::ran_ns(slot.thread.load(Relaxed)));
        Tally {
            counts: slots.iter().map(|slot| slot.report().counts).collect(),
            ran_ns: ran.sum(),
            process_ns: u64::try_from(process::cpu().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// What some of the threads do in the next seconds.
    pub(super) fn span(&self, threads: std::ops::Range<usize>, seconds: f64) -> Span {
        self.span_of(threads, seconds, 0)
    }

    /// What some of the threads do in the next seconds, and until they have put so many records; in
    /// [`LONGER`] times as many seconds at most.
    pub(super) fn span_of(&self, threads: std::ops::Range<usize>, seconds: f64, puts: u64) -> Span {
        let before = self.tally(threads.clone());
        for _ in 0..LONGER {
            self.sleep(seconds);
            let span = self.tally(threads.clone()).since(&before);
            if span.puts >= puts {
                return span;
            }
        }
        self.tally(threads).since(&before)
    }

    /// Waits until no worker has gleaned for a moment: earlier writes are then gleaned.
    pub(super) fn settle(&self) {
        let mut quiet = 0;
        for _ in 0..SETTLING_NAPS {
            quiet = if self.gleaners() == 0 { quiet + 1 } else { 0 };
            if quiet == 10 || self.is_over() {
                break;
            }
            std::thread::sleep(NAP);
        }
    }

    /// How many workers are gleaning now: those whose last turn was one.
    pub(super) fn gleaners(&self) -> usize {
        let slots = self.slots.iter();
        slots.filter(|slot| slot.is_gleaning.load(Relaxed)).count()
    }
}

impl Slot {
    fn report(&self) -> Report {
        // A copy of plain numbers is whole even if its writer panicked.
        *self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    /// Puts so far.
    pub(super) fn puts(&self) -> u64 {
        self.counts.iter().map(|counts| counts.puts).sum()
    }

    /// What the threads did since then.
    pub(super) fn since(&self, before: &Tally) -> Span {
        let mut span = Span {
            threads: self.counts.len(),
            ..Span::default()
        };
        let (mut seconds, mut queued) = (0.0, 0.0);
        for (now, before) in self.counts.iter().zip(&before.counts) {
            let (Some(to), Some(from)) = (now.at, before.at) else {
                continue;
            };
            let passed_ns = to.saturating_duration_since(from).as_nanos() as f64;
            let queued_ns = (now.queued_ns - before.queued_ns) as f64;
            let had_core = (1.0 - queued_ns / passed_ns.max(1.0)).clamp(0.001, 1.0);
            let requests = now.requests - before.requests;
            let answering_ns = (now.answering_ns - before.answering_ns) as f64;
            let rate = requests as f64 * 1e9 / passed_ns.max(1.0);
            span.requests += requests;
            span.puts += now.puts - before.puts;
            span.answering_ns += answering_ns;
            span.gleaning_ns += (now.gleaning_ns - before.gleaning_ns) as f64;
            span.rate += rate;
            span.answering_ns_with_core += answering_ns * had_core;
            span.rate_with_core += rate / had_core;
            seconds += passed_ns / 1e9;
            queued += queued_ns / 1e9;
        }
        span.seconds = seconds / span.threads.max(1) as f64;
        span.queued_share = (queued / f64::max(seconds, 1e-9)).clamp(0.0, 1.0);
        let process_ns = self.process_ns.saturating_sub(before.process_ns);
        let ran_ns = self.ran_ns.saturating_sub(before.ran_ns);
        span.own_share = (ran_ns as f64 / process_ns.max(1) as f64).clamp(0.01, 1.0);
        span
    }
}

impl Span {
    /// A pass of so many threads as a whole.
    pub(super) fn of(threads: usize, passed: &Passed) -> Span {
        let sample = &passed.sample;
        let all_ns = passed.asked.as_nanos() as f64;
        let queued_share = (passed.waited.ns as f64 / all_ns.max(1.0)).clamp(0.0, 0.999);
        let had_core = 1.0 - queued_share;
        let own_share = sample.cpu.as_secs_f64() / passed.process_cpu.as_secs_f64().max(1e-9);
        Span {
            threads,
            seconds: sample.wall.as_secs_f64(),
            requests: sample.operations,
            answering_ns: all_ns,
            rate: sample.rate(),
            answering_ns_with_core: all_ns * had_core,
            rate_with_core: sample.operations as f64 * threads as f64 * 1e9
                / all_ns.max(1.0)
                / had_core,
            queued_share,
            own_share: own_share.clamp(0.01, 1.0),
            ..Span::default()
        }
    }

    /// Adds throughput and latency to a row; with `cores`, also what they would be on a machine of as many.
    pub(super) fn add_to(&self, row: &mut Row, cores: Option<usize>) {
        row.push(Metric::Rate, self.rate);
        row.push(Metric::MeanNs, self.mean_ns());
        row.push(Metric::QueuedShare, self.queued_share);
        if let Some(cores) = cores {
            let (rate, mean_ns) = self.undisturbed(cores);
            row.push(Metric::CoreRate, rate);
            row.push(Metric::CoreMeanNs, mean_ns);
        }
    }

    /// Nanoseconds from one answer to the next, on a thread that answers.
    fn mean_ns(&self) -> f64 {
        self.answering_ns / self.requests.max(1) as f64
    }

    /// Throughput and latency on a machine of so many cores that nobody else uses. Time without a core does
    /// not count; threads beyond the cores share them; and what other threads of the process took is missing
    /// where workers need all cores.
    fn undisturbed(&self, cores: usize) -> (f64, f64) {
        let sharing = (self.threads as f64 / cores as f64).max(1.0);
        let own_share = if self.threads < cores {
            1.0
        } else {
            self.own_share
        };
        let mean_ns = self.answering_ns_with_core / self.requests.max(1) as f64;
        (self.rate_with_core / sharing * own_share, mean_ns * sharing)
    }

    /// Share of the threads' time in which they gleaned.
    pub(super) fn gleaning_share(&self) -> f64 {
        self.gleaning_ns / (self.gleaning_ns + self.answering_ns).max(1.0)
    }

    /// The same of all their time, where they also wait for requests.
    pub(super) fn gleaning_share_of_all(&self) -> f64 {
        self.gleaning_ns / (self.seconds * 1e9 * self.threads as f64).max(1.0)
    }
}

/// Counts what a thread does, reading the clock once in a while only.
///
/// Requests are not timed one by one. When a worker turns to gleaning, the time of its last requests is
/// estimated from the mean; the error is a few requests for each change of role.
pub(super) struct Meter<'a> {
    workers: &'a Workers,
    slot: &'a Slot,
    waiting: Waiting,
    asked: u32,
    counts: Counts,
    mark: Instant,
    since_mark: u64,
    each_ns: f64,
    is_gleaning: bool,
}

impl<'a> Meter<'a> {
    /// Begins now, on the thread that works.
    pub(super) fn start(workers: &'a Workers, thread: usize) -> Meter<'a> {
        let slot = &workers.slots[thread];
        slot.thread.store(process::this_thread(), Relaxed);
        Meter {
            workers,
            slot,
            waiting: Waiting::of_this_thread(),
            asked: 0,
            counts: Counts::default(),
            mark: Instant::now(),
            since_mark: 0,
            each_ns: 0.0,
            is_gleaning: false,
        }
    }

    /// A request was answered.
    #[inline]
    pub(super) fn answered(&mut self, is_put: bool) {
        self.since_mark += 1;
        self.counts.puts += u64::from(is_put);
        if self.is_gleaning {
            self.is_gleaning = false;
            self.slot.is_gleaning.store(false, Relaxed);
        }
        if self.since_mark == BLOCK {
            self.pause();
        }
    }

    /// The thread waited for a request: this time is neither answering nor gleaning.
    pub(super) fn waited(&mut self) {
        if self.since_mark > 0 {
            self.pause();
        }
        self.mark = Instant::now();
        self.report();
    }

    /// A turn was one at gleaning.
    #[cold]
    pub(super) fn gleaned(&mut self) {
        let passed_ns = self.passed_ns();
        let answering_ns = passed_ns.min((self.since_mark as f64 * self.each_ns) as u64);
        self.counts.requests += std::mem::take(&mut self.since_mark);
        self.counts.answering_ns += answering_ns;
        self.counts.gleaning_ns += passed_ns - answering_ns;
        if !self.is_gleaning {
            self.is_gleaning = true;
            self.slot.is_gleaning.store(true, Relaxed);
        }
        self.report();
    }

    /// Everything since the last pause was answering.
    fn pause(&mut self) {
        let passed_ns = self.passed_ns();
        if self.since_mark > 0 {
            self.each_ns = passed_ns as f64 / self.since_mark as f64;
        }
        self.counts.requests += std::mem::take(&mut self.since_mark);
        self.counts.answering_ns += passed_ns;
        self.report();
    }

    fn passed_ns(&mut self) -> u64 {
        let now = Instant::now();
        let passed = now - std::mem::replace(&mut self.mark, now);
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Reports if it was asked to.
    #[inline]
    fn report(&mut self) {
        let asked = self.workers.asked.load(Relaxed);
        if asked != self.asked {
            self.write_down(asked);
        }
    }

    #[cold]
    fn write_down(&mut self, asked: u32) {
        self.asked = asked;
        self.counts.queued_ns = self.waiting.queued_ns();
        self.counts.at = Some(self.mark);
        let counts = self.counts;
        *self
            .slot
            .report
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Report { asked, counts };
    }
}

/// The last report answers all requests that are still to come.
impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.pause();
        self.write_down(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_answering_or_gleaning() {
        let workers = Workers::new(1, Writes(0));
        let mut meter = Meter::start(&workers, 0);
        for _ in 0..BLOCK {
            std::thread::sleep(Duration::from_micros(100));
            meter.answered(true);
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_micros(100));
            meter.answered(false);
        }
        std::thread::sleep(Duration::from_millis(20));
        meter.gleaned();
        assert_eq!(workers.gleaners(), 1);
        meter.answered(false);
        assert_eq!(workers.gleaners(), 0);
        drop(meter);
        // A thread that has ended is not waited for.
        let tally = workers.tally(0..1);
        let counts = tally.counts[0];
        assert_eq!((counts.requests, tally.puts()), (BLOCK + 4, BLOCK));
        assert!(counts.gleaning_ns >= 10_000_000, "{counts:?}");
        assert!(counts.answering_ns >= 3_200_000, "{counts:?}");
    }

    #[test]
    fn a_span_is_from_one_pause_to_another() {
        let workers = Workers::new(2, Writes(0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (workers, stop) = (&workers, &stop);
                scope.spawn(move || {
                    let mut meter = Meter::start(workers, thread);
                    while !stop.load(Relaxed) {
                        let until = Instant::now() + Duration::from_micros(2);
                        while Instant::now() < until {}
                        if thread == 0 {
                            meter.answered(true);
                        } else {
                            meter.gleaned();
                        }
                    }
                });
            }
            let span = workers.span(0..2, 0.1);
            stop.store(true, Relaxed);
            assert!(span.seconds > 0.05 && span.requests >= BLOCK, "{span:?}");
            assert_eq!(span.requests, span.puts);
            assert_eq!(span.requests % BLOCK, 0);
            assert!((0.1..0.9).contains(&span.gleaning_share()), "{span:?}");
            // No request took less than the loop above.
            let (rate, mean_ns) = span.undisturbed(8);
            assert!(rate >= span.rate && rate <= 500e3, "{span:?}");
            assert!(
                (1_900.0..=span.mean_ns() + 1.0).contains(&mean_ns),
                "{span:?}"
            );
        });
    }

    #[test]
    fn time_without_a_core_is_left_out() {
        let from = Instant::now();
        let tally = |seconds: u64, requests, queued_ns, ran_ns, process_ns| Tally {
            counts: vec![
                Counts {
                    at: Some(from + Duration::from_secs(seconds)),
                    requests,
                    answering_ns: seconds * 1_000_000_000,
                    queued_ns,
                    ..Counts::default()
                };
                2
            ],
            ran_ns,
            process_ns,
        };
        let before = tally(0, 0, 0, 0, 0);
        let span = tally(1, 500_000, 500_000_000, 1_000, 1_250).since(&before);
        let near = |found: (f64, f64), wanted: (f64, f64)| {
            (found.0 - wanted.0).abs() < 1e-6 && (found.1 - wanted.1).abs() < 1e-6
        };
        assert!(near((span.rate, span.mean_ns()), (1e6, 2000.0)), "{span:?}");
        assert!(near((span.queued_share, span.seconds), (0.5, 1.0)));
        assert!(near(span.undisturbed(8), (2e6, 1000.0)));
        // All cores are the workers', and a fifth of what they need went to the background.
        assert!(near(span.undisturbed(2), (1.6e6, 1000.0)));
        assert!(near(span.undisturbed(1), (0.8e6, 2000.0)));
    }

    #[test]
    fn a_pass_is_a_span() {
        let ms = Duration::from_millis;
        let mut passed = Passed::default();
        // Two threads at once for 100 ms, of which each waited 20 ms for a core.
        passed.sample.operations = 16_000;
        (passed.sample.wall, passed.sample.cpu) = (ms(100), ms(160));
        (passed.asked, passed.process_cpu, passed.waited.ns) = (ms(200), ms(200), 40_000_000);
        let span = Span::of(2, &passed);
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 1e-6;
        assert!(
            near(span.rate, 160e3) && near(span.mean_ns(), 12_500.0),
            "{span:?}"
        );
        assert!(near(span.queued_share, 0.2) && span.requests == 16_000);
        let (rate, mean_ns) = span.undisturbed(8);
        assert!(
            near(rate, 200e3) && near(mean_ns, 10_000.0),
            "{rate} {mean_ns}"
        );
        // A fifth of what both cores did was the background's.
        assert!(near(span.undisturbed(2).0, 160e3));
    }

    #[test]
    fn a_sleeper_wakes_when_it_is_over() {
        let workers = Workers::new(0, Writes(0));
        workers.end();
        let begun = Instant::now();
        workers.sleep(3600.0);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
