//! Verifies everything: the back's objects and their places, and the records of the logs.

use super::Bullet;
use super::layout::operations;
use super::recovery::salvage::damaged_object;
use crate::crl::{Cursor, Next};
use crate::engine::Engine;
use crate::error::Error;
use crate::stats::{CheckReport, Finding};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Walks the back table and the logs. Exact while no session writes.
pub(super) fn check(engine: &Bullet) -> Result<CheckReport, Error> {
    if !engine.read_only {
        // In the middle of a pass the back is not whole. Damage that ends a pass is found below.
        let _ = engine.glean_all();
    }
    let _at_rest = engine.gleaning.working.write();
    let mut report = CheckReport {
        live: engine.len(),
        ..CheckReport::default()
    };
    let back = &engine.back;
    let mut cursor = 0;
    let mut places: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut scratch, mut value) = (Vec::new(), Vec::new());
    loop {
        let mut objects = Vec::new();
        let next = back.table.next(cursor);
        if let Err(error) = back.visit(cursor, |at| objects.push(at)) {
            report.findings.push(finding(0, error));
        }
        cursor = next;
        report.blocks += 1;
        for at in objects {
            report.records += 1;
            value.clear();
            let found = back.value_at(at, &mut scratch, &mut value);
            let head = match found {
                Ok(head) => head,
                Err(error) => {
                    report.findings.push(damaged_object(engine, at, error)?);
                    continue;
                }
            };
            report.bytes += head.bytes();
            if !back.heap.is_published(at, head.bytes()) {
                let what = "the table has an object that the heap says is free";
                report.findings.push(Finding::new(at, what));
            }
            let before = places.range(..at + head.bytes()).next_back();
            if before.is_some_and(|(other, bytes)| other + bytes > at) {
                let what = "two objects of the table overlap";
                report.findings.push(Finding::new(at, what));
            }
            places.insert(at, head.bytes());
        }
        if cursor == 0 {
            break;
        }
    }
    for number in 0..engine.logs.count() {
        let log = engine.logs.log(number);
        let mut cursor = Cursor::new(number);
        let limit = log.published.load(Ordering::Acquire);
        let mut position = log.head.load(Ordering::Acquire);
        while position < limit {
            match cursor.next(&engine.logs, position, limit) {
                Next::Entry(entry, next) => {
                    report.records += operations(entry.bytes, entry.operations).count() as u64;
                    report.bytes += next - position;
                    position = next;
                }
                Next::Nothing => {
                    let offset = engine.logs.place(number, position);
                    let what = "a log record does not verify";
                    report.findings.push(Finding::new(offset, what));
                    break;
                }
            }
        }
    }
    Ok(report)
}

fn finding(offset: u64, error: Error) -> Finding {
    match error {
        Error::Corrupt { offset, what, .. } => Finding::new(offset, what),
        other => Finding::new(offset, other.to_string()),
    }
}
