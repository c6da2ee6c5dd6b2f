//! `everdram bench limits`: bare loops over the medium and the machine's own costs, as a table and as rows.

use super::rows;
use crate::terminal::{Progress, Tone, paint};
use crate::{Outcome, units};
use everdram_bench::Row;
use everdram_bench::limits::{self, Settings};
use std::path::PathBuf;

/// What the machine can do at most, without a store.
#[derive(clap::Args)]
#[command(
    long_about = "Runs bare loops: records stored and fenced, read at random, changed in place, in batches; chains of \
                  calls, each for the key that the value before names; single instructions, loads, pages and streams; what an engine with values on a data file pays at least for a \
                  put, a get and a restart, also with the delays of DStore's paper; and, with --file-dir, what a disk \
                  makes durable. A store's figures are shares of these.\n\n\
                  Needs memory for the records twice over, and as much as --load-bytes.\n\n\
                  Example: everdram bench limits --dir /dev/shm --file-dir ."
)]
pub(crate) struct Arguments {
    /// A directory on the medium: on tmpfs for emulated persistent memory.
    #[arg(long)]
    dir: PathBuf,
    /// A directory on a disk, to measure its syncs, too.
    #[arg(long)]
    file_dir: Option<PathBuf>,
    /// Records, such as 5M.
    #[arg(long, default_value = "5M", value_parser = units::parse_count)]
    records: u64,
    /// Bytes of a key.
    #[arg(long = "key", default_value_t = 16)]
    key_bytes: usize,
    /// Bytes of a value.
    #[arg(long = "value", default_value_t = 200)]
    value_bytes: usize,
    /// Bytes over which dependent loads go.
    #[arg(long, default_value = "2GiB", value_parser = units::parse_bytes)]
    load_bytes: u64,
    /// Repetitions of each loop.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Shorter loops over fewer records, for a first look.
    #[arg(long)]
    quick: bool,
    /// Write each limit as a JSON line to this file as well; `-` is standard output, without the table.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let settings = settings(arguments);
    let begun = Progress::start("limits", 1000, false);
    let measured = limits::measure(&settings, &mut |done, name| {
        begun.at((done * 1000.0) as u64, name);
    });
    begun.finish();
    let measured = measured?;
    if !rows::are_all(arguments.json.as_deref()) {
        print(&settings, &measured);
    }
    rows::write(arguments.json.as_deref(), &rows::lines(&measured)?)?;
    Ok(Outcome::Sound)
}

fn settings(arguments: &Arguments) -> Settings {
    let shrink = if arguments.quick { 5 } else { 1 };
    Settings {
        dir: arguments.dir.clone(),
        file_dir: arguments.file_dir.clone(),
        records: (arguments.records / shrink).max(1),
        key_bytes: arguments.key_bytes,
        value_bytes: arguments.value_bytes,
        load_bytes: arguments.load_bytes,
        repeat: arguments.repeat.max(1),
        quick: arguments.quick,
    }
}

fn print(settings: &Settings, measured: &[Row]) {
    println!(
        "{} records of {} + {} bytes, one thread, medians of {} repetitions; lines leave the cache by {}.",
        units::count(settings.records),
        settings.key_bytes,
        settings.value_bytes,
        settings.repeat,
        limits::instructions()
    );
    for group in measured.chunk_by(|one, next| one.say("group") == next.say("group")) {
        let title = match &*group[0].say("group") {
            "records" => format!(
                "Records on {} (emulated, unless that is persistent memory)",
                settings.dir.display()
            ),
            "chains" => "One call after another: each key is in the value before".to_owned(),
            "machine" => "The machine".to_owned(),
            "data" => "Values on a data file, metadata in memory (engine dstore)".to_owned(),
            _ => "Files on the disk".to_owned(),
        };
        println!("\n{}", paint(Tone::Strong, &title));
        print!("{}", limits::table(group).text(usize::MAX));
    }
}
