//! RDB files, up to the version of Redis 7.0: strings are read, other types are gone through without being
//! understood.
//!
//! Invariants: an error names the reason, and the source's offset the place; every length is checked against
//! the rest of the file; the end is believed only with its checksum, or with the zero that says there is
//! none. Keys whose expiry has passed are not left out: the commands behind the RDB part of an AOF count on
//! them.

use crate::transfer::redis::lzf;
use crate::transfer::redis::source::{Source, Trouble};
use std::io::BufRead;

/// How an RDB file begins; four digits of its version follow.
pub(crate) const MAGIC: &[u8] = b"REDIS";
/// The version that Redis 7.0 writes.
const VERSION_MAX: u32 = 10;

/// Something in the file that is data, or may be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset of its type in the file.
    pub(crate) at: u64,
    pub(crate) database: u64,
    /// Empty for a library of functions.
    pub(crate) key: Vec<u8>,
    pub(crate) content: Content,
    /// Unix milliseconds; 0 = never.
    pub(crate) expires_at_ms: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    String(Vec<u8>),
    /// Skipped; its type.
    Other(&'static str),
}

/// A length, or the encoding of a string.
enum Length {
    Plain(u64),
    Encoded(u8),
}

/// Reads an RDB file, or the RDB part of an AOF.
pub(crate) struct Reader<'s, R> {
    source: &'s mut Source<R>,
    version: u32,
    database: u64,
    expires_at_ms: u64,
    packed: Vec<u8>,
}

impl<'s, R: BufRead> Reader<'s, R> {
    /// Checks the beginning.
    pub(crate) fn new(source: &'s mut Source<R>) -> Result<Reader<'s, R>, Trouble> {
        let [b'R', b'E', b'D', b'I', b'S', digits @ ..] = source.array::<9>()? else {
            return Err(Trouble::Bad("it is no RDB file".to_owned()));
        };
        let version = std::str::from_utf8(&digits)
            .ok()
            .and_then(|digits| digits.parse().ok());
        let version = version.filter(|version| *version > 0);
        let version =
            version.ok_or_else(|| Trouble::Bad("an RDB version that is no number".to_owned()))?;
        if version > VERSION_MAX {
            return Err(Trouble::Bad(format!(
                "RDB version {version}, and {VERSION_MAX} is the newest that everdram reads: in that server, \
                 CONFIG SET aof-use-rdb-preamble no and BGREWRITEAOF write the same as commands"
            )));
        }
        Ok(Reader {
            source,
            version,
            database: 0,
            expires_at_ms: 0,
            packed: Vec::new(),
        })
    }

    /// Where it is in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// The next entry; `None` at the end, whose checksum was right.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, Trouble> {
        loop {
            let at = self.source.offset();
            let [kind] = self.source.array()?;
            match kind {
                // EXPIRETIME and EXPIRETIME_MS of the next key.
                253 => {
                    self.expires_at_ms =
                        u64::from(u32::from_le_bytes(self.source.array()?)).saturating_mul(1000)
                }
                252 => self.expires_at_ms = expiry(i64::from_le_bytes(self.source.array()?)),
                // FREQ and IDLE of the next key.
                249 => self.source.skip(1)?,
                248 => _ = self.count()?,
                // SELECTDB, RESIZEDB, AUX.
                254 => self.database = self.count()?,
                251 => self.skip_parts("nn")?,
                250 => self.skip_parts("ss")?,
                // FUNCTION2.
                245 => {
                    self.skip_string()?;
                    return Ok(Some(self.entry(at, Vec::new(), Content::Other("function"))));
                }
                246 | 247 => {
                    let what = if kind == 246 {
                        "functions of a test version"
                    } else {
                        "data of a module"
                    };
                    return Err(Trouble::Bad(format!("{what}, which cannot be read")));
                }
                255 => return self.check_sum().map(|()| None),
                0 => {
                    let key = self.string()?;
                    let value = self.string()?;
                    return Ok(Some(self.entry(at, key, Content::String(value))));
                }
                other => {
                    let key = self.string()?;
                    let name = self.skip_value(other, &key)?;
                    return Ok(Some(self.entry(at, key, Content::Other(name))));
                }
            }
        }
    }

