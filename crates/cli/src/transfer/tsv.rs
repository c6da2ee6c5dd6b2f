//! TSV: one key a line; columns key, value and, if it expires, the expiry in Unix milliseconds.
//!
//! `\t` `\n` `\r` `\\` stand for a tab, a newline, a carriage return and a backslash, `\xHH` for any byte.
//! The writer produces UTF-8 and escapes every other control character and invalid byte, so that any key and
//! value returns byte for byte. The reader takes a carriage return at the end of a line as part of the line's
//! end.

use crate::transfer::operation::Operation;
use anyhow::Context;
use everdram::engine::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::io::{BufRead, Read};

/// Longest line: both columns fully escaped, and some room for the rest.
const LINE_BYTES_MAX: u64 = 4 * (KEY_BYTES_MAX as u64 + VALUE_BYTES_MAX as u64) + 64;

/// Appends one line.
pub(crate) fn write(into: &mut Vec<u8>, key: &[u8], value: &[u8], expires_at_ms: u64) {
    escape(into, key);
    into.push(b'\t');
    escape(into, value);
    if expires_at_ms != 0 {
        into.push(b'\t');
        into.extend_from_slice(expires_at_ms.to_string().as_bytes());
    }
    into.push(b'\n');
}

fn escape(into: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            match byte {
                b'\t' => into.extend_from_slice(b"\\t"),
                b'\n' => into.extend_from_slice(b"\\n"),
                b'\r' => into.extend_from_slice(b"\\r"),
                b'\\' => into.extend_from_slice(b"\\\\"),
                byte if byte.is_ascii_control() => escape_byte(into, byte),
                byte => into.push(byte),
            }
        }
        for &byte in chunk.invalid() {
            escape_byte(into, byte);
        }
    }
}

fn escape_byte(into: &mut Vec<u8>, byte: u8) {
    into.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b'\\') => b'\\',
            Some(b'x') => match (hex_digit(rest.next()), hex_digit(rest.next())) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err("`\\x` without two hexadecimal digits".to_owned()),
            },
            _ => {
                return Err(
                    "a backslash that starts no escape: use \\t \\n \\r \\\\ or \\xHH".to_owned(),
                );
            }
        });
    }
    Ok(bytes)
}

fn hex_digit(byte: Option<&u8>) -> Option<u8> {
    u8::try_from(char::from(*byte?).to_digit(16)?).ok()
}

/// Reads lines as operations.
pub(crate) struct Reader<R> {
    input: R,
    line: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Reader<R> {
    pub(crate) fn new(input: R) -> Reader<R> {
        Reader {
            input,
            line: 0,
            buffer: Vec::new(),
        }
    }

    /// The next operation; `None` at the end. An error gives the number of its line.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Operation>> {
        self.buffer.clear();
        self.line += 1;
        let limited = &mut (&mut self.input).take(LINE_BYTES_MAX);
        if limited.read_until(b'\n', &mut self.buffer)? == 0 {
            return Ok(None);
        }
        let line = match self.buffer.strip_suffix(b"\n") {
            Some(line) => line,
            None if self.buffer.len() as u64 == LINE_BYTES_MAX => {
                anyhow::bail!("line {}: longer than any key and value can be", self.line)
            }
            None => &self.buffer,
        };
        let parsed = parse(line.strip_suffix(b"\r").unwrap_or(line)).map_err(anyhow::Error::msg);
        parsed
            .with_context(|| format!("line {}", self.line))
            .map(Some)
    }
}

fn parse(line: &[u8]) -> Result<Operation, String> {
    let mut columns = line.split(|&byte| byte == b'\t');
    let key = unescape(columns.next().unwrap_or_default())?;
    let value = columns.next().ok_or("no tab between key and value")?;
    let value = unescape(value)?;
    let expires_at_ms = columns.next().map_or(Ok(0), expiry)?;
    if columns.next().is_some() {
        return Err("more than three columns; a tab inside a value is written \\t".to_owned());
    }
    let operation = Operation::Put {
        key,
        value,
        expires_at_ms,
    };
    operation.check()?;
    Ok(operation)
}

fn expiry(text: &[u8]) -> Result<u64, String> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("expiry `{}`: Unix milliseconds", text.escape_ascii()))
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

    #[test]
    fn any_bytes_come_back() {
        let seed = rand::rng().random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut text = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..500 {
            let mut key = vec![0; random.random_range(1..20)];
            let mut value = vec![0; random.random_range(0..60)];
            random.fill(&mut key[..]);
            random.fill(&mut value[..]);
            if random.random_bool(0.2) {
                value = "täb\tline\nreturn\r\\x41 \u{2028}".as_bytes().to_vec();
            }
            let expires_at_ms = if random.random_bool(0.5) {
                random.random()
            } else {
                0
            };
            write(&mut text, &key, &value, expires_at_ms);
            expected.push(Operation::Put {
                key,
                value,
                expires_at_ms,
            });
        }
        assert_eq!(read_all(&text).unwrap(), expected);
        assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 500);
        assert!(std::str::from_utf8(&text).is_ok());
    }

    #[test]
    fn lines_of_other_programs_are_read() {
        let put = |key: &str, value: &str| Operation::Put {
            key: key.into(),
            value: value.into(),
            expires_at_ms: 0,
        };
        let expected = vec![put("a", "1"), put("b", ""), put("c", "A")];
        assert_eq!(read_all(b"a\t1\r\nb\t\nc\t\\x41").unwrap(), expected);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, word) in [
            (&b"a\t1\nb"[..], 2, "no tab"),
            (b"a\t1\n\n", 2, "no tab"),
            (b"\t1", 1, "key of 0 bytes"),
            (b"a\t1\t2\t3", 1, "three columns"),
            (b"a\t1\t-2", 1, "expiry"),
            (b"a\t1\t99999999999999999999", 1, "expiry"),
            (b"a\t\\q", 1, "backslash"),
            (b"a\t\\", 1, "backslash"),
            (b"a\t\\x4", 1, "hexadecimal"),
            (b"a\t\\xg0", 1, "hexadecimal"),
        ] {
            let error = format!("{:#}", read_all(text).unwrap_err());
            assert!(error.starts_with(&format!("line {line}: ")), "{error}");
            assert!(error.contains(word), "{error}");
        }
    }
}
