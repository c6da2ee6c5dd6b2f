//! `everdram inspect`: a pool's properties and its use of space. It does not change a byte of the pool.
//!
//! Only [`look`] asks the library; the other functions present its result.

use crate::terminal::{Tone, paint, row};
use crate::{Outcome, units};
use everdram::stats::LogFile;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Show a pool's superblock, geometry, blocks and space.
#[derive(clap::Args)]
#[command(
    long_about = "Shows what a pool says about itself (superblock, engine, geometry), how its blocks are used, and a \
                  map of where the space went. The pool must not be open elsewhere.\n\n\
                  In the map each character is a run of blocks: blank = free, then `.:-=+*#` by the share of it that \
                  is live, `@` = all. Of a journal (`everdram::crl`) the blocks are its logs. Many files of a log \
                  below the pool (engine tiered) have a map of their own, each a character by its live share.\n\n\
                  Example: everdram inspect ./data",
    after_help = "Exit codes: 0 shown; 1 the pool could not be read; 2 usage."
)]
pub(crate) struct Arguments {
    /// The pool: a directory, or a devdax device.
    pool: PathBuf,
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
}

/// Files of a log that are listed; more of them are a map.
const LISTED: usize = 16;

/// A pool as `inspect` shows it.
struct Inspection {
    /// Fields of the superblock and the geometry: name and value.
    fields: Vec<(String, String)>,
    extents: Vec<Extent>,
    kinds: Vec<Kind>,
    /// Share of live bytes of each block in percent; `None` = free.
    map: Vec<Option<u8>>,
    /// Files of the log below the pool.
    log: Vec<LogFile>,
}

/// A range of the image and what it belongs to.
struct Extent {
    owner: u32,
    at: u64,
    bytes: u64,
}

/// The blocks of one kind.
struct Kind {
    name: &'static str,
    blocks: u64,
    filled_bytes: u64,
    garbage_bytes: u64,
}

fn look(path: &Path) -> anyhow::Result<Inspection> {
    let found = everdram::inspect::inspect(path)?;
    let stats = &found.stats;
    let mut fields = found.fields;
    for (name, bytes) in [
        ("image", stats.pool_bytes),
        ("blocks in use", stats.used_bytes),
        ("live records", stats.live_bytes),
    ] {
        fields.push((name.to_owned(), units::bytes(bytes)));
    }
    fields.push(("keys".to_owned(), units::count(stats.keys)));
    let extents = found
        .extents
        .into_iter()
        .map(|(owner, at, bytes)| Extent { owner, at, bytes })
        .collect();
    let kinds = found.kinds.iter().map(|kind| Kind {
        name: kind.kind,
        blocks: kind.blocks,
        filled_bytes: kind.filled_bytes,
        garbage_bytes: kind.garbage_bytes,
    });
    let fill = |share: u8| (share != 255).then_some(share);
    let map = found.space_map.into_iter().map(fill).collect();
    Ok(Inspection {
        fields,
        extents,
        kinds: kinds.collect(),
        map,
        log: found.log_files,
    })
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let inspection = look(&arguments.pool)?;
    if arguments.json {
        println!("{}", to_json(&inspection));
    } else {
        print(&inspection);
    }
    Ok(Outcome::Sound)
}

fn to_json(inspection: &Inspection) -> serde_json::Value {
    let fields: serde_json::Map<_, _> = inspection
        .fields
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let extents = inspection.extents.iter();
    let extents: Vec<_> = extents
        .map(|e| json!({ "owner": e.owner, "at": e.at, "bytes": e.bytes }))
        .collect();
    let kind = |kind: &Kind| {
        json!({
            "kind": kind.name, "blocks": kind.blocks,
            "filled_bytes": kind.filled_bytes, "garbage_bytes": kind.garbage_bytes,
        })
    };
    let kinds: Vec<_> = inspection.kinds.iter().map(kind).collect();
    let file = |file: &LogFile| {
        json!({
            "path": file.path.display().to_string(), "bytes": file.bytes, "stale_bytes": file.stale_bytes,
        })
    };
    let log: Vec<_> = inspection.log.iter().map(file).collect();
    json!({
        "fields": fields, "extents": extents, "blocks": kinds, "map": inspection.map, "log": log,
    })
}

