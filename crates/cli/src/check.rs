//! `everdram check`: walks a whole pool and says what is damaged, where, and what to do.

use crate::terminal::{Tone, paint, row};
use crate::{Outcome, findings, pool, units};
use serde_json::json;
use std::path::PathBuf;

/// Verify every checksum and invariant of a pool.
#[derive(clap::Args)]
#[command(
    long_about = "Walks every block of a pool and verifies every checksum and invariant. Nothing is repaired, and \
                  nothing of the pool changes: after a crash it is recovered in memory only. The pool must not be open \
                  elsewhere. The pool of a journal (`everdram::crl`) is checked as well: its blocks are logs, its records \
                  their entries.\n\n\
                  Of a pool that is too damaged to be opened, all that is damaged is listed: each place with its bytes, the \
                  block, and the key if it can be read. A damaged pool is not lost: `everdram export --salvage` and `everdram \
                  serve --salvage` give everything that verifies.\n\n\
                  A finding means that bytes which were durable have changed since: the medium or something that \
                  writes to it is at fault. An interrupted write is never a finding.\n\n\
                  Example: everdram check ./data && echo sound",
    after_help = "Exit codes: 0 sound; 1 damaged, or the pool could not be read; 2 usage."
)]
pub(crate) struct Arguments {
    /// The pool: a directory, or a devdax device.
    pool: PathBuf,
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let (engine, report) = pool::check(&arguments.pool, arguments.json)?;
    if arguments.json {
        let findings: Vec<_> = report.findings.iter().map(findings::object).collect();
        let object = json!({
            "pool": arguments.pool, "engine": engine, "sound": findings.is_empty(), "blocks": report.blocks,
            "records": report.records, "live": report.live, "bytes": report.bytes, "findings": findings,
        });
        println!("{object}");
    } else {
        row("engine", engine);
        row("blocks", units::count(report.blocks));
        row("records verified", units::count(report.records));
        row("live", units::count(report.live));
        row("bytes read", units::bytes(report.bytes));
        for finding in &report.findings {
            println!(
                "{} {}",
                paint(Tone::Bad, "damaged"),
                findings::line(finding)
            );
        }
        if report.findings.is_empty() {
            println!("{}", paint(Tone::Good, "sound"));
        } else {
            println!("{} findings; {}", report.findings.len(), findings::REMEDY);
        }
    }
    Ok(if report.findings.is_empty() {
        Outcome::Sound
    } else {
        Outcome::Damaged
    })
}
