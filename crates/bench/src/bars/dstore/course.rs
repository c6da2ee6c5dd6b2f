//! Throughput from moment to moment, with the paper's delays.

use super::bed::{Bed, Ground, corpus};
use super::{Group, Host, Outcome, Settings, alone, ratio};
use crate::drive::Asker;
use crate::latency::Latencies;
use crate::limits::data::BLOCK_BYTES;
use crate::pace::{Closed, Pace};
use crate::pool;
use crate::process::{Waited, Waiting};
use crate::subject::Error;
use crate::verdict::Compared;
use crate::workload::corpus::Corpus;
use crate::workload::{Author, Workload};
use anyhow::ensure;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Moments of a second.
const MOMENTS: u64 = 10;
const MOMENT_NS: f64 = 1e9 / MOMENTS as f64;
/// Steps that a thread thinks of at a time.
const STEPS: u64 = 512;

/// What threads did, moment by moment.
#[derive(Default)]
struct Course {
    /// Operations, and nanoseconds in which their thread had a core.
    moments: Vec<(f64, f64)>,
    latencies: Latencies,
    waited_ns: u64,
}

pub(super) fn measure(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let ground = Ground::Modelled;
    let corpus = corpus(settings, BLOCK_BYTES);
    let records = ground.records(settings, BLOCK_BYTES, 1)?;
    // The checkpoint has a core of its own, as with the paper's 28; its threads spin for the disk.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores - 1).max(1);
    let seconds = whole_seconds(settings);
    host.begin(Group::Steady, "filling the store");
    let bed = Bed::filled(
        (settings, Group::Steady),
        ground,
        (&corpus, records),
        |_| {},
    )?;
    for (workload, what, each) in [
        (Workload::YcsbA, "50 % writes", 1),
        (Workload::Overwrite, "100 % writes", MOMENTS as usize),
    ] {
        host.begin(Group::Steady, what);
        let waits = bed.count("log_waits")?;
        let checkpoints = bed.count("checkpoints")?;
        let course = run(settings, &bed, (&corpus, workload), threads)?;
        let waits = bed.count("log_waits")? - waits;
        let has_checkpoints = bed.count("checkpoints")? > checkpoints;
        let time = Duration::from_secs(seconds * threads as u64);
        let waited = Waited {
            ns: course.waited_ns,
            preempted: 0,
        };
        outcome.note_wait(Group::Steady, waited, time);
        let (least, moment) = match each {
            1 => (0.85, "100 ms"),
            _ => (0.9, "second"),
        };
        let says = format!("{what}, modelled, least {moment} against the mean");
        let [(core_least, core_mean), (clock_least, clock_mean)] =
            [true, false].map(|core| course.least_and_mean(each, threads, core));
        let (one, mean) = ((core_least / 1e3, "k/s"), (core_mean / 1e3, "mean"));
        let mut bar = ratio((Group::Steady, &says), one, mean, (least, None));
        bar.measured[0].by_clock = Some(clock_least / clock_mean);
        if !has_checkpoints {
            bar.holds = None;
        }
        outcome.bars.push(bar);
        if workload == Workload::Overwrite {
            let says = format!("100 % writes for {} s, waits for log room", seconds);
            let bounds = (0.0, Some(0.0));
            let bar = alone((Group::Steady, &says), (waits as f64, ""), bounds);
            outcome.bars.push(bar);
        } else {
            let ms = |calls: &hdrhistogram::Histogram<u64>| calls.max() as f64 / 1e6;
            let slowest = ms(&course.latencies.undisturbed);
            let says = format!("{what}, modelled, the slowest call");
            let bounds = (0.0, Some(10.0));
            let mut bar = alone((Group::Steady, &says), (slowest, "ms"), bounds);
            let by_clock = Some(ms(&course.latencies.all));
            bar.measured[0] = Compared {
                by_clock,
                ..bar.measured[0].clone()
            };
            outcome.bars.push(bar);
        }
    }
    Ok(())
}

impl Course {
    /// Ends the moment under way, in which there were so many operations, and those until `at`, in which
    /// there were none. The thread had no core for `waited_ns` of them: of the later ones, if it is much.
    fn end_moments(&mut self, at: u64, operations: f64, mut waited_ns: f64) {
        let first = self.moments.len();
        let ended = at as usize - first;
        self.moments.resize(at as usize, (0.0, MOMENT_NS));
        self.moments[first].0 = operations;
        for moment in self.moments[first..].iter_mut().rev().take(ended) {
            let own = waited_ns.min(MOMENT_NS);
            moment.1 -= own;
            waited_ns -= own;
        }
    }

