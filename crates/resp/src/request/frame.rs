//! Finds requests in a client's bytes: RESP arrays of bulk strings, and inline commands.
//!
//! The parser keeps its place between reads, so it examines each byte of a slow request once. It checks
//! announced lengths before it uses them, and reserves nothing for them. Arguments are spans of the query
//! buffer; inline ones are unquoted in place.

use super::inline::split_words;

/// Longest line with a length.
const LENGTH_LINE_BYTES_MAX: usize = 64 * 1024;
/// Capacity of spans to keep between requests.
const KEEP_SPANS: usize = 1024;

/// Limits of a client's requests, before or after authentication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameLimits {
    pub(crate) arguments_max: usize,
    pub(crate) bulk_bytes_max: u64,
    pub(crate) inline_bytes_max: usize,
    pub(crate) authenticated: bool,
}

/// Why the bytes are not a request. The server closes the connection after this message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    MultibulkLength,
    MultibulkLengthUnauthenticated,
    MultibulkLine,
    BulkLength,
    BulkLengthUnauthenticated,
    BulkLine,
    ExpectedBulk(u8),
    InlineLine,
    Quotes,
}

impl ProtocolError {
    /// The error line, in Redis' words.
    pub(crate) fn line(self) -> Vec<u8> {
        let text = match self {
            ProtocolError::MultibulkLength => "invalid multibulk length",
            ProtocolError::MultibulkLengthUnauthenticated => "unauthenticated multibulk length",
            ProtocolError::MultibulkLine => "too big mbulk count string",
            ProtocolError::BulkLength => "invalid bulk length",
            ProtocolError::BulkLengthUnauthenticated => "unauthenticated bulk length",
            ProtocolError::BulkLine => "too big bulk count string",
            ProtocolError::ExpectedBulk(_) => "expected '$', got '",
            ProtocolError::InlineLine => "too big inline request",
            ProtocolError::Quotes => "unbalanced quotes in request",
        };
        let mut line = format!("-ERR Protocol error: {text}").into_bytes();
        if let ProtocolError::ExpectedBulk(found) = self {
            line.push(if found == b'\r' || found == b'\n' {
                b' '
            } else {
                found
            });
            line.push(b'\'');
        }
        line.extend_from_slice(b"\r\n");
        line
    }
}

/// The state of a client's stream of requests.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// Start of the request being parsed.
    start: usize,
    /// First byte not examined.
    at: usize,
    /// Arguments still to come; 0 = between requests.
    missing: usize,
    /// Announced length of the argument being received.
    bulk: Option<usize>,
    spans: Vec<(u32, u32)>,
}

impl Parser {
    /// Finds the next whole request. `true`: it is in [`Parser::spans`]; `false`: more bytes are needed. The
    /// buffer must be the same as before, longer, or [`Parser::compact`]ed.
    pub(crate) fn next(
        &mut self,
        buffer: &mut [u8],
        limits: &FrameLimits,
    ) -> Result<bool, ProtocolError> {
        loop {
            if self.missing == 0 {
                self.start = self.at;
                self.spans.clear();
                match buffer.get(self.at) {
                    None => return Ok(false),
                    Some(b'*') => {
                        if !self.array_head(buffer, limits)? {
                            return Ok(false);
                        }
                    }
                    Some(_) => match self.inline(buffer, limits)? {
                        None => return Ok(false),
                        Some(0) => continue,
                        Some(_) => return Ok(true),
                    },
                }
            }
            while self.missing > 0 {
                if !self.argument(buffer, limits)? {
                    return Ok(false);
                }
            }
            if !self.spans.is_empty() {
                return Ok(true);
            }
        }
    }

    /// The arguments of the request that [`Parser::next`] found.
    pub(crate) fn spans(&self) -> &[(u32, u32)] {
        &self.spans
    }

    /// Leading bytes of the buffer that no request needs any more.
    pub(crate) fn consumed(&self) -> usize {
        if self.missing == 0 {
            self.at
        } else {
            self.start
        }
    }

    /// Announced length of the argument that is being received.
    pub(crate) fn announced(&self) -> usize {
        self.bulk.unwrap_or(0)
    }

    /// How many of these are missing in a buffer of `buffer_bytes` bytes.
    pub(crate) fn missing_bytes(&self, buffer_bytes: usize) -> usize {
        self.bulk.map_or(0, |length| {
            let end = self.at.saturating_add(length).saturating_add(2);
            end.saturating_sub(buffer_bytes)
        })
    }

