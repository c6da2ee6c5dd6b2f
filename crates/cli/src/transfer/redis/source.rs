//! Bytes of a file, read forwards: where the reader is, and how much is left.
//!
//! No length is trusted: what does not fit into the rest of the file is [`Trouble::Cut`] before anything is
//! allocated for it.

use crate::transfer::redis::crc64;
use std::fmt;
use std::io::{BufRead, ErrorKind, Read};

/// Bytes that are skipped at once.
const SKIP_BYTES: u64 = 64 << 10;

/// Why reading ended.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The file ends in the middle of something.
    Cut,
    /// Bytes that cannot be.
    Bad(String),
    /// The system's answer.
    Io(std::io::Error),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Cut => f.write_str("the file ends too early, or a length is too large"),
            Trouble::Bad(what) => f.write_str(what),
            Trouble::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Trouble {}

/// The file.
pub(crate) struct Source<R> {
    input: R,
    offset: u64,
    bytes: u64,
    sum: u64,
}

impl<R: BufRead> Source<R> {
    /// A file of `bytes` bytes.
    pub(crate) fn new(input: R, bytes: u64) -> Source<R> {
        Source {
            input,
            offset: 0,
            bytes,
            sum: 0,
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes that are left.
    pub(crate) fn rest(&self) -> u64 {
        self.bytes.saturating_sub(self.offset)
    }

    /// CRC-64 of all bytes read, those of lines left out.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// Whether the rest of the file begins with `text`. Reads nothing.
    pub(crate) fn begins_with(&mut self, text: &[u8]) -> Result<bool, Trouble> {
        Ok(self
            .input
            .fill_buf()
            .map_err(Trouble::Io)?
            .starts_with(text))
    }

    /// Appends the next `count` bytes to `into`.
    pub(crate) fn append(&mut self, count: u64, into: &mut Vec<u8>) -> Result<(), Trouble> {
        self.expect(count)?;
        let start = into.len();
        let read = (&mut self.input).take(count).read_to_end(into);
        let read = read.map_err(Trouble::Io)? as u64;
        self.note(into.get(start..).unwrap_or_default());
        // The file was longer when it was opened.
        if read < count {
            Err(Trouble::Cut)
        } else {
            Ok(())
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Trouble> {
        self.expect(N as u64)?;
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => self.note(&bytes),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(Trouble::Cut),
            Err(error) => return Err(Trouble::Io(error)),
        }
        Ok(bytes)
    }

    /// Reads `count` bytes and forgets them.
    pub(crate) fn skip(&mut self, mut count: u64) -> Result<(), Trouble> {
        self.expect(count)?;
        let mut step = Vec::new();
        while count > 0 {
            step.clear();
            self.append(count.min(SKIP_BYTES), &mut step)?;
            count -= step.len() as u64;
        }
        Ok(())
    }

    fn expect(&self, count: u64) -> Result<(), Trouble> {
        if count > self.rest() {
            Err(Trouble::Cut)
        } else {
            Ok(())
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        self.offset += bytes.len() as u64;
        self.sum = crc64::update(self.sum, bytes);
    }

    /// Replaces `into` by the next line with its line feed, or by what the file has of it, or by `most`
    /// bytes.
    pub(crate) fn line(&mut self, most: u64, into: &mut Vec<u8>) -> Result<(), Trouble> {
        into.clear();
        let most = most.min(self.rest());
        let read = (&mut self.input).take(most).read_until(b'\n', into);
        self.offset += read.map_err(Trouble::Io)? as u64;
        Ok(())
    }
}
