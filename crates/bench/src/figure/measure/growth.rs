//! Persistent memory in use while a store is filled with new keys.

use crate::figure::progress::Progress;
use crate::figure::settings::PERCENTS;
use crate::figure::store::{Data, For, Opening};
use crate::pass::load_range;
use crate::row::{Metric, Row};
use crate::subject::Error;
use anyhow::Context;
use std::time::{Duration, Instant};

/// Nothing leaves a pool any more if nothing has for so long.
const AT_REST: Duration = Duration::from_millis(200);

/// A row of each of these, of a store that is empty at first.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let (curve, records) = (progress.curve, data.settings.records);
    let site = curve.site()?;
    let subject = data.open(&Opening::of(&curve, &site, For::Room), site.dir())?;
    let (mut rows, mut from) = (Vec::new(), 0);
    for percent in PERCENTS {
        let mut row = progress.row(&format!("{percent} %"), 100.0, 1);
        let to = records * percent / 100;
        load_range(&*subject, &data.corpus, from, to)?;
        from = to;
        let store = subject.store().context("no store of everdram")?;
        let mut since = Instant::now();
        let mut left = None;
        while since.elapsed() < AT_REST {
            let now = subject.own("evicted_records");
            if now != left {
                (left, since) = (now, Instant::now());
            }
            std::thread::sleep(AT_REST / 10);
        }
        row.conditions.insert("entries".into(), to.into());
        row.push(Metric::PmUsedBytes, store.stats().used_bytes as f64);
        rows.push(row);
    }
    Ok(rows)
}
