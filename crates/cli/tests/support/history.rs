//! A history: what each client asked when, and what it was answered when. Answers are as RESP writes them, in
//! one line: `+OK`, `:5`, `$text`, `_` for nothing, `-ERR ...`.

use everdram_cli::client::Reply;
use std::borrow::Cow;

/// Keys of this name have long values, which stores keep in pieces. In a history each is its first word.
pub(crate) const LONG: &str = "long";
/// Answers longer than this are long values.
const SHORT_MAX: usize = 1000;

/// A command on one key, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) command: &'static str,
    pub(crate) key: String,
    pub(crate) argument: String,
    /// Empty if nobody saw it.
    pub(crate) answer: String,
}

/// One command, or those of a transaction: steps that happen at one moment between `called` and `returned`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    /// Nanoseconds of the run's clock.
    pub(crate) called: u64,
    /// The same. If the answer is not known: when the killed process was gone, for what it had not done by
    /// then it never did.
    pub(crate) returned: u64,
    /// Whether the answer came. If not, the operation may have happened or not.
    pub(crate) known: bool,
    pub(crate) steps: Vec<Step>,
}

impl Step {
    pub(crate) fn new(command: &'static str, key: &str, argument: impl Into<String>) -> Step {
        Step {
            command,
            key: key.to_owned(),
            argument: argument.into(),
            answer: String::new(),
        }
    }

    pub(crate) fn is_read(&self) -> bool {
        self.command == "GET"
    }

    /// Its argument as it is sent.
    pub(crate) fn sent(&self) -> Cow<'_, [u8]> {
        match self.key.contains(LONG) && !self.argument.is_empty() {
            true => Cow::Owned(long(&self.argument)),
            false => Cow::Borrowed(self.argument.as_bytes()),
        }
    }

    /// The command with its argument as it is sent.
    pub(crate) fn words<'a>(&'a self, sent: &'a [u8]) -> Vec<&'a [u8]> {
        let mut words = vec![self.command.as_bytes(), self.key.as_bytes()];
        if matches!(self.command, "SET" | "GETSET" | "SETNX" | "APPEND") {
            words.push(sent);
        }
        words
    }
}

/// A value of 25,000 to 65,000 bytes that is this word over and over.
fn long(word: &str) -> Vec<u8> {
    let bytes = word.bytes().fold(7_u32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    let words = word.bytes().chain([b' ']).cycle();
    words.take(25_000 + bytes as usize % 40_000).collect()
}

/// A long value as histories have it. One that is not whole is another word than any that was written.
fn short(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let word = text.split(' ').next().unwrap_or_default();
    match long(word) == value {
        true => word.to_owned(),
        false => format!("{} bytes of several values, the first {word}", value.len()),
    }
}

/// An answer in one line.
pub(crate) fn answer(reply: &Reply) -> String {
    match reply {
        Reply::Simple(text) => format!("+{text}"),
        Reply::Error(text) => format!("-{text}"),
        Reply::Integer(number) => format!(":{number}"),
        Reply::Bulk(bytes) if bytes.len() > SHORT_MAX => format!("${}", short(bytes)),
        Reply::Bulk(bytes) => format!("${}", String::from_utf8_lossy(bytes)),
        Reply::Null => "_".to_owned(),
        Reply::Array(_) => "*".to_owned(),
    }
}

#[test]
fn a_long_value_that_is_not_whole_is_told() {
    let step = Step::new("SET", LONG, "70000");
    let sent = step.sent().into_owned();
    assert!(sent.len() >= 25_000, "{}", sent.len());
    assert_eq!(answer(&Reply::Bulk(sent.clone())), "$70000");
    let other = Step::new("SET", LONG, "80000").sent().into_owned();
    let mixed = [&sent[..12_000], &other[12_000..]].concat();
    for torn in [&mixed[..], &sent[..sent.len() - 1]] {
        let told = answer(&Reply::Bulk(torn.to_vec()));
        assert!(told.contains("several values"), "{told}");
    }
}
