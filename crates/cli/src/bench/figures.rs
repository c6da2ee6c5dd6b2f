//! `everdram bench figures`: every figure of every paper, and one page of all of them.
//!
//! Each figure is measured by a process of its own, whose files take their places when it has ended well. So
//! a run that was interrupted goes on with the figure that it had begun.

use super::rows;
use super::store::ensure_directory;
use crate::Outcome;
use crate::settings::usage;
use crate::terminal::{Progress, Tone, paint};
use anyhow::{Context, ensure};
use everdram_bench::figure::{Figure, Settings};
use everdram_bench::report::figures::{Chapter, html};
use everdram_bench::{Row, row};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the file that says with what figures were measured.
const MADE_WITH: &str = "made-with.json";
/// Where a figure is until it is whole.
const UNFINISHED: &str = "unfinished";
const PAGE: &str = "figures.html";

/// All figures of all papers on one page.
#[derive(clap::Args)]
#[command(
    long_about = "Measures the figures of all papers, one after the other, as `bench figure` does, and writes one page of \
                  HTML: for each figure the picture, and what the paper says of it beside what was measured here. A table \
                  on top says how many have the shape of the paper's. The page needs nothing else.\n\n\
                  Rows, picture and page of each figure are in --out, too. What was interrupted goes on where it \
                  stopped: call it again. Figures that cannot be measured here are named, with the reason: some need a \
                  directory on a disk (--data-dir), one a build with --features steps.\n\n\
                  A whole run takes hours; --quick, a first look at all of it, a quarter of an hour on two cores.\n\n\
                  Examples:\n  \
                  everdram bench figures --quick --data-dir .\n  \
                  everdram bench figures --quick --only bullet,rdmp-8"
)]
pub(crate) struct Arguments {
    /// Smaller and shorter, for a first look.
    #[arg(long)]
    quick: bool,
    /// Rounds in which the systems of a figure take turns [default: those of the figure, 1 with --quick]
    #[arg(long)]
    rounds: Option<usize>,
    /// Only figures whose names begin with one of these, such as `bullet,rdmp-8`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// A directory on tmpfs, for emulated persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// A directory on a disk, for data files, logs and rivals.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// The directory for the page, and for what it is made of.
    #[arg(long, default_value = "everdram-figures")]
    out: PathBuf,
    /// Measure again what is in --out already.
    #[arg(long)]
    afresh: bool,
    /// Seed of all choices.
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

/// What figures of one page have in common.
#[derive(PartialEq, Serialize, Deserialize)]
struct MadeWith {
    commit: String,
    quick: bool,
    rounds: Option<usize>,
    seed: u64,
    dir: PathBuf,
    data_dir: Option<PathBuf>,
}

impl Arguments {
    fn figures(&self) -> anyhow::Result<Vec<&'static Figure>> {
        let is_asked_for = |figure: &&Figure, name: &String| figure.name.starts_with(&**name);
        let mut all = Figure::all();
        for name in &self.only {
            if !all.iter().any(|figure| is_asked_for(figure, name)) {
                return Err(usage(format!("--only {name}: no figure begins like that")));
            }
        }
        all.retain(|figure| {
            self.only.is_empty() || self.only.iter().any(|name| is_asked_for(figure, name))
        });
        Ok(all)
    }

    /// A first look has one round, unless it is asked for more.
    fn rounds(&self) -> Option<usize> {
        self.rounds.or(self.quick.then_some(1))
    }

