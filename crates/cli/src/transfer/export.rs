//! `everdram export`: a pool or a server into a file.

use crate::terminal::Progress;
use crate::transfer::end::{End, EndArguments};
use crate::transfer::{Format, mass, tsv};
use crate::{Outcome, units};
use anyhow::Context;
use serde_json::json;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Write all keys of a pool or a server to a file.
#[derive(clap::Args)]
#[command(
    long_about = "Writes every key with its value and expiry to a file (default `-`, standard output), in no particular \
                  order, as TSV or as Redis commands. `everdram import` brings it back byte for byte, and `redis-cli \
                  --pipe` takes the second form.\n\n\
                  Of a pool it is the state at that moment, since nothing else can have it open. Of a running server, \
                  keys that change meanwhile are there as they were when they were met. Every value written was \
                  durable before it was read.\n\n\
                  Examples: everdram export ./data keys.tsv\n\
                  \u{20}         everdram export --server 127.0.0.1:6379 --format resp | redis-cli -p 7000 --pipe",
    after_help = "Exit codes: 0 complete; 1 failed, the file is then incomplete; 2 usage."
)]
pub(crate) struct Arguments {
    /// POOL and optionally FILE, or just FILE with --server; FILE may be `-`
    #[arg(num_args = 0..=2, value_names = ["POOL", "FILE"])]
    places: Vec<PathBuf>,
    #[command(flatten)]
    end: EndArguments,
    /// Format of the file; without it, the name decides: `.resp` or TSV
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Counts at the end as one JSON object on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Counts {
    keys: u64,
    bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let (pool, file) = arguments.end.split(&arguments.places)?;
    let file = file.filter(|path| *path != Path::new("-"));
    let by_name = match file.and_then(Path::extension) {
        Some(end) if end == "resp" => Format::Resp,
        _ => Format::Tsv,
    };
    let mut end = arguments.end.open(pool, None, arguments.json)?;
    let output: Box<dyn Write> = match file {
        Some(path) => {
            let created = std::fs::File::create(path);
            Box::new(created.with_context(|| format!("file {}", path.display()))?)
        }
        None => Box::new(crate::output::Standard::lock()),
    };
    let mut output = BufWriter::with_capacity(1 << 20, output);
    let counts = write_all(
        &mut end,
        arguments.format.unwrap_or(by_name),
        &mut output,
        arguments.json,
    )?;
    output.flush()?;
    end.close()?;
    if arguments.json {
        eprintln!("{}", json!({ "keys": counts.keys, "bytes": counts.bytes }));
    } else {
        eprintln!(
            "{} keys, {}",
            units::count(counts.keys),
            units::bytes(counts.bytes)
        );
    }
    Ok(Outcome::Sound)
}

fn write_all(
    end: &mut End,
    format: Format,
    output: &mut impl Write,
    quiet: bool,
) -> anyhow::Result<Counts> {
    let progress = Progress::start("export", end.len()?, quiet);
    let write = match format {
        Format::Tsv => tsv::write,
        Format::Resp => mass::write,
    };
    let mut counts = Counts::default();
    let (mut keys, mut text, mut met) = (Vec::new(), Vec::new(), Met::default());
    let mut cursor = 0;
    loop {
        cursor = end.scan(cursor, &mut keys)?;
        keys.retain(|key| met.is_first(key));
        end.read(&keys, |key, value, expires_at_ms| {
            text.clear();
            write(&mut text, key, value, expires_at_ms);
            counts.keys += 1;
            counts.bytes += text.len() as u64;
            Ok(output.write_all(&text)?)
        })?;
        progress.at(counts.keys, &format!("{} keys", units::count(counts.keys)));
        if cursor == 0 {
            progress.finish();
            return Ok(counts);
        }
    }
}

/// A scan may meet a key twice; the file has it once. Of each key only two keyed 64-bit hashes are kept.
#[derive(Default)]
struct Met {
    hashers: (RandomState, RandomState),
    hashes: HashSet<u128>,
}

impl Met {
    fn is_first(&mut self, key: &[u8]) -> bool {
        let (high, low) = (self.hashers.0.hash_one(key), self.hashers.1.hash_one(key));
        self.hashes.insert(u128::from(high) << 64 | u128::from(low))
    }
}