    fn entry(&mut self, at: u64, key: Vec<u8>, content: Content) -> Entry {
        Entry {
            at,
            database: self.database,
            key,
            content,
            expires_at_ms: std::mem::take(&mut self.expires_at_ms),
        }
    }

    fn check_sum(&mut self) -> Result<(), Trouble> {
        if self.version < 5 {
            return Ok(());
        }
        let expected = self.source.sum();
        let found = u64::from_le_bytes(self.source.array()?);
        match found == expected || found == 0 {
            true => Ok(()),
            false => Err(Trouble::Bad(format!(
                "checksum {found:016x} instead of {expected:016x}: damaged"
            ))),
        }
    }

    fn length(&mut self) -> Result<Length, Trouble> {
        let [first] = self.source.array()?;
        let low = u64::from(first & 0x3f);
        Ok(match first {
            0x00..=0x3f => Length::Plain(low),
            0x40..=0x7f => {
                let [second] = self.source.array()?;
                Length::Plain(low << 8 | u64::from(second))
            }
            // The only numbers of the format in network order.
            0x80 => Length::Plain(u64::from(u32::from_le_bytes(reversed(
                self.source.array()?,
            )))),
            0x81 => Length::Plain(u64::from_le_bytes(reversed(self.source.array()?))),
            0xc0..=0xff => Length::Encoded(first & 0x3f),
            _ => {
                return Err(Trouble::Bad(format!(
                    "a length that begins with {first:#04x}"
                )));
            }
        })
    }

    fn count(&mut self) -> Result<u64, Trouble> {
        match self.length()? {
            Length::Plain(count) => Ok(count),
            Length::Encoded(_) => Err(Trouble::Bad("a string where a number must be".to_owned())),
        }
    }

    fn string(&mut self) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        match self.length()? {
            Length::Plain(length) => self.source.append(length, &mut bytes)?,
            Length::Encoded(0) => {
                bytes = i8::from_le_bytes(self.source.array()?).to_string().into()
            }
            Length::Encoded(1) => {
                bytes = i16::from_le_bytes(self.source.array()?).to_string().into()
            }
            Length::Encoded(2) => {
                bytes = i32::from_le_bytes(self.source.array()?).to_string().into()
            }
            Length::Encoded(3) => {
                let (packed, length) = (self.count()?, self.count()?);
                let wrong = || Trouble::Bad("a string that LZF did not pack".to_owned());
                self.packed.clear();
                self.source.append(packed, &mut self.packed)?;
                let length = Some(length).filter(|length| lzf::can_become(packed, *length));
                let length = length.and_then(|length| usize::try_from(length).ok());
                lzf::unpack(&self.packed, length.ok_or_else(wrong)?, &mut bytes)
                    .ok_or_else(wrong)?;
            }
            Length::Encoded(other) => {
                return Err(Trouble::Bad(format!("a string with encoding {other}")));
            }
        }
        Ok(bytes)
    }

    fn skip_string(&mut self) -> Result<(), Trouble> {
        match self.length()? {
            Length::Plain(length) => self.source.skip(length),
            Length::Encoded(number @ 0..=2) => self.source.skip(1 << number),
            Length::Encoded(3) => {
                let (packed, _) = (self.count()?, self.count()?);
                self.source.skip(packed)
            }
            Length::Encoded(other) => Err(Trouble::Bad(format!("a string with encoding {other}"))),
        }
    }

    /// Goes through a value that is no string; returns the name of its type.
    fn skip_value(&mut self, kind: u8, key: &[u8]) -> Result<&'static str, Trouble> {
        let (name, parts) = match kind {
            1 | 14 => ("list", Some("s")),
            18 => ("list", Some("ns")),
            2 => ("set", Some("s")),
            3 => ("sorted set", Some("sf")),
            5 => ("sorted set", Some("s8")),
            4 => ("hash", Some("ss")),
            // Packed into one string.
            10 => ("list", None),
            11 => ("set", None),
            12 | 17 => ("sorted set", None),
            9 | 13 | 16 => ("hash", None),
            15 | 19 => return self.skip_stream(kind == 19).map(|()| "stream"),
            _ => {
                let is_known = kind == 6 || kind == 7;
                let what = if is_known {
                    "a type of a module"
                } else {
                    "an unknown type"
                };
                let key = crate::findings::key(key);
                return Err(Trouble::Bad(format!(
                    "key {key} has {what} ({kind}), which cannot be read"
                )));
            }
        };
        match parts {
            Some(parts) => self.skip_each(parts)?,
            None => self.skip_string()?,
        }
        Ok(name)
    }

    fn skip_stream(&mut self, is_newer: bool) -> Result<(), Trouble> {
        self.skip_each("ss")?;
        self.skip_parts(if is_newer { "nnnnnnnn" } else { "nnn" })?;
        for _ in 0..self.count()? {
            self.skip_parts(if is_newer { "snnn" } else { "snn" })?;
            // Entries that wait for an acknowledgement: identity, time, count of deliveries.
            self.skip_each("888n")?;
            for _ in 0..self.count()? {
                self.skip_parts("s8")?;
                self.skip_each("88")?;
            }
        }
        Ok(())
    }

    /// Skips a count, and these parts as often as it says.
    fn skip_each(&mut self, parts: &str) -> Result<(), Trouble> {
        let count = self.count()?;
        (0..count).try_for_each(|_| self.skip_parts(parts))
    }

    /// Skips for each letter: a number, a string, a fraction as text, or 8 bytes.
    fn skip_parts(&mut self, parts: &str) -> Result<(), Trouble> {
        parts.bytes().try_for_each(|part| match part {
            b'n' => self.count().map(drop),
            b's' => self.skip_string(),
            b'f' => match self.source.array()? {
                // Not a number, and both infinities.
                [253..=255] => Ok(()),
                [digits] => self.source.skip(u64::from(digits)),
            },
            _ => self.source.skip(8),
        })
    }
}