    /// Removes consumed bytes from the front of the buffer.
    pub(crate) fn compact(&mut self, buffer: &mut Vec<u8>) {
        let done = self.consumed();
        if done >= buffer.len() {
            buffer.clear();
        } else {
            buffer.drain(..done);
        }
        self.at -= done;
        self.start = 0;
        if self.missing == 0 {
            self.spans.clear();
            self.spans.shrink_to(KEEP_SPANS);
        }
        // Checked by the parser: the spans of an unfinished request begin after its start.
        let moved = u32::try_from(done).unwrap_or(u32::MAX);
        for (start, end) in &mut self.spans {
            *start = start.saturating_sub(moved);
            *end = end.saturating_sub(moved);
        }
    }

    /// `*<count>\r\n`. `false`: the line is not whole.
    fn array_head(&mut self, buffer: &[u8], limits: &FrameLimits) -> Result<bool, ProtocolError> {
        let Some((line, next)) =
            length_line(buffer, self.at).ok_or(ProtocolError::MultibulkLine)?
        else {
            return Ok(false);
        };
        let count = line
            .get(1..)
            .and_then(parse_length)
            .ok_or(ProtocolError::MultibulkLength)?;
        if count > limits.arguments_max as i64 {
            return Err(if limits.authenticated {
                ProtocolError::MultibulkLength
            } else {
                ProtocolError::MultibulkLengthUnauthenticated
            });
        }
        self.at = next;
        self.missing = usize::try_from(count).unwrap_or(0);
        Ok(true)
    }

    /// `$<length>\r\n<bytes>\r\n`. `false`: it is not whole.
    fn argument(&mut self, buffer: &[u8], limits: &FrameLimits) -> Result<bool, ProtocolError> {
        let length = match self.bulk {
            Some(length) => length,
            None => {
                let Some(length) = self.bulk_head(buffer, limits)? else {
                    return Ok(false);
                };
                length
            }
        };
        let end = self.at.saturating_add(length);
        let next = end.saturating_add(2);
        if buffer.len() < next {
            self.bulk = Some(length);
            return Ok(false);
        }
        // The connection limits its buffer to what u32 can address.
        let (Ok(from), Ok(to)) = (u32::try_from(self.at), u32::try_from(end)) else {
            return Err(ProtocolError::BulkLength);
        };
        self.spans.push((from, to));
        self.at = next;
        self.bulk = None;
        self.missing -= 1;
        Ok(true)
    }

    fn bulk_head(
        &mut self,
        buffer: &[u8],
        limits: &FrameLimits,
    ) -> Result<Option<usize>, ProtocolError> {
        let Some((line, next)) = length_line(buffer, self.at).ok_or(ProtocolError::BulkLine)?
        else {
            return Ok(None);
        };
        match line.first() {
            Some(b'$') => {}
            // An empty line: the line's end is in the place of the `$`.
            found => return Err(ProtocolError::ExpectedBulk(found.copied().unwrap_or(b'\r'))),
        }
        let length = line
            .get(1..)
            .and_then(parse_length)
            .ok_or(ProtocolError::BulkLength)?;
        let length = u64::try_from(length).map_err(|_| ProtocolError::BulkLength)?;
        if length > limits.bulk_bytes_max {
            return Err(if limits.authenticated {
                ProtocolError::BulkLength
            } else {
                ProtocolError::BulkLengthUnauthenticated
            });
        }
        self.at = next;
        usize::try_from(length)
            .map(Some)
            .map_err(|_| ProtocolError::BulkLength)
    }

    /// A line of words. `None`: the line is not complete; otherwise its number of arguments.
    fn inline(
        &mut self,
        buffer: &mut [u8],
        limits: &FrameLimits,
    ) -> Result<Option<usize>, ProtocolError> {
        let rest = buffer.get_mut(self.at..).unwrap_or_default();
        let Some(length) = rest.iter().position(|&byte| byte == b'\n') else {
            let too_long = rest.len() > limits.inline_bytes_max;
            return if too_long {
                Err(ProtocolError::InlineLine)
            } else {
                Ok(None)
            };
        };
        let line = rest.get_mut(..length).unwrap_or_default();
        let line = match line.split_last_mut() {
            Some((b'\r', front)) => front,
            _ => line,
        };
        let offset = u32::try_from(self.at).map_err(|_| ProtocolError::InlineLine)?;
        split_words(line, offset, &mut self.spans).ok_or(ProtocolError::Quotes)?;
        self.at += length + 1;
        if !limits.authenticated && self.spans.len() > limits.arguments_max {
            return Err(ProtocolError::MultibulkLengthUnauthenticated);
        }
        Ok(Some(self.spans.len()))
    }
}

