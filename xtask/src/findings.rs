//! What a failed step found, in a few lines: names of failed tests, panics, bugs that were not caught.

/// Lines kept of a step.
const LINES_MAX: usize = 16;
/// Lines after the place of a panic, which have its message.
const MESSAGE_LINES: usize = 2;
/// Letters kept of a line.
const WIDTH: usize = 200;

/// Picks the lines that say what is wrong out of a step's output.
#[derive(Default)]
pub(crate) struct Findings {
    lines: Vec<String>,
    /// How many of the next lines belong to a panic.
    message: usize,
}

impl Findings {
    /// Takes the next line of output.
    pub(crate) fn hear(&mut self, line: &str) {
        let is_panic = line.contains(" panicked at ");
        let is_told = ["FAILED", "NOT CAUGHT", "NOT ASKED", "without a mutant:"]
            .iter()
            .any(|words| line.contains(words))
            && !line.starts_with("test result: ");
        if is_panic {
            self.message = MESSAGE_LINES;
        } else if self.message > 0 {
            self.message -= 1;
        } else if !is_told {
            return;
        }
        self.note(line.to_owned());
    }

    /// Keeps a line, unless there are many.
    pub(crate) fn note(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line.chars().take(WIDTH).collect());
        }
    }

    /// The lines, each after the name of the step.
    pub(crate) fn of(self, step: &str) -> impl Iterator<Item = String> {
        self.lines
            .into_iter()
            .map(move |line| format!("{step}: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_picked_out() {
        let output = "test a ... ok\n\
                      test b ... FAILED\n\
                      thread 'b' (7) panicked at src/b.rs:1:1:\n\
                      left == right\n\
                      left: 1\n\
                      right: 2\n\
                      a-bug        NOT CAUGHT\n\
                      test result: FAILED. 1 passed; 1 failed";
        let mut findings = Findings::default();
        output.lines().for_each(|line| findings.hear(line));
        let lines: Vec<String> = findings.of("test").collect();
        let expected = [
            "test: test b ... FAILED",
            "test: thread 'b' (7) panicked at src/b.rs:1:1:",
            "test: left == right",
            "test: left: 1",
            "test: a-bug        NOT CAUGHT",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_few_lines_are_enough() {
        let mut findings = Findings::default();
        (0..99).for_each(|_| findings.hear("test a ... FAILED"));
        assert_eq!(findings.of("test").count(), LINES_MAX);
    }
}
