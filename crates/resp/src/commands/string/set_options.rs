//! The options of SET and GETEX, which share a grammar: at most one kind of expiry, conditions, and GET. An
//! option may be repeated; of a repeated expiry the last one counts.

use super::SYNTAX;
use crate::request::args::Args;
use crate::request::number::parse_i64;

/// The command whose options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Set,
    Getex,
}

/// The unit of an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// EX: seconds from now.
    Seconds,
    /// PX: milliseconds from now.
    Milliseconds,
    /// EXAT: Unix seconds.
    AtSeconds,
    /// PXAT: Unix milliseconds.
    AtMilliseconds,
}

/// Why an expiry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    NotAnInteger,
    /// Not positive, or out of range.
    Invalid,
}

/// Parsed options; the expiry is not checked yet, because Redis does other things first.
#[derive(Default)]
pub(super) struct SetOptions<'a> {
    pub(super) only_if_absent: bool,
    pub(super) only_if_present: bool,
    pub(super) answer_value: bool,
    pub(super) keep_expiry: bool,
    pub(super) persist: bool,
    expiry: Option<(Unit, &'a [u8])>,
}

impl<'a> SetOptions<'a> {
    /// Parses the arguments from `first` on.
    pub(super) fn parse(
        args: &Args<'a>,
        first: usize,
        command: Command,
    ) -> Result<Self, &'static str> {
        let mut options = SetOptions::default();
        let mut index = first;
        while index < args.len() {
            let option = args.get(index);
            index += 1;
            if let Some(unit) = Unit::parse(option) {
                if index >= args.len() || !options.takes_expiry(unit) {
                    return Err(SYNTAX);
                }
                options.expiry = Some((unit, args.get(index)));
                index += 1;
            } else if !options.take_word(option, command) {
                return Err(SYNTAX);
            }
        }
        Ok(options)
    }

    fn takes_expiry(&self, unit: Unit) -> bool {
        !self.keep_expiry && !self.persist && self.expiry.is_none_or(|(before, _)| before == unit)
    }

    fn take_word(&mut self, option: &[u8], command: Command) -> bool {
        let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
        match command {
            Command::Set if is(b"NX") && !self.only_if_present => self.only_if_absent = true,
            Command::Set if is(b"XX") && !self.only_if_absent => self.only_if_present = true,
            Command::Set if is(b"GET") => self.answer_value = true,
            Command::Set if is(b"KEEPTTL") && self.expiry.is_none() => self.keep_expiry = true,
            Command::Getex if is(b"PERSIST") && self.expiry.is_none() => self.persist = true,
            _ => return false,
        }
        true
    }

    /// The expiry in Unix milliseconds, if given.
    pub(super) fn expires_at_ms(&self, now_ms: u64) -> Result<Option<u64>, Expiry> {
        self.expiry
            .map(|(unit, text)| resolve(unit, text, now_ms))
            .transpose()
    }

    /// Whether to store the value unconditionally, and nothing else.
    pub(super) fn is_plain(&self) -> bool {
        !(self.only_if_absent || self.only_if_present || self.answer_value || self.keep_expiry)
    }
}

impl Unit {
    fn parse(option: &[u8]) -> Option<Unit> {
        let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
        match option.len() {
            2 if is(b"EX") => Some(Unit::Seconds),
            2 if is(b"PX") => Some(Unit::Milliseconds),
            4 if is(b"EXAT") => Some(Unit::AtSeconds),
            4 if is(b"PXAT") => Some(Unit::AtMilliseconds),
            _ => None,
        }
    }
}

/// Converts a positive number of the unit to Unix milliseconds.
pub(super) fn resolve(unit: Unit, text: &[u8], now_ms: u64) -> Result<u64, Expiry> {
    let number = parse_i64(text).ok_or(Expiry::NotAnInteger)?;
    let factor = if matches!(unit, Unit::Seconds | Unit::AtSeconds) {
        1000
    } else {
        1
    };
    let base = if matches!(unit, Unit::Seconds | Unit::Milliseconds) {
        now_ms
    } else {
        0
    };
    let in_range = || {
        number
            .checked_mul(factor)?
            .checked_add_unsigned(base)
            .filter(|_| number > 0)
    };
    in_range()
        .and_then(|at| u64::try_from(at).ok())
        .ok_or(Expiry::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiries_are_positive_and_fit() {
        assert_eq!(resolve(Unit::Seconds, b"2", 500), Ok(2500));
        assert_eq!(resolve(Unit::AtSeconds, b"2", 500), Ok(2000));
        assert_eq!(
            resolve(Unit::AtMilliseconds, b"9223372036854775807", 500),
            Ok(i64::MAX as u64)
        );
        assert_eq!(
            resolve(Unit::Milliseconds, b"9223372036854775807", 500),
            Err(Expiry::Invalid)
        );
        assert_eq!(
            resolve(Unit::Seconds, b"9223372036854776", 0),
            Err(Expiry::Invalid)
        );
        assert_eq!(resolve(Unit::Seconds, b"0", 500), Err(Expiry::Invalid));
        assert_eq!(
            resolve(Unit::Milliseconds, b"-1", 500),
            Err(Expiry::Invalid)
        );
        assert_eq!(resolve(Unit::Seconds, b"x", 500), Err(Expiry::NotAnInteger));
    }
}