/// The line at `at` without its end, and where the next one starts. Inner `None`: not complete yet; outer
/// `None`: too long for a length.
#[expect(
    clippy::option_option,
    reason = "too long, not yet whole, and whole are three answers"
)]
fn length_line(buffer: &[u8], at: usize) -> Option<Option<(&[u8], usize)>> {
    let rest = buffer.get(at..).unwrap_or(b"");
    match rest
        .iter()
        .take(LENGTH_LINE_BYTES_MAX + 1)
        .position(|&byte| byte == b'\r')
    {
        Some(end) if end + 2 <= rest.len() => {
            Some(rest.get(..end).map(|line| (line, at + end + 2)))
        }
        Some(_) => Some(None),
        None if rest.len() > LENGTH_LINE_BYTES_MAX => None,
        None => Some(None),
    }
}

/// A decimal number, without leading zeros or a plus sign.
fn parse_length(digits: &[u8]) -> Option<i64> {
    let (negative, digits) = match digits {
        [b'-', rest @ ..] => (true, rest),
        all => (false, all),
    };
    if digits.is_empty() || (digits.len() > 1 && digits.first() == Some(&b'0')) {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_add(i64::from(digit - b'0'))?;
    }
    match (negative, number) {
        (true, 0) => None,
        (true, _) => Some(-number),
        (false, _) => Some(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FrameLimits = FrameLimits {
        arguments_max: 1024,
        bulk_bytes_max: 1 << 20,
        inline_bytes_max: 64 * 1024,
        authenticated: true,
    };

    /// Feeds `input` in steps of `step` bytes; returns the requests and the error at the end, if any.
    fn parse(input: &[u8], step: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        let (mut parser, mut buffer, mut requests) = (Parser::default(), Vec::new(), Vec::new());
        for piece in input.chunks(step) {
            buffer.extend_from_slice(piece);
            loop {
                match parser.next(&mut buffer, &LIMITS) {
                    Ok(false) => break,
                    Ok(true) => {
                        let words = parser.spans().iter();
                        requests.push(
                            words
                                .map(|&(a, b)| buffer[a as usize..b as usize].to_vec())
                                .collect(),
                        );
                    }
                    Err(error) => return (requests, Some(error)),
                }
            }
            parser.compact(&mut buffer);
        }
        (requests, None)
    }

    fn check(input: &str, requests: &[&[&str]], error: Option<ProtocolError>) {
        for step in 1..=input.len() {
            let (found, ended) = parse(input.as_bytes(), step);
            let expected: Vec<Vec<Vec<u8>>> = requests
                .iter()
                .map(|r| r.iter().map(|w| w.as_bytes().to_vec()).collect())
                .collect();
            assert_eq!(
                (found, ended),
                (expected, error),
                "{input:?} in steps of {step}"
            );
        }
    }

    #[test]
    fn requests_and_errors() {
        use ProtocolError as E;
        check(
            "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n",
            &[&["GET", "k"], &["PING"]],
            None,
        );
        check(
            "PING\r\n*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n",
            &[&["PING"], &["ECHO", "x"]],
            None,
        );
        check("*0\r\n*-1\r\n\r\nPING\r\n", &[&["PING"]], None);
        check("*1\r\n$0\r\n\r\n", &[&[""]], None);
        check(
            "set  k 'a b' \"c\\x41\\n\"\n",
            &[&["set", "k", "a b", "cA\n"]],
            None,
        );
        check("echo \"\" 'it\\'s'\r\n", &[&["echo", "", "it's"]], None);
        check("echo a\"b\"\r\n", &[&["echo", "ab"]], None);
        check("echo \"a\"b\r\n", &[], Some(E::Quotes));
        check("echo 'a\r\n", &[], Some(E::Quotes));
        check("*x\r\n", &[], Some(E::MultibulkLength));
        check("*01\r\n", &[], Some(E::MultibulkLength));
        check("*1025\r\n", &[], Some(E::MultibulkLength));
        check("*99999999999999999999\r\n", &[], Some(E::MultibulkLength));
        check("*1\r\n$-1\r\n", &[], Some(E::BulkLength));
        check("*1\r\n$1048577\r\n", &[], Some(E::BulkLength));
        check("*1\r\n+OK\r\n", &[], Some(E::ExpectedBulk(b'+')));
        check(
            "PING\r\n*1\r\n\r\n",
            &[&["PING"]],
            Some(E::ExpectedBulk(b'\r')),
        );
    }

    #[test]
    fn lines_without_end_are_refused() {
        let (_, error) = parse(&[b'a'; 64 * 1024 + 2], 1000);
        assert_eq!(error, Some(ProtocolError::InlineLine));
        let mut long = vec![b'1'; 64 * 1024 + 2];
        long[0] = b'*';
        assert_eq!(parse(&long, 1000).1, Some(ProtocolError::MultibulkLine));
    }
}
