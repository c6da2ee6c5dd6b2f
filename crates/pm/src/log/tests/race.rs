//! Many lanes at once, checkpoints in between, and a power loss: each lane's stores survive as a prefix.
//!
//! A lane stores step after step, one fence each, to lines on many pages. Each step depends on a shared
//! counter that the lane raised and fenced before. So after a crash the lane's lines must be exactly those of
//! some step, at least the acknowledged one, and the counter must be at least what they say.

use super::{Bench, DATA, Open};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const LANES: u64 = 4;
/// Lines of a lane, each on a page of its own.
const LINES: u64 = 24;
const PAGE: u64 = 4096;
const COUNTER: u64 = DATA;

fn line_at(lane: u64, step: u64) -> u64 {
    DATA + PAGE + (step % LINES * LANES + lane) * PAGE
}

/// Runs one lane until the log fails; returns its last acknowledged step.
fn run_lane(open: &Open, lane: u64, from: u64) -> u64 {
    let mut group = open.log.group();
    let mut acknowledged = from;
    for step in from + 1.. {
        let raised = loop {
            let seen = open.region.load_word(COUNTER);
            if open.region.exchange_word(COUNTER, seen, seen + 1).is_ok() {
                break seen + 1;
            }
        };
        group.push_shared(COUNTER, 8);
        group.close();
        let mut line = [0; 64];
        line[..8].copy_from_slice(&step.to_le_bytes());
        line[8..16].copy_from_slice(&raised.to_le_bytes());
        open.region.store(line_at(lane, step), &line);
        group.push_lines(line_at(lane, step), &line);
        let lsn = group.close();
        if open.log.healthy().is_err() {
            break;
        }
        if step % 7 == lane {
            if open.log.wait(lsn).is_err() {
                break;
            }
            acknowledged = step;
        }
    }
    acknowledged
}

/// The step that a lane's lines show, if they agree.
fn check_lane(open: &Open, lane: u64, acknowledged: u64) -> Result<u64, String> {
    let step_of = |index: u64| open.region.load_word(line_at(lane, index));
    let last = (0..LINES).map(step_of).max().unwrap();
    if last < acknowledged {
        return Err(format!(
            "lane {lane} shows step {last}, acknowledged was {acknowledged}"
        ));
    }
    for step in last.saturating_sub(LINES - 1).max(1)..=last {
        if step_of(step) != step {
            return Err(format!(
                "lane {lane} shows step {last} but {} in place of {step}",
                step_of(step)
            ));
        }
        let raised = open.region.load_word(line_at(lane, step) + 8);
        if raised > open.region.load_word(COUNTER) {
            return Err(format!(
                "lane {lane} saw the counter at {raised}, which is lost"
            ));
        }
    }
    Ok(last)
}

/// A series of power losses; returns the first fault.
fn campaign(seed: u64, rounds: u64, write_ahead: bool) -> Result<(), String> {
    let mut bench = Bench::new(DATA + PAGE + LINES * LANES * PAGE);
    bench.write_ahead = write_ahead;
    let acknowledged: [AtomicU64; LANES as usize] = Default::default();
    for round in 0..rounds {
        let open = bench.open().map_err(|error| error.to_string())?;
        let mut steps = Vec::new();
        for lane in 0..LANES {
            let told = acknowledged[lane as usize].load(Ordering::Relaxed);
            let step = check_lane(&open, lane, told);
            steps.push(step.map_err(|error| format!("seed {seed}, round {round}: {error}"))?);
        }
        let calls = seed.wrapping_mul(31).wrapping_add(round * 17) % 150;
        bench.faults.off_after(calls);
        let off = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..)
                .zip(&steps)
                .map(|(lane, &step)| {
                    (
                        lane,
                        scope.spawn({
                            let open = &open;
                            move || run_lane(open, lane, step)
                        }),
                    )
                })
                .collect();
            scope.spawn(|| {
                while !off.load(Ordering::Relaxed) && open.log.checkpoint().is_ok() {
                    std::hint::spin_loop();
                }
            });
            for (lane, handle) in lanes {
                acknowledged[lane as usize].store(handle.join().unwrap(), Ordering::Relaxed);
            }
            off.store(true, Ordering::Relaxed);
        });
        drop(open);
        bench.faults.crash(seed * 1000 + round).unwrap();
    }
    Ok(())
}

#[test]
fn each_lane_survives_as_a_prefix() {
    for seed in 0..8 {
        campaign(seed, 25, true).unwrap();
    }
}

#[test]
fn the_write_ahead_rule_is_needed() {
    let broken = (0..20).find_map(|seed| campaign(seed, 25, false).err());
    assert!(
        broken.is_some(),
        "leaving out the write-ahead rule went unnoticed"
    );
}
