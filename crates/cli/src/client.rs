//! A small blocking Redis client: requests are gathered, sent in one write, and answered in order.
//!
//! It knows RESP2 replies only and trusts no length: a reply that announces more than
//! `REPLY_BYTES_MAX`, or nests deeper than `DEPTH_MAX`, is an error of the connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest string that is accepted as a reply, a little more than the longest value.
const REPLY_BYTES_MAX: i64 = 513 << 20;
/// Most elements of one array.
const REPLY_ELEMENTS_MAX: i64 = 1 << 20;
/// Deepest nesting of arrays.
const DEPTH_MAX: usize = 8;
/// A server that says nothing for this long is taken for dead.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK` and its kin.
    Simple(String),
    /// `-ERR ...`.
    Error(String),
    /// `:42`.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// No value.
    Null,
    /// Several answers.
    Array(Vec<Reply>),
}

impl Reply {
    /// The answer, or the server's refusal as an error.
    ///
    /// # Errors
    /// The text of an error reply.
    pub fn accepted(self) -> io::Result<Reply> {
        match self {
            Reply::Error(text) => Err(io::Error::other(format!("the server refused: {text}"))),
            other => Ok(other),
        }
    }
}

/// One connection.
pub struct Client {
    reader: BufReader<TcpStream>,
    requests: Vec<u8>,
}

impl Client {
    /// Connects to `address` (`host:port`).
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(Client {
            reader: BufReader::with_capacity(64 << 10, stream),
            requests: Vec::new(),
        })
    }

    /// Adds a request to those that the next [`Client::send`] sends.
    pub fn queue(&mut self, arguments: &[&[u8]]) {
        request(&mut self.requests, arguments);
    }

    /// Bytes in the queue.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.requests.len()
    }

    /// Sends everything queued.
    ///
    /// # Errors
    /// As writing to a socket. The queue is empty afterwards, also after an error.
    pub fn send(&mut self) -> io::Result<()> {
        let sent = self.reader.get_mut().write_all(&self.requests);
        self.requests.clear();
        sent
    }

    /// Receives the answer to the oldest request without one.
    ///
    /// # Errors
    /// As reading from a socket; `InvalidData` for bytes that are no reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        self.read_reply(0)
    }

    /// Sends one request and receives its answer. No other request may be under way. An error reply is an
    /// error.
    ///
    /// # Errors
    /// As [`Client::send`], [`Client::receive`] and [`Reply::accepted`].
    pub fn call(&mut self, arguments: &[&[u8]]) -> io::Result<Reply> {
        self.queue(arguments);
        self.send()?;
        self.receive()?.accepted()
    }

    /// The number of keys. If the server is still starting, asks again until it knows.
    ///
    /// # Errors
    /// As [`Client::call`]; `InvalidData` for an answer that is no number.
    pub fn count_keys(&mut self) -> io::Result<u64> {
        let begun = Instant::now();
        loop {
            self.queue(&[b"DBSIZE"]);
            self.send()?;
            match self.receive()? {
                Reply::Error(why)
                    if why.starts_with("LOADING") && begun.elapsed() < SILENCE_MAX =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => {
                    return match other.accepted()? {
                        Reply::Integer(count) => Ok(u64::try_from(count).unwrap_or(0)),
                        _ => Err(invalid("an answer to DBSIZE that is no number")),
                    };
                }
            }
        }
    }

    fn read_reply(&mut self, depth: usize) -> io::Result<Reply> {
        let line = self.read_line()?;
        let Some((kind, rest)) = line.split_first() else {
            return Err(invalid("an empty line"));
        };
        match kind {
            b'+' => Ok(Reply::Simple(String::from_utf8_lossy(rest).into_owned())),
            b'-' => Ok(Reply::Error(String::from_utf8_lossy(rest).into_owned())),
            b':' => Ok(Reply::Integer(integer(rest)?)),
            b'$' => self.read_bulk(integer(rest)?),
            b'*' => self.read_array(integer(rest)?, depth),
            b'_' => Ok(Reply::Null),
            _ => Err(invalid("a reply of a kind that RESP2 does not have")),
        }
    }

    fn read_bulk(&mut self, length: i64) -> io::Result<Reply> {
        if length == -1 {
            return Ok(Reply::Null);
        }
        if !(0..=REPLY_BYTES_MAX).contains(&length) {
            return Err(invalid("a string of an impossible length"));
        }
        let mut bytes = Vec::new();
        (&mut self.reader)
            .take(length.unsigned_abs())
            .read_to_end(&mut bytes)?;
        let mut end = [0; 2];
        self.reader.read_exact(&mut end)?;
        if bytes.len() as u64 != length.unsigned_abs() || end != *b"\r\n" {
            return Err(invalid("a string that does not end where it said"));
        }
        Ok(Reply::Bulk(bytes))
    }

    fn read_array(&mut self, elements: i64, depth: usize) -> io::Result<Reply> {
        if elements == -1 {
            return Ok(Reply::Null);
        }
        if !(0..=REPLY_ELEMENTS_MAX).contains(&elements) || depth >= DEPTH_MAX {
            return Err(invalid("an array of an impossible size or depth"));
        }
        (0..elements)
            .map(|_| self.read_reply(depth + 1))
            .collect::<io::Result<Vec<_>>>()
            .map(Reply::Array)
    }

    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        (&mut self.reader)
            .take(64 << 10)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            ));
        }
        match line.strip_suffix(b"\r\n") {
            Some(text) => Ok(text.to_vec()),
            None => Err(invalid("a line without its end")),
        }
    }
}