fn print(inspection: &Inspection) {
    for (name, value) in &inspection.fields {
        row(name, value);
    }
    println!("{}", paint(Tone::Strong, "extents"));
    for Extent { owner, at, bytes } in &inspection.extents {
        let size = units::bytes(*bytes);
        row(
            &format!("owner {owner}"),
            format_args!("{size} at byte {at}"),
        );
    }
    if !inspection.kinds.is_empty() {
        println!("{}", paint(Tone::Strong, "blocks"));
    }
    for kind in &inspection.kinds {
        let (filled, garbage) = (
            units::bytes(kind.filled_bytes),
            units::bytes(kind.garbage_bytes),
        );
        let blocks = units::count(kind.blocks);
        row(
            kind.name,
            format_args!("{blocks} blocks, {filled} filled, {garbage} not live"),
        );
    }
    if !inspection.map.is_empty() {
        println!("{}", paint(Tone::Strong, "space"));
        print_map(&inspection.map);
    }
    print_log(&inspection.log);
}

fn print_log(log: &[LogFile]) {
    if log.is_empty() {
        return;
    }
    println!("{}", paint(Tone::Strong, "log"));
    let sum = |of: fn(&LogFile) -> u64| units::bytes(log.iter().map(of).sum());
    let (bytes, stale) = (sum(|file| file.bytes), sum(|file| file.stale_bytes));
    let files = units::count(log.len() as u64);
    row(
        "files",
        format_args!("{files} with {bytes}, {stale} of it not live"),
    );
    if log.len() <= LISTED {
        for file in log {
            let name = file.path.file_name().unwrap_or_default();
            let (bytes, stale) = (units::bytes(file.bytes), units::bytes(file.stale_bytes));
            row(
                &name.to_string_lossy(),
                format_args!("{bytes}, {stale} not live"),
            );
        }
        return;
    }
    let live = |file: &LogFile| {
        let live = file.bytes - file.stale_bytes;
        Some((live * 100).checked_div(file.bytes).unwrap_or(0) as u8)
    };
    print_map(&log.iter().map(live).collect::<Vec<_>>());
}

fn print_map(map: &[Option<u8>]) {
    for line in map_lines(map) {
        println!("  |{line}|");
    }
}

/// At most 16 lines of 64 characters. Each character stands for the same number of blocks.
fn map_lines(map: &[Option<u8>]) -> Vec<String> {
    const SHADES: &[u8] = b".:-=+*#@";
    const COLUMNS: usize = 64;
    let blocks_per_cell = map.len().div_ceil(16 * COLUMNS).max(1);
    let cell = |blocks: &[Option<u8>]| {
        if blocks.iter().all(Option::is_none) {
            return ' ';
        }
        let live: usize = blocks
            .iter()
            .flatten()
            .map(|&share| usize::from(share))
            .sum();
        let shade = live / blocks.len().max(1) * (SHADES.len() - 1) / 100;
        char::from(SHADES.get(shade).copied().unwrap_or(b'@'))
    };
    let cells: Vec<char> = map.chunks(blocks_per_cell).map(cell).collect();
    cells
        .chunks(COLUMNS)
        .map(|line| line.iter().collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::map_lines;

    #[test]
    fn the_map_shades_by_share() {
        assert_eq!(
            map_lines(&[None, Some(0), Some(50), Some(99), Some(100)]),
            [" .=#@"]
        );
        assert_eq!(map_lines(&[Some(100); 1_000_000]).len(), 16);
        assert_eq!(map_lines(&[]), Vec::<String>::new());
    }
}
