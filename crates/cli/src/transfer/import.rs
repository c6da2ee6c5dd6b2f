//! `everdram import`: loads a file into a pool or a server.

use crate::settings::{engine, usage};
use crate::terminal::{Progress, row};
use crate::transfer::end::{End, EndArguments, Purpose};
use crate::transfer::operation::Operation;
use crate::transfer::{Format, mass, redis, tsv};
use crate::{Outcome, units};
use anyhow::Context;
use everdram::{EngineKind, Options};
use serde_json::json;
use std::cell::Cell;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

/// Load keys from a file into a pool or a server.
#[derive(clap::Args)]
#[command(
    long_about = "Loads keys from a file (`-` = standard input) into a pool, made if missing, or into a running server. \
                  TSV has one key a line: key, tab, value, and optionally a tab and the expiry in Unix milliseconds; \
                  \\t \\n \\r \\\\ and \\xHH are escapes. RESP is what `redis-cli --pipe` takes: SET, MSET, PEXPIREAT, \
                  DEL and their kin.\n\n\
                  Keys are written in batches that become durable together; when the command ends, all of them are. \
                  If the file has an error, what stood before it has been loaded, and the error names its place.\n\n\
                  With --aof, a new pool is made from what a stock Redis (up to 7.0) has on its disk: the directory \
                  `appendonlydir`, a manifest in it, an `appendonly.aof` of an older version, or a `dump.rdb`. Stop that \
                  server first, or copy the directory while none of its files is being rewritten. Files are loaded as \
                  Redis loads them: MULTI to EXEC as one, half a command at the very end dropped and told, keys removed \
                  whose expiry has passed. Anything everdram cannot hold (a list, a hash, another database) is an error \
                  with its key and place; --strings-only leaves it out and counts it by type. After an error or a kill, \
                  remove the pool and begin again.\n\n\
                  Examples: everdram import ./data keys.tsv\n\
                  \u{20}         zcat dump.resp.gz | everdram import --server 127.0.0.1:6379 - --format resp\n\
                  \u{20}         everdram import ./data --aof /var/lib/redis/appendonlydir\n\
                  \u{20}         everdram import ./data --aof /var/lib/redis/dump.rdb --strings-only --engine bullet",
    after_help = "Exit codes: 0 everything is durable; 1 failed; 2 usage."
)]
pub(crate) struct Arguments {
    /// POOL FILE, just FILE with --server, or just POOL with --aof; FILE may be `-`
    #[arg(required = true, num_args = 1..=2, value_names = ["POOL", "FILE"])]
    places: Vec<PathBuf>,
    #[command(flatten)]
    end: EndArguments,
    /// Engine of a new pool; a pool that is there has its own, and another one is refused [default: viper]
    #[arg(long, conflicts_with = "server", value_parser = engine())]
    engine: Option<EngineKind>,
    /// Engine dstore: where the values are, a regular file (created for a new pool) or a block device; the
    /// pool remembers it. A new pool gets that engine then [default: the file `data` in the pool's
    /// directory]
    #[arg(long, value_name = "PATH", conflicts_with = "server")]
    data: Option<PathBuf>,
    /// Engine tiered: the directory of the log, on a disk; the pool remembers it. A new pool gets that engine
    /// then [default: the directory `tier2` in the pool's]
    #[arg(long, value_name = "PATH", conflicts_with = "server")]
    below: Option<PathBuf>,
    /// Format of the file; without it, the name decides: `.resp` or TSV
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// What a stock Redis has on its disk, instead of FILE: the directory of its append-only files, a
    /// manifest, or one file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["server", "format"])]
    aof: Option<PathBuf>,
    /// With --aof: leave out, and count, what is no string in database 0
    #[arg(long, requires = "aof")]
    strings_only: bool,
    /// Counts at the end as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Counts {
    put: u64,
    expired: u64,
    deleted: u64,
}

