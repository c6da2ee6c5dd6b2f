//! How soon a store is back, with the paper's delays of memory, against the least that a restart does.

use super::bed::{Ground, corpus};
use super::{Crash, Group, Host, Outcome, Settings, alone, ratio};
use crate::everdram::Everdram;
use crate::fixture::Place;
use crate::limits::data::{self, BLOCK_BYTES, DELAYS};
use crate::pass;
use crate::recovery::{Recovery, reopen};
use crate::subject::{Error, Opener};
use crate::timing::Spread;
use anyhow::Context;
use everdram::options::DstoreOptions;

/// A restart takes at most so many times what its bare loop takes.
const TIMES: f64 = 3.0;
/// Objects that the bars are set for.
const OBJECTS: u64 = 2_000_000;
/// Bytes of a log, at least.
const LOG_BYTES: u64 = 64 << 10;

pub(super) fn measure(
    settings: &Settings,
    host: &mut dyn Host,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let records = Ground::Modelled.records(settings, BLOCK_BYTES, 1)?;
    let crash = crash(records);
    let (mut clean, mut killed, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.repeat {
        host.begin(Group::Recovery, "after a clean stop");
        let (recovery, metadata) = stopped(settings, records)?;
        clean.push(recovery.wall.as_secs_f64());
        host.begin(Group::Recovery, "after a kill");
        killed.push(host.crash(&crash)?.wall.as_secs_f64());
        host.begin(Group::Recovery, "arena");
        let slowness = data::delays()?;
        let sample = data::arena(&settings.dir, metadata, records, &slowness)?;
        bare.push(sample.wall.as_secs_f64());
    }
    let [clean, killed, bare] = [clean, killed, bare].map(|of| Spread::of(of).median);
    for (when, seconds, most) in [
        ("a clean stop", clean, 0.5),
        ("a kill, logs full", killed, 0.8),
    ] {
        let says = format!("restart after {when}, of {records} (set for 2M)");
        let bar = alone((Group::Recovery, &says), (seconds, "s"), (0.0, Some(most)));
        outcome.bars.push(bar);
        let says = format!("restart after {when}");
        let (one, other) = ((seconds * 1e3, "ms"), (bare * 1e3, "arena"));
        let bar = ratio((Group::Recovery, &says), one, other, (0.0, Some(TIMES)));
        outcome.bars.push(bar);
    }
    Ok(())
}

/// A store of so many objects with as much in its logs as full ones of the usual size have. Fewer objects
/// have less in theirs.
fn crash(records: u64) -> Crash {
    let usual = DstoreOptions::default();
    let logs = u64::from(usual.logs);
    let full = records * usual.log_bytes / OBJECTS;
    let log_bytes = full.clamp(LOG_BYTES, usual.log_bytes);
    Crash {
        records,
        delay: DELAYS.0,
        // Less than half of the logs, so that no checkpoint begins.
        log_bytes: (log_bytes * 5 / 2).next_multiple_of(4096),
        logged_bytes: logs * log_bytes * 9 / 10,
    }
}

/// A store that was closed and is opened again, and bytes of its metadata.
fn stopped(settings: &Settings, records: u64) -> Result<(Recovery, u64), Error> {
    let place = Place::within(&settings.dir)?;
    let corpus = corpus(settings, BLOCK_BYTES);
    let opener = Everdram {
        delay: Some(DELAYS.0.into()),
        // To make the pool's pages present takes longer than a restart.
        prefault: false,
        ..Ground::Memory.opener()
    };
    let subject = opener.open(place.path(), records, corpus.record_bytes())?;
    pass::load(&*subject, &corpus, records, 1)?;
    let store = subject.store().context("no store of everdram")?;
    let metadata = store.stats().own("metadata_dram_bytes").unwrap_or(0);
    drop(subject);
    let recovery = reopen(&opener, &corpus, place.path(), records)?;
    Ok((recovery, metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_is_less_than_half_of_the_logs() {
        for (records, logged_mib) in [(OBJECTS, 57), (OBJECTS / 2, 28), (100, 0)] {
            let crash = crash(records);
            let logs = u64::from(DstoreOptions::default().logs) * crash.log_bytes;
            assert_eq!(crash.logged_bytes >> 20, logged_mib);
            assert!(crash.logged_bytes * 9 / 4 < logs, "{crash:?}");
        }
    }
}
