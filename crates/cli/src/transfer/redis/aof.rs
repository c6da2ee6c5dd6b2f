//! One append-only file as requests: arrays of strings, between them annotations (`#...`), which are skipped.
//!
//! A file that ends inside a request is [`Trouble::Cut`]; whether that is an error is for others to say.

use crate::transfer::redis::source::{Source, Trouble};
use everdram::engine::VALUE_BYTES_MAX;
use everdram_resp::replay::REQUEST_BYTES_MAX;
use std::io::BufRead;

/// Longest annotation that Redis skips, with its line feed.
const ANNOTATION_BYTES_MAX: u64 = 1023;
/// Longest line with a number.
const NUMBER_BYTES_MAX: u64 = 32;
/// Fewest bytes of an argument: `$0`, and two line ends.
const ARGUMENT_BYTES_MIN: u64 = 6;

/// One request.
#[derive(Default)]
pub(crate) struct Request {
    /// Offset in the file.
    pub(crate) at: u64,
    /// The arguments, the command's name first, one behind the other.
    pub(crate) bytes: Vec<u8>,
    /// Start and end of each argument in `bytes`.
    pub(crate) spans: Vec<(u32, u32)>,
    line: Vec<u8>,
}

impl Request {
    /// Argument `index`, or nothing if there are fewer.
    pub(crate) fn argument(&self, index: usize) -> &[u8] {
        let span = self.spans.get(index).copied().unwrap_or_default();
        self.bytes
            .get(span.0 as usize..span.1 as usize)
            .unwrap_or_default()
    }

    /// The command's name in upper case.
    pub(crate) fn name(&self) -> Vec<u8> {
        self.argument(0).to_ascii_uppercase()
    }

    /// Replaces the request by these arguments.
    pub(crate) fn set(&mut self, arguments: &[&[u8]]) {
        self.bytes.clear();
        self.spans.clear();
        for argument in arguments {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(argument);
            self.push(start);
        }
    }

    fn push(&mut self, start: usize) {
        // Both are at most `REQUEST_BYTES_MAX`.
        self.spans.push((start as u32, self.bytes.len() as u32));
    }

    /// Reads the next request; `false` at the end of the file.
    pub(crate) fn read<R: BufRead>(&mut self, source: &mut Source<R>) -> Result<bool, Trouble> {
        loop {
            self.at = source.offset();
            if source.rest() == 0 {
                return Ok(false);
            }
            if !source.begins_with(b"#")? {
                break;
            }
            source.line(ANNOTATION_BYTES_MAX, &mut self.line)?;
            if self.line.last() != Some(&b'\n') {
                return Err(match source.rest() {
                    0 => Trouble::Cut,
                    _ => Trouble::Bad(format!(
                        "an annotation of more than {ANNOTATION_BYTES_MAX} bytes"
                    )),
                });
            }
        }
        self.bytes.clear();
        self.spans.clear();
        let count = self.number(source, b'*')?;
        if count == 0 {
            return Err(Trouble::Bad("a request without a command".to_owned()));
        }
        if count > source.rest() / ARGUMENT_BYTES_MIN {
            return Err(Trouble::Cut);
        }
        (0..count).try_for_each(|_| self.read_argument(source))?;
        Ok(true)
    }

    fn read_argument<R: BufRead>(&mut self, source: &mut Source<R>) -> Result<(), Trouble> {
        let length = self.number(source, b'$')?;
        let start = self.bytes.len();
        if length > VALUE_BYTES_MAX as u64 || length > (REQUEST_BYTES_MAX - start) as u64 {
            return Err(Trouble::Bad(format!(
                "{length} bytes for an argument; values have at most {VALUE_BYTES_MAX}"
            )));
        }
        source.append(length, &mut self.bytes)?;
        self.push(start);
        self.line.clear();
        source.append(2, &mut self.line)?;
        match self.line.as_slice() {
            b"\r\n" => Ok(()),
            _ => Err(Trouble::Bad(
                "an argument that is longer than it says".to_owned(),
            )),
        }
    }

