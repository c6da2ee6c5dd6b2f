//! Colour and progress for a person who watches, plain lines for everyone else.
//!
//! Colour appears only if the stream is a terminal and `NO_COLOR` is not set. A progress bar is drawn
//! on standard error; without a terminal the same facts come as whole lines, one every few seconds.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often progress is said without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// What a piece of text is about.
#[derive(Clone, Copy)]
pub(crate) enum Tone {
    Good,
    Bad,
    Strong,
}

/// `text` in the colour of its tone, if standard output is a terminal.
pub(crate) fn paint(tone: Tone, text: &str) -> String {
    if !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some() {
        return text.to_owned();
    }
    let code = match tone {
        Tone::Good => "32",
        Tone::Bad => "1;31",
        Tone::Strong => "1",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// A row of a small table: a name, padded, and what it is.
pub(crate) fn row(name: &str, value: impl std::fmt::Display) {
    println!("  {name:<22} {value}");
}

/// Progress of one piece of work.
pub(crate) struct Progress {
    shown: Shown,
    title: String,
}

enum Shown {
    Bar(ProgressBar),
    /// When the last line was printed.
    Lines(Mutex<Instant>),
    Nothing,
}

impl Progress {
    /// A bar up to `total`; 0 = the end is not known. `quiet` shows nothing at all.
    pub(crate) fn start(title: &str, total: u64, quiet: bool) -> Progress {
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            Shown::Bar(bar(title, total))
        } else {
            Shown::Lines(Mutex::new(Instant::now()))
        };
        Progress {
            shown,
            title: title.to_owned(),
        }
    }

    /// Where the work is, and a few words beside it. What is over soon prints no line.
    pub(crate) fn at(&self, position: u64, words: &str) {
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_position(position);
                bar.set_message(words.to_owned());
            }
            Shown::Lines(last) => {
                let Ok(mut last) = last.lock() else { return };
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    self.line(words);
                }
            }
            Shown::Nothing => {}
        }
    }

    /// A line at once, for those who see no bar.
    pub(crate) fn begin(&self, words: &str) {
        if matches!(self.shown, Shown::Lines(_)) {
            self.line(words);
        }
    }

    fn line(&self, words: &str) {
        eprintln!("{}: {words}", self.title);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

fn bar(title: &str, total: u64) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(10);
    let (bar, template) = if total == 0 {
        (
            ProgressBar::with_draw_target(None, target),
            "  {spinner} {prefix:<10} {msg}",
        )
    } else {
        let template = "  {prefix:<10} {bar:28} {percent:>3}%  {msg}";
        (ProgressBar::with_draw_target(Some(total), target), template)
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_prefix(title.to_owned())
}