/// A moment before 1970 has passed, as 1 ms after it has.
fn expiry(ms: i64) -> u64 {
    u64::try_from(ms.max(1)).unwrap_or(1)
}

fn reversed<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    bytes.reverse();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::redis::crc64;

    /// A file of this body, with its end and its checksum.
    fn file(body: &[u8]) -> Vec<u8> {
        let mut file = [&b"REDIS0010"[..], body, b"\xff"].concat();
        let sum = crc64::update(0, &file);
        file.extend_from_slice(&sum.to_le_bytes());
        file
    }

    /// The entries, and the error that ended reading, with its offset.
    fn read(file: &[u8]) -> (Vec<Entry>, Option<(u64, String)>) {
        let mut source = Source::new(file, file.len() as u64);
        let mut entries = Vec::new();
        let mut go = || {
            let mut reader = Reader::new(&mut source)?;
            while let Some(entry) = reader.next()? {
                entries.push(entry);
            }
            Ok::<(), Trouble>(())
        };
        let error = go().err().map(|trouble| trouble.to_string());
        (entries, error.map(|error| (source.offset(), error)))
    }

    fn string(value: &[u8]) -> Content {
        Content::String(value.to_vec())
    }

    /// Every kind of length, string, expiry and type that Redis 7.0 writes.
    const BODY: &[&[u8]] = &[
        b"\xfa\x09redis-ver\x067.0.15\xfa\x01n\xc0\x05\xf5\x03lib\xfe\x00\xfb\x05\x02",
        b"\x00\x01a\x05value",
        b"\xfc\x88\x13\0\0\0\0\0\0\xf9\x07\x00\x01b\xc0\xfe",
        b"\xfd\x02\0\0\0\xf8\x81\0\0\0\0\0\0\0\x09\x00\x01c\xc1\x00\x80",
        b"\x00\x01d\xc2\xff\xff\xff\x7f",
        b"\x00\x01e\xc3\x06\x0c\x01xy\xe0\x01\x01",
        b"\x00\x40\x02fg\x80\0\0\0\x01h",
        b"\x01\x01l\x02\x01a\x01b\x12\x01q\x01\x02\x03abc\x0e\x01q\x01\x03abc\x0a\x01q\x03abc",
        b"\x02\x01s\x01\x01m\x0b\x01s\x03abc",
        b"\x03\x01z\x03\x01m\x011\x01n\xfe\x01o\xfd\x05\x01z\x01\x01m01234567\x11\x01z\x01x\x0c\x01z\x01x",
        b"\x04\x01h\x01\x01f\x01v\x09\x01h\x01x\x0d\x01h\x01x\x10\x01h\x01x",
        b"\x0f\x01x\x01\x01k\x01v\x01\x01\x01\x01\x01g\x01\x01\x010123456789abcdef01234567\x01\x01\x01c01234567\x010123456789abcdef",
        b"\x13\x01x\x00\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01g\x01\x01\x01\x00\x00",
        b"\xfe\x03\x00\x01z\x00",
    ];

    #[test]
    fn every_encoding_and_type() {
        let (entries, error) = read(&file(&BODY.concat()));
        assert_eq!(error, None);
        let seen = |entry: &Entry| (entry.database, entry.key.clone(), entry.expires_at_ms);
        let strings = entries
            .iter()
            .filter(|entry| matches!(entry.content, Content::String(_)));
        let strings: Vec<_> = strings.map(|entry| (seen(entry), &entry.content)).collect();
        let expected: [(u64, &[u8], u64, &[u8]); 7] = [
            (0, b"a", 0, b"value"),
            (0, b"b", 5000, b"-2"),
            (0, b"c", 2000, b"-32768"),
            (0, b"d", 0, b"2147483647"),
            (0, b"e", 0, b"xyxyxyxyxyxy"),
            (0, b"fg", 0, b"h"),
            (3, b"z", 0, b""),
        ];
        for (found, (database, key, expires_at_ms, value)) in strings.iter().zip(expected) {
            assert_eq!(
                *found,
                ((database, key.to_vec(), expires_at_ms), &string(value))
            );
        }
        assert_eq!(strings.len(), expected.len());
        for (kind, count) in [
            ("list", 4),
            ("set", 2),
            ("sorted set", 4),
            ("hash", 4),
            ("stream", 2),
            ("function", 1),
        ] {
            let found = entries
                .iter()
                .filter(|entry| entry.content == Content::Other(kind));
            assert_eq!(found.count(), count, "{kind}");
        }
    }

    #[test]
    fn every_cut_and_every_damaged_byte_is_an_error() {
        let whole = file(&BODY.concat());
        for cut in 0..whole.len() {
            let (_, error) = read(&whole[..cut]);
            assert!(
                error.is_some_and(|(offset, _)| offset <= cut as u64),
                "{cut}"
            );
        }
        for (place, bit) in (0..whole.len()).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
            let mut damaged = whole.clone();
            damaged[place] ^= 1 << bit;
            assert!(read(&damaged).1.is_some(), "byte {place}, bit {bit}");
        }
    }

    #[test]
    fn errors_say_why_and_where() {
        for (body, offset, why) in [
            (
                &b"\x07\x01k\x00"[..],
                12,
                "key \"k\" has a type of a module (7)",
            ),
            (b"\x15\x01k\x00", 12, "an unknown type (21)"),
            (b"\xf7\x00", 10, "a module"),
            (b"\xf6\x00", 10, "functions"),
            (b"\x00\x01k\xc4", 13, "encoding 4"),
            (b"\x00\x01k\x82", 13, "a length that begins with 0x82"),
            (b"\x00\x01k\xc3\x01\x7f\x00", 17, "LZF"),
            (
                b"\x00\x01k\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
                21,
                "too large",
            ),
            (
                b"\x02\x01k\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
                0,
                "encoding 63",
            ),
            (b"\xfe\xc0\x01", 11, "where a number must be"),
        ] {
            let (entries, error) = read(&file(body));
            let (at, said) = error.unwrap();
            assert!(entries.is_empty() && said.contains(why), "{said}");
            assert!(
                at == offset || offset == 0,
                "{said}: {at} instead of {offset}"
            );
        }
        assert!(read(b"REDIS0011").1.unwrap().1.contains("RDB version 11"));
        assert!(read(b"REDIS00x1").1.unwrap().1.contains("no number"));
        assert!(read(b"RODIS0010").1.unwrap().1.contains("no RDB file"));
        // A server with `rdbchecksum no` writes a zero.
        let unsummed = b"REDIS0010\xff\0\0\0\0\0\0\0\0";
        assert_eq!(read(unsummed).1, None);
    }
}
