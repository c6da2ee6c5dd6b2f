//! The Redis mass-insertion protocol: a stream of commands in the form that a client sends.
//!
//! The reader accepts commands that state data: SET (with EX, PX, EXAT, PXAT), SETEX, PSETEX, MSET, EXPIREAT,
//! PEXPIREAT, DEL, UNLINK and SELECT 0. It refuses conditions and all other commands, by name and byte
//! offset, and guesses nothing. It trusts no length: memory grows only with the bytes that have arrived.

use crate::client::request;
use crate::transfer::operation::Operation;
use anyhow::Context;
use everdram::engine::VALUE_BYTES_MAX;
use std::collections::VecDeque;
use std::io::{BufRead, Read};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most arguments of one command.
const ARGUMENTS_MAX: u64 = 1 << 20;

/// Appends a SET of the key, value and expiry.
pub(crate) fn write(into: &mut Vec<u8>, key: &[u8], value: &[u8], expires_at_ms: u64) {
    if expires_at_ms == 0 {
        request(into, &[b"SET", key, value]);
    } else {
        request(
            into,
            &[
                b"SET",
                key,
                value,
                b"PXAT",
                expires_at_ms.to_string().as_bytes(),
            ],
        );
    }
}

/// Reads commands as operations.
pub(crate) struct Reader<R> {
    input: R,
    offset: u64,
    /// The remaining changes of a command with several.
    waiting: VecDeque<Operation>,
}

