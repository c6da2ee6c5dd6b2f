//! `everdram export`: writes the keys of a pool or a server to a file.

use crate::settings::usage;
use crate::terminal::Progress;
use crate::transfer::end::{End, EndArguments, Purpose};
use crate::transfer::redis::{self, Directory};
use crate::transfer::{Format, mass, tsv};
use crate::{Outcome, findings, units};
use anyhow::Context;
use everdram::stats::Finding;
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
                  With --salvage, a damaged pool is exported as far as it verifies: what `everdram check` lists is left out, and \
                  listed on standard error. Nothing of the pool changes. Use it when a pool does not open any more, or some keys \
                  are errors; then import the file into a new pool.\n\n\
                  With --aof, the keys go into a new directory of append-only files, from which a stock redis-server \
                  (7.0 or later) starts. The last line on standard output is the command that starts it. The \
                  manifest appears when everything is on the disk: a directory without one is not complete.\n\n\
                  Examples: everdram export ./data keys.tsv\n\
                  \u{20}         everdram export ./data --aof ./appendonlydir\n\
                  \u{20}         everdram export --salvage ./damaged saved.tsv && everdram import ./new saved.tsv\n\
                  \u{20}         everdram export --server 127.0.0.1:6379 --format resp | redis-cli -p 7000 --pipe",
    after_help = "Exit codes: 0 complete; 1 failed, the file is then incomplete; 2 usage; 3 with --salvage: everything that can be read is \
                  in the file, and something is missing, or may be older than it was."
)]
pub(crate) struct Arguments {
    /// POOL and optionally FILE, or just FILE with --server; FILE may be `-`. With --aof there is no FILE
    #[arg(num_args = 0..=2, value_names = ["POOL", "FILE"])]
    places: Vec<PathBuf>,
    #[command(flatten)]
    end: EndArguments,
    /// Format of the file; without it, the name decides: `.resp` or TSV
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write a directory that a stock redis-server starts from, instead of FILE; it must be missing or empty
    #[arg(long, value_name = "DIR", conflicts_with = "format")]
    aof: Option<PathBuf>,
    /// What Redis calls `appendfilename`: how the names of the files begin
    #[arg(long, value_name = "NAME", requires = "aof", default_value = "appendonly.aof", value_parser = redis::parse_name)]
    aof_name: String,
    /// Of a damaged pool: write everything that verifies, and list what is missing on standard error
    #[arg(long, conflicts_with = "server")]
    salvage: bool,
    /// Counts at the end as one JSON object on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Counts {
    keys: u64,
    bytes: u64,
    /// Keys that exist and cannot be read.
    unread: Vec<Vec<u8>>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let (pool, file) = arguments.end.split(&arguments.places)?;
    let file = file.filter(|path| *path != Path::new("-"));
    let by_name = match file.and_then(Path::extension) {
        Some(end) if end == "resp" => Format::Resp,
        _ if arguments.aof.is_some() => Format::Resp,
        _ => Format::Tsv,
    };
    let purpose = match arguments.salvage {
        true => Purpose::Salvage,
        false => Purpose::Read,
    };
    if arguments.aof.is_some() && file.is_some() {
        return Err(usage("with --aof there is no FILE"));
    }
    let mut end = arguments.end.open(pool, purpose, arguments.json)?;
    let directory = arguments.aof.as_deref().map(|path| {
        let created = Directory::create(path, &arguments.aof_name);
        created.with_context(|| format!("directory {}", path.display()))
    });
    let directory = directory.transpose()?;
    let output: Box<dyn Write> = match (&directory, file) {
        (Some(directory), _) => Box::new(directory.base()?),
        (None, Some(path)) => {
            let created = std::fs::File::create(path);
            Box::new(created.with_context(|| format!("file {}", path.display()))?)
        }
        (None, None) => Box::new(crate::output::Standard::lock()),
    };
    let mut output = BufWriter::with_capacity(1 << 20, output);
    let counts = write_all(
        &mut end,
        arguments.format.unwrap_or(by_name),
        &mut output,
        arguments.salvage,
        arguments.json,
    )?;
    output.flush()?;
    // It holds standard output.
    drop(output);
    if let Some(directory) = &directory {
        directory.finish()?;
    }
    let damage = end.damage();
    end.close()?;
    match arguments.json {
        true => tell_json(&counts, &damage, arguments.salvage),
        false => tell(&counts, &damage),
    }
    if let Some(directory) = &directory {
        println!("{}", directory.start());
    }
    let is_missing = !counts.unread.is_empty() || damage.iter().any(findings::matters);
    Ok(match is_missing {
        true => Outcome::Incomplete,
        false => Outcome::Sound,
    })
}

/// Unreadable keys that no finding mentions.
fn unlisted<'a>(counts: &'a Counts, damage: &[Finding]) -> Vec<&'a Vec<u8>> {
    let listed: HashSet<&[u8]> = damage.iter().filter_map(|one| one.key.as_deref()).collect();
    let unread = counts.unread.iter();
    unread
        .filter(|key| !listed.contains(key.as_slice()))
        .collect()
}

fn tell_json(counts: &Counts, damage: &[Finding], salvage: bool) {
    let mut object = json!({ "keys": counts.keys, "bytes": counts.bytes });
    if salvage {
        let unlisted = unlisted(counts, damage);
        let missing: u64 = damage.iter().map(|one| one.missing).sum();
        object["missing"] = json!(missing + unlisted.len() as u64);
        object["findings"] = damage.iter().map(findings::object).collect();
        let unread = unlisted.iter().map(|key| String::from_utf8_lossy(key));
        object["unread"] = unread.collect();
    }
    eprintln!("{object}");
}

fn tell(counts: &Counts, damage: &[Finding]) {
    for finding in damage {
        eprintln!("damaged {}", findings::line(finding));
    }
    let unlisted = unlisted(counts, damage);
    for key in &unlisted {
        eprintln!("missing key {}", findings::key(key));
    }
    let (keys, bytes) = (units::count(counts.keys), units::bytes(counts.bytes));
    if damage.is_empty() && unlisted.is_empty() {
        eprintln!("{keys} keys, {bytes}");
        return;
    }
    let missing = damage.iter().map(|one| one.missing).sum::<u64>() + unlisted.len() as u64;
    let missing = match missing {
        0 => "no record is missing".into(),
        some => format!("at least {} records are missing", units::count(some)),
    };
    let places = units::count(damage.len() as u64);
    eprintln!("{keys} keys, {bytes}; {places} places are damaged, {missing}");
}

fn write_all(
    end: &mut End,
    format: Format,
    output: &mut impl Write,
    salvage: bool,
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
        let mut unread = Vec::new();
        end.read(
            &keys,
            |key, value, expires_at_ms| {
                text.clear();
                write(&mut text, key, value, expires_at_ms);
                counts.keys += 1;
                counts.bytes += text.len() as u64;
                Ok(output.write_all(&text)?)
            },
            |key, error| match salvage && error.is_damage() {
                true => {
                    unread.push(key.to_vec());
                    Ok(())
                }
                false => Err(error.into()),
            },
        )?;
        counts.unread.append(&mut unread);
        progress.at(counts.keys, &format!("{} keys", units::count(counts.keys)));
        if cursor == 0 {
            progress.finish();
            return Ok(counts);
        }
    }
}

/// A scan may return a key twice; the file must not. This keeps only two keyed 64-bit hashes of each key.
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