    /// The least rate of `each` moments together, and the mean, of all threads. Either by the clock; or
    /// without the time in which they had no core, and without moments that were mostly such time.
    fn least_and_mean(&self, each: usize, threads: usize, core: bool) -> (f64, f64) {
        let clock_ns = MOMENT_NS * threads as f64;
        let has_core = |moments: &&[(f64, f64)]| {
            let core_ns: f64 = moments.iter().map(|(_, ns)| ns).sum();
            !core || core_ns >= clock_ns * moments.len() as f64 / 2.0
        };
        let rate = |moments: &[(f64, f64)]| {
            let operations: f64 = moments.iter().map(|(operations, _)| operations).sum();
            let core_ns: f64 = moments.iter().map(|(_, ns)| ns).sum();
            let clock_ns = clock_ns * moments.len() as f64;
            operations / if core { core_ns } else { clock_ns } * 1e9 * threads as f64
        };
        let rates = self.moments.chunks(each).filter(has_core).map(rate);
        let mean = rate(&self.moments);
        (rates.fold(mean, f64::min), mean)
    }
}

fn whole_seconds(settings: &Settings) -> u64 {
    (settings.course_seconds.ceil() as u64).max(1)
}

/// Asks for as long as the settings say, in whole seconds.
fn run(
    settings: &Settings,
    bed: &Bed<'_>,
    (corpus, workload): (&Corpus, Workload),
    threads: usize,
) -> Result<Course, Error> {
    let moments = whole_seconds(settings) * MOMENTS;
    let start = Barrier::new(threads);
    let ask = |thread, ()| {
        let client = bed.fixture.subject.client();
        start.wait();
        let mut client = client?;
        let mut author = Author::new(workload, bed.records, thread, threads, settings.seed);
        let mut asker = Asker::new(corpus);
        asker.generation = 1;
        let (mut pace, waiting) = (Closed::new(), Waiting::of_this_thread());
        let mut course = Course::default();
        let (begun, mut queued, mut operations) = (Instant::now(), waiting.queued_ns(), 0.0);
        let mut steps = Vec::new();
        while (course.moments.len() as u64) < moments {
            if steps.is_empty() {
                steps = author.write(STEPS);
            }
            let Some(step) = steps.pop() else { continue };
            pace.before();
            asker.ask(&mut *client, step)?;
            pace.after();
            operations += 1.0;
            let at = begun.elapsed().as_nanos() as u64 * MOMENTS / 1_000_000_000;
            if at > course.moments.len() as u64 {
                let now = waiting.queued_ns();
                let waited = now - std::mem::replace(&mut queued, now);
                course.waited_ns += waited;
                course.end_moments(at, std::mem::take(&mut operations), waited as f64);
            }
        }
        course.moments.truncate(moments as usize);
        course.latencies = pace.timer.latencies;
        Ok(course)
    };
    let ((), courses) = pool::run((0..threads).map(|_| ()), ask, || ())?;
    let mut whole = Course::default();
    whole.moments.resize(moments as usize, (0.0, 0.0));
    for course in courses {
        for (sum, (operations, core_ns)) in whole.moments.iter_mut().zip(course.moments) {
            sum.0 += operations;
            sum.1 += core_ns;
        }
        whole.latencies.add(&course.latencies);
        whole.waited_ns += course.waited_ns;
    }
    ensure!(!whole.latencies.all.is_empty(), "no call was answered");
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_without_a_core_does_not_count_as_slow() {
        let mut course = Course::default();
        course.moments.resize(20, (100.0, MOMENT_NS));
        // Half of a core, and half of the work; then half of the work with all of the core.
        course.moments[3] = (50.0, MOMENT_NS / 2.0);
        let (least, mean) = course.least_and_mean(1, 1, true);
        assert!((least - 1000.0).abs() < 1.0 && (mean - 1000.0).abs() < 1.0);
        assert!((course.least_and_mean(1, 1, false).0 - 500.0).abs() < 1.0);
        course.moments[4] = (50.0, MOMENT_NS);
        assert!((course.least_and_mean(1, 1, true).0 - 500.0).abs() < 1.0);
        // As a part of a second.
        let (least, _) = course.least_and_mean(10, 1, true);
        assert!((945.0..955.0).contains(&least), "{least}");
    }

    #[test]
    fn a_pause_is_charged_to_the_moments_that_it_took() {
        let mut course = Course::default();
        course.end_moments(1, 7.0, 0.0);
        course.end_moments(4, 9.0, 2.25 * MOMENT_NS);
        let wanted = [(7.0, 1.0), (9.0, 0.75), (0.0, 0.0), (0.0, 0.0)];
        assert_eq!(
            course.moments,
            wanted.map(|(count, core)| (count, core * MOMENT_NS))
        );
        // Without a core there is no rate; by the clock there is none, too.
        let [(core, _), (clock, _)] = [true, false].map(|core| course.least_and_mean(1, 1, core));
        assert!((core - 70.0).abs() < 1.0 && clock == 0.0, "{core} {clock}");
    }
}
