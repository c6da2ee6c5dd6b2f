//! A client that keeps the raw bytes of replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The raw bytes of a reply, and the replies inside it.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) raw: Vec<u8>,
    pub(crate) parts: Vec<Answer>,
}

impl Answer {
    /// The number of an integer reply.
    pub(crate) fn integer(&self) -> Option<i64> {
        let digits = self.raw.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// The first line: kind and length.
    pub(crate) fn head(&self) -> &[u8] {
        self.raw
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default()
    }
}

pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket option");
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a socket option");
        Connection {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) fn request(&mut self, command: &[Vec<u8>]) -> Answer {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for argument in command {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream
            .get_mut()
            .write_all(&bytes)
            .expect("the connection takes a request");
        self.read()
            .unwrap_or_else(|error| panic!("no reply to {}: {error}", super::show(command)))
    }

    fn read(&mut self) -> std::io::Result<Answer> {
        let mut answer = Answer::default();
        if self.stream.read_until(b'\n', &mut answer.raw)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let number = std::str::from_utf8(&answer.raw[1..])
            .ok()
            .and_then(|text| text.trim_end().parse::<i64>().ok());
        let count = usize::try_from(number.unwrap_or(0)).unwrap_or(0);
        let parts = match answer.raw[0] {
            b'$' | b'=' if number != Some(-1) => {
                let mut body = vec![0; count + 2];
                self.stream.read_exact(&mut body)?;
                answer.raw.extend_from_slice(&body);
                0
            }
            b'*' | b'~' | b'>' => count,
            b'%' => 2 * count,
            _ => 0,
        };
        for _ in 0..parts {
            let part = self.read()?;
            answer.raw.extend_from_slice(&part.raw);
            answer.parts.push(part);
        }
        Ok(answer)
    }
}
