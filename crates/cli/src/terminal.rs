//! Colour and progress for a person, plain lines for everything else.
//!
//! Colour appears only if the stream is a terminal and `NO_COLOR` is not set. A progress bar appears on
//! standard error. Without a terminal, whole lines show the same facts, at first often and later once a
//! minute.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time until the first line of progress without a terminal. Each line doubles the time to the next.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// The longest time between two lines.
const LINES_APART: Duration = Duration::from_secs(60);

/// The meaning of a text.
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

/// Prints a row of a small table: a padded name and its value.
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
    Lines(Mutex<Lines>),
    Nothing,
}

struct Lines {
    last: Instant,
    apart: Duration,
}

impl Lines {
    fn new() -> Lines {
        Lines {
            last: Instant::now(),
            apart: FIRST_LINE,
        }
    }

    /// Whether a line is due.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.duration_since(self.last) >= self.apart;
        if is_due {
            self.last = now;
            self.apart = (self.apart * 2).min(LINES_APART);
        }
        is_due
    }
}

impl Progress {
    /// Starts a bar up to `total`; 0 = unknown. `quiet` shows nothing.
    pub(crate) fn start(title: &str, total: u64, quiet: bool) -> Progress {
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            Shown::Bar(bar(title, total))
        } else {
            Shown::Lines(Mutex::new(Lines::new()))
        };
        Progress {
            shown,
            title: title.to_owned(),
        }
    }

    /// Shows the position and a few words. Short work prints no line.
    pub(crate) fn at(&self, position: u64, words: &str) {
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_position(position);
                bar.set_message(words.to_owned());
            }
            Shown::Lines(lines) => {
                let Ok(mut lines) = lines.lock() else { return };
                if lines.is_due(Instant::now()) {
                    self.line(words);
                }
            }
            Shown::Nothing => {}
        }
    }

    /// Prints a line at once if there is no bar.
    pub(crate) fn begin(&self, words: &str) {
        if matches!(self.shown, Shown::Lines(_)) {
            self.line(words);
        }
    }

    fn line(&self, words: &str) {
        eprintln!("{}: {words}", self.title);
    }

    /// Removes the bar.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_hour_of_work_is_told_in_few_lines() {
        let mut lines = Lines::new();
        let begun = lines.last;
        let told: Vec<u64> = (1..=1800)
            .filter(|second| lines.is_due(begun + Duration::from_secs(*second)))
            .collect();
        assert_eq!(told[..7], [2, 6, 14, 30, 62, 122, 182]);
        assert_eq!(told.len(), 33);
    }
}
