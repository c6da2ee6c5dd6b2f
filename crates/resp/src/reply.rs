//! Replies, written straight into a connection's output buffer, in RESP2 or RESP3.

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
        use std::io::Write;
        self.out.push(kind);
        // Writing to a Vec cannot fail.
        let _ = write!(self.out, "{number}");
        self.out.extend_from_slice(b"\r\n");
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
    /// Bytes written so far, to measure or take back what follows.
    pub(crate) fn position(&self) -> usize {
        self.out.len()
    }
    /// Takes back everything written from `position` on.
    pub(crate) fn take_back_to(&mut self, position: usize) {
        self.out.truncate(position);
    }
    /// The replies after this one follow another protocol: HELLO and RESET switch it.
    pub(crate) fn switch(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }
    /// A reply, or several, that stand ready.
    pub(crate) fn raw(&mut self, reply: &[u8]) {
        self.out.extend_from_slice(reply);
    }
}