impl<R: BufRead> Reader<R> {
    pub(crate) fn new(input: R) -> Reader<R> {
        Reader {
            input,
            offset: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The next operation; `None` at the end. An error gives the byte offset of its command.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Operation>> {
        loop {
            if let Some(operation) = self.waiting.pop_front() {
                return Ok(Some(operation));
            }
            let at = self.offset;
            let arguments = self.read_command().with_context(|| format!("byte {at}"))?;
            let Some(arguments) = arguments else {
                return Ok(None);
            };
            let operations = interpret(arguments).map_err(anyhow::Error::msg);
            self.waiting = operations.with_context(|| format!("byte {at}"))?;
        }
    }

    fn read_command(&mut self) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let count = self.read_header(b'*', ARGUMENTS_MAX)?;
        anyhow::ensure!(count > 0, "a command without a name");
        let mut arguments = Vec::new();
        for _ in 0..count {
            let length = self.read_header(b'$', VALUE_BYTES_MAX as u64)?;
            let mut argument = Vec::new();
            let read = (&mut self.input).take(length).read_to_end(&mut argument)?;
            self.offset += read as u64;
            anyhow::ensure!(read as u64 == length, "the file ends inside an argument");
            let mut end = [0; 2];
            self.input
                .read_exact(&mut end)
                .context("the file ends inside a command")?;
            self.offset += 2;
            anyhow::ensure!(end == *b"\r\n", "an argument that is longer than it says");
            arguments.push(argument);
        }
        Ok(Some(arguments))
    }

    /// A line such as `$11`.
    fn read_header(&mut self, kind: u8, most: u64) -> anyhow::Result<u64> {
        let mut line = Vec::new();
        self.offset += (&mut self.input).take(32).read_until(b'\n', &mut line)? as u64;
        let number = line
            .strip_prefix(&[kind])
            .and_then(|line| line.strip_suffix(b"\r\n"));
        let number = number.filter(|digits| digits.iter().all(u8::is_ascii_digit));
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        match number {
            Some(number) if number <= most => Ok(number),
            Some(number) => anyhow::bail!("{number}, more than the {most} that are possible"),
            None => anyhow::bail!(
                "expected `{}` and a number, found `{}`; commands are arrays of strings, ended by CR LF",
                char::from(kind),
                line.trim_ascii_end().escape_ascii()
            ),
        }
    }
}

fn interpret(mut arguments: Vec<Vec<u8>>) -> Result<VecDeque<Operation>, String> {
    let name = arguments.remove(0).to_ascii_uppercase();
    let operations = match (name.as_slice(), arguments.as_slice()) {
        (b"SET", [key, value, options @ ..]) => {
            let expires_at_ms = match options {
                [] => 0,
                [unit, number] => set_expiry(unit, number)?,
                _ => {
                    return Err("SET takes one of EX, PX, EXAT, PXAT here, nothing else".to_owned());
                }
            };
            vec![put(key, value, expires_at_ms)]
        }
        (b"SETEX", [key, number, value]) => vec![put(key, value, set_expiry(b"EX", number)?)],
        (b"PSETEX", [key, number, value]) => vec![put(key, value, set_expiry(b"PX", number)?)],
        (b"MSET", pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => pairs
            .chunks_exact(2)
            .filter_map(|pair| Some(put(pair.first()?, pair.get(1)?, 0)))
            .collect(),
        (b"EXPIREAT", [key, number]) => vec![expire(key, set_expiry(b"EXAT", number)?)],
        (b"PEXPIREAT", [key, number]) => vec![expire(key, set_expiry(b"PXAT", number)?)],
        (b"DEL" | b"UNLINK", keys) if !keys.is_empty() => keys
            .iter()
            .map(|key| Operation::Delete { key: key.clone() })
            .collect(),
        (b"SELECT", [database]) if database == b"0" => Vec::new(),
        _ => {
            let shown = name
                .get(..name.len().min(32))
                .unwrap_or_default()
                .escape_ascii();
            return Err(format!(
                "`{shown}` with {} arguments cannot be imported",
                arguments.len()
            ));
        }
    };
    operations.iter().try_for_each(Operation::check)?;
    Ok(operations.into())
}

fn put(key: &[u8], value: &[u8], expires_at_ms: u64) -> Operation {
    Operation::Put {
        key: key.to_vec(),
        value: value.to_vec(),
        expires_at_ms,
    }
}

fn expire(key: &[u8], expires_at_ms: u64) -> Operation {
    Operation::Expire {
        key: key.to_vec(),
        expires_at_ms,
    }
}

/// The moment of an option such as `EX 10` or `PXAT 1700000000000`, in Unix milliseconds.
fn set_expiry(unit: &[u8], number: &[u8]) -> Result<u64, String> {
    let invalid = || format!("expiry `{} {}`", unit.escape_ascii(), number.escape_ascii());
    let number: u64 = std::str::from_utf8(number)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(invalid)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis());
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    let moment = match unit.to_ascii_uppercase().as_slice() {
        b"EX" => number
            .checked_mul(1000)
            .and_then(|number| number.checked_add(now)),
        b"PX" => number.checked_add(now),
        b"EXAT" => number.checked_mul(1000),
        b"PXAT" => Some(number),
        _ => None,
    };
    moment.filter(|_| number > 0).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn read_all(text: &[u8]) -> anyhow::Result<Vec<Operation>> {
        let mut reader = Reader::new(text);
        std::iter::from_fn(|| reader.next().transpose()).collect()
    }

    fn requests(requests: &[&[&[u8]]]) -> Vec<u8> {
        let mut text = Vec::new();
        for arguments in requests {
            request(&mut text, arguments);
        }
        text
    }

    #[test]
    fn any_bytes_come_back() {
        let mut text = Vec::new();
        let mut expected = Vec::new();
        for (key, value, expires_at_ms) in [
            (&b"k"[..], &b""[..], 0),
            (b"\r\n", b"$3\r\nabc\r\n", 5),
            (b"\0\xff", b"\n", u64::MAX),
        ] {
            write(&mut text, key, value, expires_at_ms);
            expected.push(put(key, value, expires_at_ms));
        }
        assert_eq!(read_all(&text).unwrap(), expected);
    }

    #[test]
    fn commands_that_state_data_are_understood() {
        let text = requests(&[
            &[b"SELECT", b"0"],
            &[b"mset", b"a", b"1", b"b", b"2"],
            &[b"PEXPIREAT", b"a", b"77"],
            &[b"EXPIREAT", b"a", b"77"],
            &[b"del", b"a", b"b"],
            &[b"set", b"c", b"3", b"exat", b"9"],
        ]);
        let delete = |key: &[u8]| Operation::Delete { key: key.to_vec() };
        let expected = vec![
            put(b"a", b"1", 0),
            put(b"b", b"2", 0),
            expire(b"a", 77),
            expire(b"a", 77_000),
            delete(b"a"),
            delete(b"b"),
            put(b"c", b"3", 9000),
        ];
        assert_eq!(read_all(&text).unwrap(), expected);
    }

    #[test]
    fn everything_else_is_refused_with_its_offset() {
        let good = requests(&[&[b"SET", b"k", b"v"]]);
        for bad in [
            requests(&[&[b"FLUSHALL"]]),
            requests(&[&[b"SET", b"k"]]),
            requests(&[&[b"SET", b"k", b"v", b"NX"]]),
            requests(&[&[b"SET", b"k", b"v", b"EX", b"-1"]]),
            requests(&[&[b"SET", b"k", b"v", b"EX", b"99999999999999999999"]]),
            requests(&[&[b"SET", b"", b"v"]]),
            requests(&[&[b"MSET", b"k"]]),
            requests(&[&[b"SELECT", b"1"]]),
            b"SET k v\r\n".to_vec(),
            b"*0\r\n".to_vec(),
            b"*-1\r\n".to_vec(),
            b"*99999999999999999999\r\n".to_vec(),
            b"*2\r\n$999999999999\r\n".to_vec(),
            b"*1\r\n$3\r\nDELETE\r\n".to_vec(),
            b"*1\n".to_vec(),
        ] {
            let text = [good.clone(), bad].concat();
            let error = format!("{:#}", read_all(&text).unwrap_err());
            assert!(
                error.starts_with(&format!("byte {}: ", good.len())),
                "{error}"
            );
        }
    }

    #[test]
    fn cut_and_damaged_files_never_panic() {
        let seed = rand::rng().random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let text = requests(&[
            &[b"SET", b"key", b"value", b"PXAT", b"123"],
            &[b"MSET", b"a", b"1"],
        ]);
        for cut in 1..text.len() {
            let read = read_all(&text[..cut]);
            assert!(
                read.is_err() || read.is_ok_and(|operations| operations.len() == 1),
                "cut {cut}"
            );
        }
        for _ in 0..5000 {
            let mut damaged = text.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..damaged.len());
                damaged[at] = random.random();
            }
            let _ = read_all(&damaged);
        }
    }
}