    /// A line such as `$11`.
    fn number<R: BufRead>(&mut self, source: &mut Source<R>, kind: u8) -> Result<u64, Trouble> {
        source.line(NUMBER_BYTES_MAX, &mut self.line)?;
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let is_whole = text.len() < self.line.len() && text.ends_with(b"\r");
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let digits = match text.split_first() {
            // The file ends before the line.
            None if source.rest() == 0 && self.line.is_empty() => return Err(Trouble::Cut),
            Some((&first, digits)) if first == kind && digits.iter().all(u8::is_ascii_digit) => {
                digits
            }
            _ => return Err(self.unexpected(kind)),
        };
        if !is_whole {
            return Err(match source.rest() {
                0 => Trouble::Cut,
                _ => self.unexpected(kind),
            });
        }
        let number = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| self.unexpected(kind))
    }

    fn unexpected(&self, kind: u8) -> Trouble {
        Trouble::Bad(format!(
            "expected `{}` and a number, found `{}`",
            char::from(kind),
            self.line.escape_ascii()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests, and how reading ended, with the offset of the request that it ended in.
    fn read(text: &[u8]) -> (Vec<Vec<Vec<u8>>>, String, u64) {
        let mut source = Source::new(text, text.len() as u64);
        let (mut request, mut all) = (Request::default(), Vec::new());
        let end = loop {
            match request.read(&mut source) {
                Ok(false) => break "end".to_owned(),
                Ok(true) => all.push(
                    (0..request.spans.len())
                        .map(|at| request.argument(at).to_vec())
                        .collect(),
                ),
                Err(Trouble::Cut) => break "cut".to_owned(),
                Err(trouble) => break trouble.to_string(),
            }
        };
        (all, end, request.at)
    }

    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$0\r\n\r\n";

    #[test]
    fn requests_and_annotations() {
        let text = [b"#TS:1700000000\r\n", SET, b"#e1 of whomever\r\n#\n", SET].concat();
        let set = vec![b"SET".to_vec(), b"k\r\n".to_vec(), Vec::new()];
        assert_eq!(
            read(&text),
            (vec![set.clone(), set], "end".into(), text.len() as u64)
        );
        assert_eq!(read(b""), (vec![], "end".into(), 0));
    }

    #[test]
    fn every_cut_is_one_and_names_the_request() {
        for cut in 1..SET.len() {
            let text = [SET, &SET[..cut]].concat();
            let (requests, end, at) = read(&text);
            assert_eq!(
                (requests.len(), end.as_str(), at),
                (1, "cut", SET.len() as u64),
                "{cut}"
            );
        }
    }

    #[test]
    fn what_is_no_request_is_said() {
        let long = [b"#".repeat(1024), b"\r\n".to_vec()].concat();
        for (text, why) in [
            (&b"\0\0\0\0"[..], "expected `*`"),
            (b"*x\r\n", "expected `*`"),
            (b"*-1\r\n", "expected `*`"),
            (b"*0\r\n", "without a command"),
            (b"*1\r\n+OK\r\n-----", "expected `$`"),
            (b"*1\r\n$2\r\nabc\r\n", "longer than it says"),
            (b"*1\r\n$536870913\r\nabc\r\n", "at most 536870912"),
            (b"*99999999999999999999\r\n", "expected `*`"),
            (b"*1\n$2\r\nab\r\n", "expected `*`"),
            (b"*99999999\r\n$4\r\nPING\r\n", "cut"),
            (b"*1\r\n$536870912\r\nabc\r\n", "cut"),
            (b"SET k v\r\n", "expected `*`"),
            (&long, "annotation"),
        ] {
            let (requests, end, at) = read(text);
            assert!(
                requests.is_empty() && at == 0 && end.contains(why),
                "{end}: {}",
                text.escape_ascii()
            );
        }
    }
}
