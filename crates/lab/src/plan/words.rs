//! Reads a line of a plan's text word by word, and says what was expected and found.

use super::{Fault, Manner, Stops};
use everdram::EngineKind;
use std::fmt::{Display, Formatter};
use std::str::{FromStr, SplitWhitespace};

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// Which line, from 1 on.
    pub line: usize,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Display for TextError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let TextError {
            line,
            expected,
            found,
        } = self;
        write!(f, "line {line}: expected {expected}, found {found}")
    }
}

impl std::error::Error for TextError {}

/// Bytes of a value.
const VALUE_BYTES: usize = 1 << 20;

/// The words of a line that are still to be read.
pub(crate) struct Words<'a> {
    number: usize,
    pub(crate) line: &'a str,
    left: Left<'a>,
}

enum Left<'a> {
    Line(SplitWhitespace<'a>),
    /// Parts of one word, the last first.
    Parts(Vec<&'a str>),
}

impl<'a> Words<'a> {
    pub(crate) fn of(number: usize, line: &'a str) -> Words<'a> {
        let line = line.trim();
        Words {
            number,
            line,
            left: Left::Line(line.split_whitespace()),
        }
    }

    /// The same line, with these words to be read.
    pub(crate) fn instead(&self, words: &[&'a str]) -> Words<'a> {
        Words {
            number: self.number,
            line: self.line,
            left: Left::Parts(words.iter().rev().copied().collect()),
        }
    }

    pub(crate) fn next(&mut self) -> Option<&'a str> {
        match &mut self.left {
            Left::Line(words) => words.next(),
            Left::Parts(words) => words.pop(),
        }
    }

    pub(crate) fn defect(&self, expected: &str) -> TextError {
        let mut found: String = self.line.chars().take(60).collect();
        if found.len() < self.line.len() {
            found.push_str("...");
        }
        TextError {
            line: self.number,
            expected: expected.into(),
            found: format!("{found:?}"),
        }
    }

    pub(crate) fn end(&mut self, expected: &str) -> Result<(), TextError> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(self.defect(expected)),
        }
    }

    pub(crate) fn number(&mut self, expected: &str) -> Result<u64, TextError> {
        let number = self.next().and_then(|word| word.parse().ok());
        number.ok_or_else(|| self.defect(expected))
    }

    pub(crate) fn small_number(&mut self, expected: &str) -> Result<u32, TextError> {
        let number = u32::try_from(self.number(expected)?);
        number.map_err(|_| self.defect(expected))
    }

    /// A number behind a letter.
    pub(crate) fn marked(&mut self, mark: char, expected: &str) -> Result<u64, TextError> {
        let digits = self.next().and_then(|word| word.strip_prefix(mark));
        let number = digits.and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| self.defect(expected))
    }

    pub(crate) fn bytes(&mut self, expected: &str) -> Result<Vec<u8>, TextError> {
        let word = self.next().unwrap_or_default();
        if word == "-" {
            return Ok(Vec::new());
        }
        let digits = word.as_bytes();
        let is_right = !digits.is_empty() && digits.len().is_multiple_of(2);
        if !is_right || digits.len() / 2 > VALUE_BYTES {
            return Err(self.defect(expected));
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
        let bytes = digits.as_chunks::<2>().0.iter();
        let bytes: Option<Vec<u8>> = bytes
            .map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?))
            .collect();
        bytes.ok_or_else(|| self.defect(expected))
    }

    /// The value of a line that has a name and a value.
    pub(crate) fn named<T: FromStr>(mut self, name: &str, expected: &str) -> Result<T, TextError> {
        let is_named = self.next() == Some(name);
        let value = self.next().and_then(|word| word.parse().ok());
        self.end(expected)?;
        value
            .filter(|_| is_named)
            .ok_or_else(|| self.defect(expected))
    }

    pub(crate) fn engine(self) -> Result<EngineKind, TextError> {
        let known: Vec<_> = EngineKind::ALL.iter().map(|engine| engine.name()).collect();
        let expected = format!("`engine NAME`, NAME one of {}", known.join(", "));
        let defect = self.defect(&expected);
        let engine = self.named("engine", &expected)?;
        match EngineKind::ALL.contains(&engine) {
            true => Ok(engine),
            false => Err(defect),
        }
    }

    pub(crate) fn stops(mut self) -> Result<Manner, TextError> {
        let expected = "`stops N N N`, after how many events each session stops, and then `again N N N` if it does so twice";
        self.next();
        let mut stops = Stops::default();
        for stop in &mut stops.first {
            *stop = self.small_number(expected)?;
        }
        match self.next() {
            None => return Ok(Manner::Stops(stops)),
            Some("again") => {}
            Some(_) => return Err(self.defect(expected)),
        }
        for stop in &mut stops.again {
            *stop = self.small_number(expected)?;
        }
        self.end(expected)?;
        Ok(Manner::Stops(stops))
    }

    pub(crate) fn fault(mut self) -> Result<Fault, TextError> {
        let expected = "`fault none`, `fault sync N`, `fault kill N`, `fault outage N M`, `fault room N` or \
                        `fault full N M`";
        let is_named = self.next() == Some("fault");
        let fault = match self.next() {
            Some("none") if is_named => Fault::None,
            Some("sync") if is_named => Fault::Sync(self.small_number(expected)?),
            Some("kill") if is_named => Fault::Kill(self.small_number(expected)?),
            Some("outage") if is_named => {
                Fault::Outage(self.small_number(expected)?, self.small_number(expected)?)
            }
            Some("room") if is_named => Fault::Room(self.number(expected)?),
            Some("full") if is_named => {
                Fault::Full(self.number(expected)?, self.small_number(expected)?)
            }
            _ => return Err(self.defect(expected)),
        };
        self.end(expected)?;
        Ok(fault)
    }
}
