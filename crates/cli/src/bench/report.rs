//! `everdram bench report`: the page of a comparison, made again from its rows.

use super::rows;
use crate::Outcome;
use anyhow::Context;
use everdram_bench::{report, row};
use std::path::PathBuf;

/// Make the page of a comparison again from its rows.
#[derive(clap::Args)]
#[command(
    long_about = "Reads the rows that `bench compare` wrote, and writes the page of HTML that belongs to them.\n\n\
                        Example: everdram bench report everdram-compare.jsonl -o report.html"
)]
pub(crate) struct Arguments {
    /// Rows, as `bench compare` writes them.
    rows: PathBuf,
    /// Where the page goes.
    #[arg(short, long, default_value = "everdram-compare.html")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let path = arguments.rows.display();
    let text =
        std::fs::read_to_string(&arguments.rows).with_context(|| format!("reading {path}"))?;
    let measured = row::read(&text).with_context(|| format!("reading {path}"))?;
    rows::file(&arguments.output, &report::html(&measured))?;
    Ok(Outcome::Sound)
}