    /// What each figure is asked for, as `bench figure` takes it.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["--seed".to_owned(), self.seed.to_string()];
        words.extend(self.quick.then(|| "--quick".to_owned()));
        if let Some(rounds) = self.rounds() {
            words.extend(["--rounds".to_owned(), rounds.to_string()]);
        }
        words.extend(["--dir".to_owned(), self.dir.display().to_string()]);
        words
    }

    fn made_with(&self) -> MadeWith {
        MadeWith {
            commit: crate::COMMIT.into(),
            quick: self.quick,
            rounds: self.rounds(),
            seed: self.seed,
            dir: self.dir.clone(),
            data_dir: self.data_dir.clone(),
        }
    }

    /// Prepares the directory: figures of one page are made alike.
    fn begin(&self) -> anyhow::Result<()> {
        let out = self.out.display();
        fs::create_dir_all(&self.out).with_context(|| format!("making {out}"))?;
        let (path, made_with) = (self.out.join(MADE_WITH), self.made_with());
        if self.afresh {
            for figure in Figure::all() {
                let _was_not_there = fs::remove_file(self.rows_of(figure));
            }
        } else if let Ok(text) = fs::read_to_string(&path) {
            let before: Option<MadeWith> = serde_json::from_str(&text).ok();
            if before != Some(made_with) {
                return Err(usage(format!(
                    "{out} has figures of another build, or with other settings ({MADE_WITH} says which): --afresh \
                     measures all of them again, --out names another directory"
                )));
            }
            return Ok(());
        }
        rows::file(&path, &serde_json::to_string_pretty(&made_with)?)
    }

    fn rows_of(&self, figure: &Figure) -> PathBuf {
        self.out.join(format!("{}.jsonl", figure.name))
    }

    /// Why a figure cannot be measured here, before it is tried.
    fn lack(&self, figure: &'static Figure) -> Option<String> {
        let data_dir = self.data_dir_for(figure);
        let settings = Settings::here(figure, self.quick, &self.dir, data_dir);
        if !settings.has_turns() {
            let why =
                "it needs a directory on a disk: --data-dir DIR; and what it compares, installed";
            return Some(why.into());
        }
        settings.ensure_possible().err().map(|why| why.to_string())
    }

    /// For figures that have a use for one.
    fn data_dir_for(&self, figure: &Figure) -> Option<&Path> {
        let has_use = !figure.grounds().is_empty();
        self.data_dir.as_deref().filter(|_| has_use)
    }

    /// Measures a figure in a process of its own.
    fn measure(&self, figure: &Figure) -> anyhow::Result<()> {
        let unfinished = self.out.join(UNFINISHED);
        let _was_not_there = fs::remove_dir_all(&unfinished);
        let made = fs::create_dir_all(&unfinished);
        made.with_context(|| format!("making {}", unfinished.display()))?;
        let program = std::env::current_exe().context("finding this program, to start it again")?;
        let mut command = Command::new(program);
        command
            .args(["bench", "figure", &figure.name])
            .args(self.words());
        if let Some(dir) = self.data_dir_for(figure) {
            command.arg("--data-dir").arg(dir);
        }
        let ended = command.arg("--out").arg(&unfinished).output();
        let ended = ended.context("starting this program again")?;
        let says = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "{}: {}", ended.status, says.trim());
        // The rows come last: they say that the figure is whole.
        for end in ["svg", "md", "jsonl"] {
            let name = format!("{}.{end}", figure.name);
            let moved = fs::rename(unfinished.join(&name), self.out.join(&name));
            moved.with_context(|| format!("moving {name} to {}", self.out.display()))?;
        }
        let _is_empty = fs::remove_dir(&unfinished);
        Ok(())
    }

    /// The rows of a figure that was measured before.
    fn read(&self, figure: &Figure) -> anyhow::Result<Option<Vec<Row>>> {
        let path = self.rows_of(figure);
        if !path.exists() {
            return Ok(None);
        }
        let reading = || format!("reading {}", path.display());
        let text = fs::read_to_string(&path).with_context(reading)?;
        row::read(&text).map(Some).with_context(reading)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let figures = arguments.figures()?;
    ensure_directory(&arguments.dir)?;
    arguments
        .data_dir
        .iter()
        .try_for_each(|dir| ensure_directory(dir))?;
    arguments.begin()?;
    let shown = Progress::start("figures", figures.len() as u64, false);
    let (mut chapters, mut failed) = (Vec::new(), 0);
    for (number, &figure) in figures.iter().enumerate() {
        shown.at(number as u64, &figure.name);
        let measured = match (arguments.read(figure)?, arguments.lack(figure)) {
            (Some(rows), _) => Ok(rows),
            (None, Some(lack)) => Err(lack),
            (None, None) => match arguments.measure(figure) {
                Ok(()) => Ok(arguments.read(figure)?.unwrap_or_default()),
                Err(error) => {
                    failed += 1;
                    Err(format!("{error:#}"))
                }
            },
        };
        chapters.push(Chapter { figure, measured });
        // A look at what there is so far, and what remains if this is interrupted.
        let page = arguments.out.join(PAGE);
        rows::file(&page, &html(&chapters, &command_line(arguments)))?;
    }
    shown.finish();
    print(&chapters);
    let page = arguments.out.join(PAGE);
    println!("\nThe page is {}.", page.display());
    ensure!(failed == 0, "{failed} figures could not be measured");
    Ok(Outcome::Sound)
}