/// Appends one request in the form of the wire and of the mass-insertion protocol.
pub(crate) fn request(into: &mut Vec<u8>, arguments: &[&[u8]]) {
    header(into, b'*', arguments.len());
    for argument in arguments {
        header(into, b'$', argument.len());
        into.extend_from_slice(argument);
        into.extend_from_slice(b"\r\n");
    }
}

fn header(into: &mut Vec<u8>, kind: u8, number: usize) {
    into.push(kind);
    into.extend_from_slice(number.to_string().as_bytes());
    into.extend_from_slice(b"\r\n");
}

fn integer(text: &[u8]) -> io::Result<i64> {
    let parsed = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| invalid("a number that is none"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the server sent {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What a client reads from a server that sends `bytes` and closes the connection.
    fn receive(bytes: &'static [u8]) -> io::Result<Reply> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server =
            std::thread::spawn(move || listener.accept().unwrap().0.write_all(bytes).unwrap());
        let reply = Client::connect(address).unwrap().receive();
        server.join().unwrap();
        reply
    }

    #[test]
    fn replies_of_every_kind() {
        assert_eq!(receive(b"+OK\r\n").unwrap(), Reply::Simple("OK".into()));
        assert_eq!(
            receive(b"-ERR no\r\n").unwrap(),
            Reply::Error("ERR no".into())
        );
        assert_eq!(receive(b":-7\r\n").unwrap(), Reply::Integer(-7));
        assert_eq!(
            receive(b"$3\r\na\r\n\r\n").unwrap(),
            Reply::Bulk(b"a\r\n".to_vec())
        );
        assert_eq!(receive(b"$-1\r\n").unwrap(), Reply::Null);
        let two = Reply::Array(vec![Reply::Integer(1), Reply::Null]);
        assert_eq!(receive(b"*2\r\n:1\r\n_\r\n").unwrap(), two);
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in [
            &b""[..],
            b"\r\n",
            b"?\r\n",
            b":x\r\n",
            b"$-2\r\n",
            b"$99999999999999\r\n",
            b"$3\r\nab",
            b"$1\r\nabc",
            b"*999999999\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            b"+unfinished",
        ] {
            assert!(receive(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
