//! What a pool reports: medium, cost of durability, meaning of an acknowledgement.

use super::probe::Probe;
use super::superblock::SPARE_AT;
use crate::medium::{Durability, Medium, Report};
use crate::memory::cpu;
use crate::memory::cpu::{FENCE, FlushKind, LINE};
use crate::memory::delay::Delay;
use crate::memory::region::Region;
use std::time::{Duration, Instant};

/// The report of a pool.
pub(crate) fn of(
    medium: Medium,
    kind: FlushKind,
    durability: Durability,
    probe: &Probe,
    latency: Duration,
    delay: Option<&Delay>,
) -> Report {
    Report {
        uuid: [0; 16],
        medium,
        why: why(medium, probe),
        persist: match (medium, kind) {
            (Medium::File, _) => "fdatasync of the redo log".into(),
            (Medium::Pmem, FlushKind::Nothing) => format!("{FENCE} alone: the caches persist"),
            (_, kind) => format!("{kind} + {FENCE}"),
        },
        durability: in_effect(medium, durability),
        latency,
        acknowledgement: acknowledgement(medium, durability, probe.volatile).into(),
        delay: delay.map(|delay| delay.preset().to_string()),
        data: None,
        data_delay: None,
    }
}

/// The report of a pool that is open read-only.
pub(crate) fn of_view(medium: Medium, durability: Durability, delay: Option<&Delay>) -> Report {
    Report {
        uuid: [0; 16],
        medium,
        why: "recorded in the pool, which is open read-only, in private memory".into(),
        persist: "nothing: the pool is open read-only".into(),
        durability: in_effect(medium, durability),
        latency: Duration::ZERO,
        acknowledgement: "The pool is open read-only: nothing that is written here reaches it."
            .into(),
        delay: delay.map(|delay| delay.preset().to_string()),
        data: None,
        data_delay: None,
    }
}

fn in_effect(medium: Medium, durability: Durability) -> Durability {
    match medium {
        Medium::File => durability,
        Medium::Pmem | Medium::Emulated => Durability::Always,
    }
}

/// Median time of one small durable write, on spare bytes of the image.
pub(crate) fn measure(region: &Region, kind: FlushKind, delay: Option<&Delay>) -> Duration {
    let mut times: Vec<_> = (0..64)
        .map(|count| {
            let started = Instant::now();
            region.store_word(SPARE_AT, count);
            region.flush(kind, SPARE_AT..SPARE_AT + LINE);
            if let Some(delay) = delay {
                delay.flush(1);
            }
            cpu::fence();
            if let Some(delay) = delay {
                delay.fence();
            }
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn why(medium: Medium, probe: &Probe) -> String {
    match medium {
        Medium::Emulated => {
            "asked for: the instructions of persistent memory, on ordinary memory".into()
        }
        Medium::File if probe.medium == Medium::Pmem => {
            format!("the pool uses ordinary files, although {}", probe.why)
        }
        _ => probe.why.clone(),
    }
}

/// What an acknowledgement promises.
fn acknowledgement(medium: Medium, durability: Durability, volatile: bool) -> &'static str {
    match (medium, durability) {
        (Medium::Pmem, _) => {
            "An acknowledged write is in persistent memory and survives a power loss."
        }
        (Medium::Emulated, _) => {
            "An acknowledged write survives a killed process, nothing more: no reboot, no power loss."
        }
        (Medium::File, Durability::Always) if volatile => {
            "An acknowledged write was synced to a file system in memory: it survives a killed process, no \
             reboot and no power loss."
        }
        (Medium::File, Durability::Always) => {
            "An acknowledged write is covered by an fdatasync and survives a power loss, if the disk keeps \
             what it confirms."
        }
        (Medium::File, Durability::EverySec) => {
            "An acknowledged write is synced within a second; a crash takes up to that second."
        }
        (Medium::File, Durability::None) => {
            "An acknowledged write is synced some time later; a crash takes what was not."
        }
    }
}