impl Counts {
    fn add(&mut self, operation: &Operation) {
        match operation {
            Operation::Put { .. } => self.put += 1,
            Operation::Expire { .. } => self.expired += 1,
            Operation::Delete { .. } => self.deleted += 1,
        }
    }

    fn all(&self) -> u64 {
        self.put + self.expired + self.deleted
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let (pool, file) = arguments.end.split(&arguments.places)?;
    let mut options = Options::default();
    options.engine = arguments.engine;
    options.dstore.data.clone_from(&arguments.data);
    options.tiered.below.clone_from(&arguments.below);
    if let Some(aof) = &arguments.aof {
        return match (pool, file) {
            (Some(pool), None) => {
                redis::import(pool, aof, options, arguments.strings_only, arguments.json)
            }
            _ => Err(usage("with --aof there is no FILE: give the POOL")),
        };
    }
    let file = file.ok_or_else(|| usage("give the FILE to load, or `-`"))?;
    let by_name = if file.extension().is_some_and(|end| end == "resp") {
        Format::Resp
    } else {
        Format::Tsv
    };
    let (input, bytes) = open(file)?;
    let read = Rc::new(Cell::new(0));
    let input = BufReader::with_capacity(
        1 << 20,
        Counted {
            input,
            read: Rc::clone(&read),
        },
    );
    let mut end = arguments
        .end
        .open(pool, Purpose::Write(Box::new(options)), arguments.json)?;
    let begun = Instant::now();
    let progress = Progress::start("import", bytes, arguments.json);

    let mut counts = Counts::default();
    let loaded = match arguments.format.unwrap_or(by_name) {
        Format::Tsv => {
            let mut reader = tsv::Reader::new(input);
            load(&mut end, || reader.next(), &mut counts, &read, &progress)
        }
        Format::Resp => {
            let mut reader = mass::Reader::new(input);
            load(&mut end, || reader.next(), &mut counts, &read, &progress)
        }
    };
    progress.finish();
    // The operations before an error stay applied: close the pool and count them.
    end.close()?;
    loaded.with_context(|| format!("{}, after {} operations", file.display(), counts.all()))?;
    print(arguments, &counts, read.get(), begun);
    Ok(Outcome::Sound)
}

fn load(
    end: &mut End,
    mut next: impl FnMut() -> anyhow::Result<Option<Operation>>,
    counts: &mut Counts,
    read: &Cell<u64>,
    progress: &Progress,
) -> anyhow::Result<()> {
    while let Some(operation) = next()? {
        end.apply(&operation)?;
        counts.add(&operation);
        if counts.all().is_multiple_of(4096) {
            progress.at(read.get(), &format!("{} keys", units::count(counts.all())));
        }
    }
    end.flush()
}

fn open(file: &Path) -> anyhow::Result<(Box<dyn Read>, u64)> {
    if file == Path::new("-") {
        return Ok((Box::new(std::io::stdin()), 0));
    }
    let opened = std::fs::File::open(file).with_context(|| format!("file {}", file.display()))?;
    let bytes = opened.metadata().map_or(0, |metadata| metadata.len());
    Ok((Box::new(opened), bytes))
}

/// Counts the bytes read, for the progress line.
struct Counted {
    input: Box<dyn Read>,
    read: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(into)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

fn print(arguments: &Arguments, counts: &Counts, bytes: u64, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    if arguments.json {
        let object = json!({
            "put": counts.put, "expiries": counts.expired, "deletes": counts.deleted,
            "bytes_read": bytes, "seconds": seconds,
        });
        println!("{object}");
        return;
    }
    row("stored", units::count(counts.put));
    if counts.expired > 0 {
        row("expiries set", units::count(counts.expired));
    }
    if counts.deleted > 0 {
        row("removed", units::count(counts.deleted));
    }
    row(
        "read",
        format_args!(
            "{} in {}",
            units::bytes(bytes),
            units::time(begun.elapsed())
        ),
    );
}