/// The call that makes the page.
fn command_line(arguments: &Arguments) -> String {
    let disk = match arguments.data_dir {
        Some(_) => " --data-dir DISK",
        None => "",
    };
    let quick = if arguments.quick { " --quick" } else { "" };
    let rounds = match arguments.rounds {
        Some(rounds) => format!(" --rounds {rounds}"),
        None => String::new(),
    };
    format!(
        "everdram bench figures{quick}{rounds}{disk} --seed {}",
        arguments.seed
    )
}

fn print(chapters: &[Chapter]) {
    for chapter in chapters {
        let (tone, word) = match (&chapter.measured, chapter.has_shape()) {
            (Err(why), _) => (Tone::Bad, format!("left out: {why}")),
            (_, Some(true)) => (Tone::Good, "same shape".into()),
            (_, Some(false)) => (Tone::Bad, "not all of it has the shape".into()),
            (_, None) => (Tone::Strong, "measured".into()),
        };
        println!("{:<16}{}", chapter.figure.name, paint(tone, &word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Arguments {
        let words = std::iter::once("figures").chain(line.split_whitespace());
        Words::try_parse_from(words).unwrap().arguments
    }

    #[test]
    fn figures_are_asked_for_by_their_beginnings() {
        let all = parse("").figures().unwrap();
        assert_eq!(all, Figure::all());
        let some = parse("--only rdmp-1,bullet-5").figures().unwrap();
        let names: Vec<&str> = some.iter().map(|figure| &*figure.name).collect();
        assert_eq!(names, ["bullet-5", "rdmp-10", "rdmp-11"]);
        let error = parse("--only viper-99").figures().unwrap_err();
        assert!(error.is::<crate::settings::UsageError>());
    }

    #[test]
    fn figures_of_one_page_are_made_alike() {
        let out = tempfile::tempdir().unwrap();
        let begin = |line: &str| {
            let mut arguments = parse(line);
            arguments.out = out.path().join("page");
            arguments.begin()
        };
        begin("--quick").unwrap();
        begin("--quick").unwrap();
        begin("--quick --rounds 1").unwrap();
        assert!(begin("--quick --rounds 3").is_err());
        let error = begin("--quick --seed 43").unwrap_err();
        assert!(error.is::<crate::settings::UsageError>(), "{error}");
        assert!(error.to_string().contains("--afresh"));
        begin("--seed 43 --afresh").unwrap();
        begin("--seed 43").unwrap();
    }

    #[test]
    fn what_a_figure_lacks_is_said_before_it_is_tried() {
        let servers = Figure::find("ndhedis-4").unwrap();
        let lack = parse("--quick").lack(servers).unwrap();
        assert!(lack.contains("--data-dir"), "{lack}");
        let bullet = Figure::find("bullet-5").unwrap();
        let arguments = parse("--quick --data-dir /");
        assert_eq!(arguments.data_dir_for(bullet), None);
        assert_eq!(arguments.data_dir_for(servers), Some(Path::new("/")));
    }
}
