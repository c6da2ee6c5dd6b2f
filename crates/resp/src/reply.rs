//! Replies, written straight into a connection's output buffer, in RESP2 or RESP3.

/// Longest first line of a reply: kind, sign, the digits of a 64-bit number, line break.
const HEAD_BYTES_MAX: usize = 1 + 1 + 19 + 2;

/// The first line of a reply that contains a number.
struct Head {
    /// Filled from the end.
    text: [u8; HEAD_BYTES_MAX],
    start: usize,
}

impl Head {
    fn new(kind: u8, number: i64) -> Self {
        let mut head = Head {
            text: [0; HEAD_BYTES_MAX],
            start: HEAD_BYTES_MAX,
        };
        head.put(b'\n');
        head.put(b'\r');
        let mut rest = number.unsigned_abs();
        loop {
            head.put(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            head.put(b'-');
        }
        head.put(kind);
        head
    }

    fn put(&mut self, byte: u8) {
        self.start -= 1;
        self.text[self.start] = byte;
    }

    fn bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}

/// Writes replies of one client.
pub(crate) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    resp3: bool,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, resp3: bool) -> Self {
        Reply { out, resp3 }
    }
    pub(crate) fn is_resp3(&self) -> bool {
        self.resp3
    }
    fn head(&mut self, kind: u8, number: i64) {
        self.out.extend_from_slice(Head::new(kind, number).bytes());
    }
    /// `+OK`
    pub(crate) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }
    /// `+text`
    pub(crate) fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
    /// `-text`; the text starts with its code (`ERR ...`). Line breaks become spaces.
    pub(crate) fn error(&mut self, text: &str) {
        self.out.push(b'-');
        self.out.extend(
            text.bytes()
                .map(|b| if b == b'\r' || b == b'\n' { b' ' } else { b }),
        );
        self.out.extend_from_slice(b"\r\n");
    }
    /// `:number`
    pub(crate) fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }
    /// `$length` and the bytes
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }
    /// As [`Reply::bulk`], with bytes that `fill` appends, without a copy; null if `fill` returns `false`.
    /// `head_bytes` is the room to leave for the head, ideally that of the client's last value; it is
    /// updated.
    pub(crate) fn bulk_filled<E>(
        &mut self,
        head_bytes: &mut usize,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let start = self.out.len();
        let value = start + *head_bytes;
        self.out.resize(value, 0);
        let filled = fill(self.out);
        if !matches!(filled, Ok(true)) {
            self.out.truncate(start);
            return filled.map(|_| self.null());
        }
        let head = Head::new(b'$', (self.out.len() - value) as i64);
        *head_bytes = head.bytes().len();
        // In place, unless the head's length differs.
        self.out.splice(start..value, head.bytes().iter().copied());
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }
    /// Null: `$-1` in RESP2, `_` in RESP3.
    pub(crate) fn null(&mut self) {
        self.out
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }
    /// Null array: `*-1` in RESP2, `_` in RESP3.
    pub(crate) fn null_array(&mut self) {
        self.out
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }
    /// Head of an array; its elements follow.
    pub(crate) fn array(&mut self, len: usize) {
        self.head(b'*', len as i64);
    }
    /// Head of a map of `len` pairs (an array of twice as many in RESP2).
    pub(crate) fn map(&mut self, len: usize) {
        if self.resp3 {
            self.head(b'%', len as i64)
        } else {
            self.head(b'*', 2 * len as i64)
        }
    }
    /// Head of a set (an array in RESP2).
    pub(crate) fn set(&mut self, len: usize) {
        self.head(if self.resp3 { b'~' } else { b'*' }, len as i64);
    }
    /// Text with a format: verbatim string in RESP3, bulk in RESP2.
    pub(crate) fn verbatim(&mut self, format: &str, text: &str) {
        self.verbatim_bytes(format, text.as_bytes());
    }
    /// As [`Reply::verbatim`], for text that need not be UTF-8.
    pub(crate) fn verbatim_bytes(&mut self, format: &str, text: &[u8]) {
        if !self.resp3 {
            return self.bulk(text);
        }
        self.head(b'=', text.len() as i64 + 4);
        self.out.extend_from_slice(format.as_bytes());
        self.out.push(b':');
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
    /// As [`Reply::error`], for text that need not be UTF-8.
    pub(crate) fn error_bytes(&mut self, text: &[u8]) {
        self.out.push(b'-');
        self.out.extend(
            text.iter()
                .map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }),
        );
        self.out.extend_from_slice(b"\r\n");
    }
    /// Bytes written so far, to measure or remove what follows.
    pub(crate) fn position(&self) -> usize {
        self.out.len()
    }
    /// Removes everything written from `position` on.
    pub(crate) fn take_back_to(&mut self, position: usize) {
        self.out.truncate(position);
    }
    /// Later replies use another protocol: HELLO and RESET switch it.
    pub(crate) fn switch(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }
    /// One or more complete replies.
    pub(crate) fn raw(&mut self, reply: &[u8]) {
        self.out.extend_from_slice(reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_have_every_length() {
        for number in [0, 7, 10, -1, 65_536, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            Reply::new(&mut out, false).integer(number);
            assert_eq!(out, format!(":{number}\r\n").into_bytes());
        }
    }

    #[test]
    fn filled_values_read_as_copied_ones_whatever_the_head_before() {
        let mut head_bytes = 0;
        for length in [3, 3, 12, 4, 0, 70_000, 9] {
            let value = vec![b'v'; length];
            let (mut copied, mut filled) = (b"+before\r\n".to_vec(), b"+before\r\n".to_vec());
            Reply::new(&mut copied, false).bulk(&value);
            let outcome = Reply::new(&mut filled, false).bulk_filled(&mut head_bytes, |into| {
                into.extend_from_slice(&value);
                Ok::<_, ()>(true)
            });
            assert_eq!((outcome, filled), (Ok(()), copied), "{length} bytes");
        }
    }

    #[test]
    fn what_a_failed_fill_wrote_is_taken_back() {
        let mut head_bytes = 6;
        for (outcome, expected) in [(Ok(false), &b":1\r\n$-1\r\n"[..]), (Err(()), b":1\r\n")] {
            let mut out = b":1\r\n".to_vec();
            let told = Reply::new(&mut out, false).bulk_filled(&mut head_bytes, |into| {
                into.extend_from_slice(b"half");
                outcome
            });
            assert_eq!((told, out.as_slice()), (outcome.map(|_| ()), expected));
        }
    }
}
