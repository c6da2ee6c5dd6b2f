//! What runs inside the test machine in one boot, and how the guest's words about it are read.

use std::time::Duration;

/// A command for the guest. It passes with exit code 0 within its limit.
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) limit: Duration,
    pub(crate) command: String,
}

impl Step {
    pub(crate) fn new(name: &str, seconds: u64, command: String) -> Step {
        Step {
            name: name.into(),
            limit: Duration::from_secs(seconds),
            command,
        }
    }
}

/// The steps as the guest reads them.
pub(crate) fn script(steps: &[Step]) -> String {
    steps
        .iter()
        .map(|step| format!("{}|{}|{}\n", step.name, step.limit.as_secs(), step.command))
        .collect()
}

/// How something went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// There was no time for it.
    LeftOut,
}

/// One line of the summary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    /// A few words: what it counted, or what went wrong.
    pub(crate) remark: String,
    pub(crate) seconds: u64,
}

impl Item {
    pub(crate) fn new(name: &str, verdict: Verdict, remark: String, seconds: u64) -> Item {
        Item {
            name: name.into(),
            verdict,
            remark,
            seconds,
        }
    }
}

/// Follows what the guest prints.
#[derive(Default)]
pub(crate) struct Follower {
    items: Vec<Item>,
    /// The step that is running, and the line of it that says most.
    running: Option<(String, String)>,
    pub(crate) failed: Option<String>,
}

impl Follower {
    /// Takes a line of the console.
    pub(crate) fn take(&mut self, line: &str) {
        let Some(words) = line.trim_end_matches('\r').strip_prefix("@@ ") else {
            if let Some((_, remark)) = &mut self.running {
                keep_better(remark, line);
            }
            return;
        };
        if let Some(name) = words.strip_prefix("begin ") {
            self.running = Some((name.to_owned(), String::new()));
        } else if let Some(end) = words.strip_prefix("end ") {
            self.end(end);
        } else if let Some(why) = words.strip_prefix("failed: ") {
            self.failed = Some(why.to_owned());
        }
    }

    fn end(&mut self, words: &str) {
        let mut words = words.splitn(3, ' ');
        let (code, seconds) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let name = words.next().unwrap_or_default();
        let seconds = seconds.parse().unwrap_or(0);
        let said = self
            .running
            .take()
            .map_or(String::new(), |(_, remark)| remark);
        let (verdict, remark) = match code {
            "0" => (Verdict::Passed, said),
            "137" | "143" => (Verdict::Failed, format!("out of time; {said}")),
            _ => (Verdict::Failed, format!("exit code {code}; {said}")),
        };
        self.items.push(Item::new(name, verdict, remark, seconds));
    }

    /// The items of all steps. Those the guest did not get to, or not through, have failed.
    pub(crate) fn finish(mut self, steps: &[Step]) -> Vec<Item> {
        let why = self
            .failed
            .take()
            .unwrap_or_else(|| "the machine did not get to its end".into());
        let mut items = self.items;
        for step in steps {
            if !items.iter().any(|item| item.name == step.name) {
                items.push(Item::new(&step.name, Verdict::Failed, why.clone(), 0));
            }
        }
        items
    }
}

/// What is worth showing in the summary, from the least to the most telling. A later line wins over an equal one.
const TELLING: [&str; 5] = [
    "medium ",
    "test result: ok",
    "panicked at",
    "test result: FAILED",
    " acknowledged, ",
];

/// Replaces `remark` by `line` if that tells as much or more.
pub(crate) fn keep_better(remark: &mut String, line: &str) {
    let rank = |text: &str| TELLING.iter().rposition(|mark| text.contains(mark));
    if rank(line).is_some() && rank(line) >= rank(remark) {
        *remark = line.trim().to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str) -> Step {
        Step::new(name, 3, "true".into())
    }

    #[test]
    fn the_guest_is_understood_and_what_it_did_not_do_has_failed() {
        let steps = [step("a b"), step("c"), step("d")];
        assert_eq!(script(&steps[..1]), "a b|3|true\n");
        let mut follower = Follower::default();
        for line in [
            "noise",
            "@@ begin a b",
            "test result: ok. 3 passed; 0 failed",
            "more noise",
            "@@ end 0 7 a b\r",
            "@@ begin c",
            "@@ end 137 3 c",
            "@@ begin d",
        ] {
            follower.take(line);
        }
        let items = follower.finish(&steps);
        let brief: Vec<_> = items
            .iter()
            .map(|i| (i.name.as_str(), i.verdict, i.seconds))
            .collect();
        assert_eq!(
            brief,
            [
                ("a b", Verdict::Passed, 7),
                ("c", Verdict::Failed, 3),
                ("d", Verdict::Failed, 0)
            ]
        );
        assert_eq!(items[0].remark, "test result: ok. 3 passed; 0 failed");
        assert!(items[1].remark.starts_with("out of time"));
    }
}
