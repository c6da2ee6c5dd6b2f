//! The work of `everdram import --aof`: a new pool from the files of a stock Redis.

use crate::terminal::{Progress, row};
use crate::transfer::redis::load::{Counts, Loader};
use crate::transfer::redis::manifest;
use crate::{Outcome, pool, units};
use anyhow::{Context, ensure};
use everdram::{Options, Store};
use everdram_resp::replay::{BEFORE_ALL_EXPIRIES, Replay};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Keys that are looked at, or removed, at once.
const WINDOW: usize = 1024;

/// Loads the files at `path` into the pool at `place`, which must hold nothing.
pub(crate) fn import(
    place: &Path,
    path: &Path,
    mut options: Options,
    strings_only: bool,
    json: bool,
) -> anyhow::Result<Outcome> {
    let files = manifest::files(path).with_context(|| path.display().to_string())?;
    let mut bytes = 0;
    for file in &files {
        let metadata =
            std::fs::metadata(file).with_context(|| format!("file {}", file.display()))?;
        bytes += metadata.len();
    }
    // A later command may take the expiry of a key away: nothing expires before the end.
    options.clock = Some(Arc::new(|| BEFORE_ALL_EXPIRIES));
    let store =
        pool::open(place, options, json).with_context(|| format!("pool {}", place.display()))?;
    ensure!(
        store.is_empty(),
        "pool {} holds keys. The commands of a Redis count on its own keys: import into a new pool",
        place.display()
    );
    let begun = Instant::now();
    let progress = Progress::start("import", bytes, json);
    let mut loader = Loader::new(Replay::new(&store)?, strings_only, progress);
    let loaded = loader.load(&files);
    let Loader { counts, .. } = loader;
    let expired = match loaded {
        Ok(()) => drop_expired(&store)?,
        Err(_) => 0,
    };
    let keys = store.len();
    store.close()?;
    loaded.with_context(|| format!("after {} changes", counts.strings + counts.commands))?;
    match json {
        true => print_json(&counts, keys, expired, begun),
        false => print(&counts, keys, expired, begun),
    }
    Ok(Outcome::Sound)
}

/// Removes the keys whose expiry has passed; returns their number.
fn drop_expired(store: &Store) -> anyhow::Result<u64> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let mut session = store.session()?;
    let (mut cursor, mut expired, mut count) = (0, Vec::new(), 0);
    loop {
        cursor = session.scan(cursor, WINDOW, &mut |key, _, expires_at_ms| {
            if expires_at_ms != 0 && expires_at_ms <= now_ms {
                expired.push(key.to_vec());
            }
        })?;
        for key in expired.drain(..) {
            count += u64::from(session.submit_delete(&key)?);
        }
        let ticket = session.commit()?;
        session.wait(ticket)?;
        if cursor == 0 {
            return Ok(count);
        }
    }
}

fn print(counts: &Counts, keys: u64, expired: u64, begun: Instant) {
    row("keys", units::count(keys));
    row(
        "loaded",
        format_args!(
            "{} strings of RDB files, {} commands",
            units::count(counts.strings),
            units::count(counts.commands)
        ),
    );
    if expired > 0 {
        row("expired meanwhile", units::count(expired));
    }
    for (what, count) in &counts.skipped {
        row(
            "left out",
            format_args!("{} of {what}", units::count(*count)),
        );
    }
    if let Some(dropped) = &counts.dropped {
        row(
            "dropped",
            format_args!(
                "{} from byte {} of {} on: half a request or transaction, which Redis drops, too",
                units::bytes(dropped.bytes),
                dropped.at,
                dropped.file.display()
            ),
        );
    }
    let changes = (counts.strings + counts.commands) as f64;
    let rate = (changes / begun.elapsed().as_secs_f64().max(1e-9)) as u64;
    row(
        "read",
        format_args!(
            "{} in {}, {} changes a second",
            units::bytes(counts.bytes),
            units::time(begun.elapsed()),
            units::count(rate)
        ),
    );
}

fn print_json(counts: &Counts, keys: u64, expired: u64, begun: Instant) {
    let dropped = counts.dropped.as_ref().map(
        |dropped| json!({ "file": dropped.file, "offset": dropped.at, "bytes": dropped.bytes }),
    );
    let object = json!({
        "keys": keys, "strings": counts.strings, "commands": counts.commands, "expired": expired,
        "skipped": counts.skipped, "dropped": dropped, "bytes_read": counts.bytes,
        "seconds": begun.elapsed().as_secs_f64(),
    });
    println!("{object}");
}
