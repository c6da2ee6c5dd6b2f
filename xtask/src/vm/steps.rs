//! The steps inside the test machine in one boot, and the interpretation of the guest's output about them.

use std::time::Duration;

/// A command for the guest. It passes with exit code 0 within its limit.
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) limit: Duration,
    pub(crate) command: String,
    /// It needs what a [`super::fabric::Fabric`] brings.
    pub(crate) needs_fabric: bool,
}

impl Step {
    pub(crate) fn new(name: &str, seconds: u64, command: String) -> Step {
        Step {
            name: name.into(),
            limit: Duration::from_secs(seconds),
            command,
            needs_fabric: false,
        }
    }

    pub(crate) fn over_fabric(self) -> Step {
        Step {
            needs_fabric: true,
            ..self
        }
    }
}

/// Removes the steps that need a fabric, which this machine does not have, for this reason.
pub(crate) fn leave_out_fabric(steps: &mut Vec<Step>, why: &str) -> Vec<Item> {
    let left_out = |step: Step| Item::new(&step.name, Verdict::LeftOut, why.to_owned(), 0);
    let without = steps.extract_if(.., |step| step.needs_fabric);
    without.map(left_out).collect()
}

/// The steps in the form that the guest reads.
pub(crate) fn script(steps: &[Step]) -> String {
    steps
        .iter()
        .map(|step| format!("{}|{}|{}\n", step.name, step.limit.as_secs(), step.command))
        .collect()
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// No time was left for it.
    LeftOut,
}

/// One line of the summary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    /// A few words: a count, or the failure.
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

/// How the machine ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    Badly(String),
    /// It was ended because the time for all machines was over.
    NoTime(String),
}

/// The guest's message that it has its NVDIMMs, after `@@ `.
pub(crate) const UP: &str = "up ";

/// Follows the guest's output.
#[derive(Default)]
pub(crate) struct Follower {
    items: Vec<Item>,
    /// The guest has its NVDIMMs.
    is_up: bool,
    /// The running step, and its most telling line so far.
    running: Option<(String, String)>,
    /// The guest's own errors.
    failed: Option<String>,
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
        if words.starts_with(UP) {
            self.is_up = true;
        } else if let Some(name) = words.strip_prefix("begin ") {
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

    /// The items of all steps. A step that the guest did not finish has failed, unless it lacked only time.
    pub(crate) fn finish(self, steps: &[Step], ended: Ended) -> Vec<Item> {
        let only_time = self.is_up && self.failed.is_none();
        let (verdict, why) = match &ended {
            Ended::NoTime(why) if only_time => (Verdict::LeftOut, why.as_str()),
            Ended::NoTime(why) | Ended::Badly(why) => (Verdict::Failed, why.as_str()),
            Ended::Well => (Verdict::Failed, "the machine did not get to it"),
        };
        let why = self.failed.as_deref().unwrap_or(why);
        let place = if self.is_up { "" } else { "before it was up: " };
        let unfinished = |name: &str| Item::new(name, verdict, format!("{place}{why}"), 0);
        let mut items = self.items;
        let done = items.len();
        for step in steps {
            if !items.iter().any(|item| item.name == step.name) {
                items.push(unfinished(&step.name));
            }
        }
        if items.len() == done && ended != Ended::Well {
            items.push(unfinished("turning the machine off"));
        }
        items
    }
}

/// Lines for the summary, from the least to the most telling. Of equal ones, the latest counts.
const TELLING: [&str; 5] = [
    "medium ",
    "test result: ok",
    "panicked at",
    "test result: FAILED",
    " acknowledged, ",
];

/// Replaces `remark` by `line` if `line` is at least as telling.
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

    const STORY: [&str; 9] = [
        "noise",
        "@@ up linux",
        "@@ begin a b",
        "test result: ok. 3 passed; 0 failed",
        "more noise",
        "@@ end 0 7 a b\r",
        "@@ begin c",
        "@@ end 137 3 c",
        "@@ begin d",
    ];

    fn told(lines: &[&str], ended: Ended) -> Vec<Item> {
        let mut follower = Follower::default();
        lines.iter().for_each(|line| follower.take(line));
        follower.finish(&[step("a b"), step("c"), step("d")], ended)
    }

    fn verdicts(items: &[Item]) -> Vec<Verdict> {
        items.iter().map(|item| item.verdict).collect()
    }

    #[test]
    fn the_guest_is_understood() {
        assert_eq!(script(&[step("a b")]), "a b|3|true\n");
        let items = told(&STORY, Ended::Well);
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

    #[test]
    fn steps_without_their_fabric_are_left_out() {
        let mut steps = vec![step("a"), step("b").over_fabric(), step("c")];
        let items = leave_out_fabric(&mut steps, "no libfabric1");
        assert_eq!(script(&steps), "a|3|true\nc|3|true\n");
        let left_out = Item::new("b", Verdict::LeftOut, "no libfabric1".into(), 0);
        assert_eq!(items, [left_out]);
    }

    #[test]
    fn only_a_lack_of_time_is_no_failure() {
        use Verdict::{Failed, LeftOut, Passed};
        let no_time = || Ended::NoTime("no time".into());
        let items = told(&STORY, no_time());
        assert_eq!(verdicts(&items), [Passed, Failed, LeftOut]);
        let items = told(&STORY, Ended::Badly("it burns".into()));
        assert_eq!(verdicts(&items), [Passed, Failed, Failed]);
        assert_eq!(items[2].remark, "it burns");
        let items = told(&["noise"], no_time());
        assert_eq!(verdicts(&items), [Failed; 3]);
        assert_eq!(items[0].remark, "before it was up: no time");
        let items = told(&["@@ up x", "@@ failed: no disk"], no_time());
        assert_eq!(verdicts(&items), [Failed; 3]);
        assert_eq!(items[0].remark, "no disk");
    }

    #[test]
    fn a_bad_end_after_all_steps_is_told() {
        let mut lines = STORY.to_vec();
        lines.push("@@ end 0 1 d");
        assert_eq!(told(&lines, Ended::Well).len(), 3);
        let items = told(&lines, Ended::Badly("it burns".into()));
        assert_eq!((items.len(), items[3].verdict), (4, Verdict::Failed));
    }
}
