//! Replies of one connection, compared byte by byte with what must come, however the socket cuts them.

use super::wire::{Template, key};
use crate::subject::Error;
use std::collections::VecDeque;
use std::time::Instant;

/// A request that has been sent.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub(super) key: u64,
    /// When it was sent, or should have been.
    pub(super) begun: Instant,
}

/// How far into the current reply a connection is.
#[derive(Default)]
pub(super) struct Checker {
    at: usize,
}

impl Checker {
    /// Takes bytes that came; each request that they complete leaves `pending` and goes to `done`.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        reply: &mut Template,
        pending: &mut VecDeque<Pending>,
        mut done: impl FnMut(Pending),
    ) -> Result<(), Error> {
        while !bytes.is_empty() {
            let Some(request) = pending.front() else {
                anyhow::bail!(
                    "the server sent {:?}, which nobody asked for",
                    excerpt(bytes)
                );
            };
            reply.set_key(key(request.key));
            let expected = reply.bytes();
            let rest = &expected[self.at..];
            let (here, later) = bytes.split_at(rest.len().min(bytes.len()));
            anyhow::ensure!(
                here == &rest[..here.len()],
                "the server answered {:?} where {:?} was due, at byte {} of a reply about key {}",
                excerpt(here),
                excerpt(rest),
                self.at,
                request.key
            );
            self.at += here.len();
            bytes = later;
            if self.at == expected.len() {
                self.at = 0;
                pending.pop_front().into_iter().for_each(&mut done);
            }
        }
        Ok(())
    }
}

fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::load::{Command, Data};
    use super::super::wire::Wire;
    use super::*;

    const DATA: Data = Data {
        keys: 10,
        value_bytes: 20,
    };

    /// Keys whose replies were complete after the stream came in pieces of `piece` bytes.
    fn checked(stream: &str, keys: &[u64], piece: usize) -> Result<Vec<u64>, Error> {
        let mut reply = Wire::of(Command::Get, DATA).reply;
        let begun = Instant::now();
        let mut pending = keys.iter().map(|&key| Pending { key, begun }).collect();
        let (mut checker, mut done) = (Checker::default(), Vec::new());
        for piece in stream.as_bytes().chunks(piece) {
            checker.take(piece, &mut reply, &mut pending, |request| {
                done.push(request.key)
            })?;
        }
        Ok(done)
    }

    #[test]
    fn replies_are_found_however_they_are_cut() {
        let stream = "$20\r\nkey:000000000007vvvv\r\n$20\r\nkey:000000000003vvvv\r\n$20\r\nkey";
        for piece in 1..stream.len() {
            assert_eq!(checked(stream, &[7, 3, 5], piece).unwrap(), [7, 3]);
        }
    }

    #[test]
    fn wrong_replies_are_errors() {
        for stream in [
            "$20\r\nkey:000000000008vvvv\r\n",
            "$20\r\nkey:000000000007vvvx\r\n",
            "$-1\r\n",
            "-ERR no\r\n",
            "$20\r\nkey:000000000007vvvv\r\n+OK\r\n",
        ] {
            assert!(checked(stream, &[7], 64).is_err(), "{stream}");
        }
    }
}
