//! Verifies everything: the shadow's pages, the logs, slots, keys and their order, and every block.

use super::Dstore;
use super::layout::are_operations;
use crate::crl::{Cursor, Next};
use crate::engine::Engine;
use crate::error::{Error, corrupt};
use crate::stats::{CheckReport, Finding};
use everdram_pm::lock::lock;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the keys are counted until slots and order agree.
const TRIES: usize = 20;

/// Walks all of it. Exact while no session writes.
pub(super) fn check(engine: &Dstore) -> Result<CheckReport, Error> {
    let mut report = CheckReport {
        live: engine.len(),
        ..CheckReport::default()
    };
    let pages = engine
        .dipper
        .shadow(|shadow| shadow.copy_out(1, &|_, _, _| Ok(())));
    if let Err(error) = pages {
        report.findings.push(finding(0, error));
    }
    check_logs(engine, &mut report);
    let (mut used, mut keys) = (HashMap::new(), HashMap::new());
    let (mut cell, mut key) = (Vec::new(), Vec::new());
    for number in 1..engine.memory.slots() {
        let (slot, _) = engine.memory.slot(number);
        if slot.lsn == 0 || slot.is_dead || slot.lsn <= engine.floor() {
            continue;
        }
        report.records += 1;
        key.clear();
        engine.memory.key(&slot, &mut key);
        let mut note = |what: String| {
            report.findings.push(Finding {
                key: Some(key.clone()),
                missing: 1,
                ..Finding::new(0, what)
            });
        };
        if engine.hash(&key) != slot.hash {
            note(format!(
                "slot {number}: the key does not have the hash of its slot"
            ));
        }
        if let Some(other) = keys.insert(key.clone(), number) {
            note(format!("slots {other} and {number} have the same key"));
        }
        engine.cell_of(&slot, &mut cell);
        let mut twice = None;
        let read = engine.values.verify(&slot, &cell, &mut |block| {
            report.blocks += 1;
            let Some(other) = used.insert(block.number, number) else {
                return Ok(());
            };
            let what = format!("slots {other} and {number} have block {}", block.number);
            twice = Some(Finding::new(0, what));
            // A map that refers to itself has no end.
            Err(corrupt(0, ""))
        });
        if let Some(twice) = twice {
            report.findings.push(twice);
        } else if let Err(error) = read {
            let file = match &error {
                Error::Corrupt { path, .. } if !path.as_os_str().is_empty() => Some(path.clone()),
                _ => None,
            };
            report.findings.push(Finding {
                file,
                key: Some(key.clone()),
                missing: 1,
                ..finding(0, error)
            });
            continue;
        }
        report.bytes += slot.length;
    }
    check_order(engine, &mut report);
    Ok(report)
}

fn check_logs(engine: &Dstore, report: &mut CheckReport) {
    let logs = &engine.dipper.logs;
    for number in 0..logs.count() {
        let log = logs.log(number);
        let mut cursor = Cursor::new(number);
        let limit = log.published.load(Ordering::Acquire);
        let mut position = log.head.load(Ordering::Acquire);
        while position < limit {
            let offset = logs.place(number, position);
            let what = match cursor.next(logs, position, limit) {
                Next::Entry(entry, next) => {
                    report.records += u64::from(entry.operations);
                    report.bytes += next - position;
                    position = next;
                    let count = Some(entry.operations);
                    let sound = entry.operations == 0
                        || are_operations(&engine.geometry, entry.bytes, count);
                    match sound {
                        true => continue,
                        false => "a log record has impossible content",
                    }
                }
                Next::Nothing => {
                    position = limit;
                    "a log record does not verify"
                }
            };
            report.findings.push(Finding::new(offset, what));
        }
    }
}

/// The order of keys has each key once, and in order.
fn check_order(engine: &Dstore, report: &mut CheckReport) {
    let is_live = |number: &u64| {
        let (slot, _) = engine.memory.slot(*number);
        slot.lsn != 0 && !slot.is_dead && slot.lsn > engine.floor()
    };
    let (mut live, mut order, mut tries) = (0, lock(&engine.order), 0);
    // The sweep of expired keys may be between the slot of a key and its place in the order.
    while tries < TRIES {
        live = (1..engine.memory.slots()).filter(is_live).count();
        if live == order.slots().count() {
            break;
        }
        drop(order);
        std::thread::sleep(Duration::from_millis(1));
        order = lock(&engine.order);
        tries += 1;
    }
    let (mut before, mut count) = (Vec::new(), 0);
    for number in order.slots() {
        let mut key = Vec::new();
        engine.memory.key_of(number, &mut key);
        count += 1;
        if before >= key {
            let what = format!("slot {number} is out of order");
            report.findings.push(Finding::new(0, what));
        }
        before = key;
    }
    if count != live {
        let what = format!("{live} slots live, and {count} keys are in order");
        report.findings.push(Finding::new(0, what));
    }
}

fn finding(offset: u64, error: Error) -> Finding {
    match error {
        Error::Corrupt { offset, what, .. } => Finding::new(offset, what),
        other => Finding::new(offset, other.to_string()),
    }
}
