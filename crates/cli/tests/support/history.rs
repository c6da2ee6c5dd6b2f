//! A history: what each client asked when, and what it was answered when. Answers are as RESP writes them, in
//! one line: `+OK`, `:5`, `$text`, `_` for nothing, `-ERR ...`.

use everdram_cli::client::Reply;

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

    /// The command as it is sent.
    pub(crate) fn words(&self) -> Vec<&[u8]> {
        let mut words = vec![self.command.as_bytes(), self.key.as_bytes()];
        if matches!(self.command, "SET" | "GETSET" | "SETNX" | "APPEND") {
            words.push(self.argument.as_bytes());
        }
        words
    }
}

/// An answer in one line.
pub(crate) fn answer(reply: &Reply) -> String {
    match reply {
        Reply::Simple(text) => format!("+{text}"),
        Reply::Error(text) => format!("-{text}"),
        Reply::Integer(number) => format!(":{number}"),
        Reply::Bulk(bytes) => format!("${}", String::from_utf8_lossy(bytes)),
        Reply::Null => "_".to_owned(),
        Reply::Array(_) => "*".to_owned(),
    }
}
