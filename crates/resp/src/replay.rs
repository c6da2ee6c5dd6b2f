//! A client without a socket: runs the requests of a file, such as a Redis AOF, on a store.
//!
//! Invariants: nobody else uses the store meanwhile, and its clock stands still at [`BEFORE_ALL_EXPIRIES`],
//! so that a key whose expiry has passed is still there for the requests behind it, as in a Redis that loads.
//! What was run is durable after [`Replay::commit`]. Requests that change nothing, or that count from a
//! moment which the file does not have, are refused: no file of a Redis has them.

use crate::command;
use crate::connection::client::Client;
use crate::connection::peer::{Origin, Peer};
use crate::context::Context;
use crate::dispatch::dispatch;
use crate::keyspace::{Direct, Scratch};
use crate::reply::Reply;
use crate::request::args::Args;
use crate::request::inline::split_words;
use crate::server::settings::{Limits, Settings, StartError};
use crate::server::{Server, Shared};
use everdram::engine::{Engine, EngineSession, VALUE_BYTES_MAX};
use everdram::{Error, Store};
use std::sync::Arc;

/// The time, in Unix milliseconds, at which the clock of a store stands while a file is replayed.
pub const BEFORE_ALL_EXPIRIES: u64 = 0;
/// Most bytes of one request.
pub const REQUEST_BYTES_MAX: usize = u32::MAX as usize;

/// The answer to RENAME of an absent key.
const NO_SUCH_KEY: &[u8] = b"ERR no such key";

/// Why a request did not run, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// This server has no such command.
    #[error("everdram has no such command")]
    Unknown,
    /// It would change nothing.
    #[error("it is no command that changes keys")]
    NoWrite,
    /// Its expiry counts from the moment at which it ran, which the file does not have.
    #[error("its expiry counts from an unknown moment: Redis writes PXAT and PEXPIREAT")]
    Relative,
    /// The answer was this error.
    #[error("{0}")]
    Answer(String),
}

/// The client.
pub struct Replay {
    shared: Shared,
    engine: Arc<dyn Engine>,
    session: Box<dyn EngineSession>,
    scratch: Scratch,
    client: Client,
    answer: Vec<u8>,
    may_lack_keys: bool,
}

impl Replay {
    /// A client of `store`, whose clock must stand at [`BEFORE_ALL_EXPIRIES`].
    ///
    /// # Errors
    /// [`StartError::EventLoop`], [`StartError::Store`].
    pub fn new(store: &Store) -> Result<Replay, StartError> {
        let settings = Settings {
            limits: Limits {
                query_buffer_bytes: usize::MAX,
                proto_max_bulk_len: VALUE_BYTES_MAX as u64,
                // No limit: answers are dropped.
                output_hard_bytes: 0,
                ..Limits::default()
            },
            ..Settings::default()
        };
        let engine = Arc::clone(store.engine());
        let shared = Server::without_threads(Arc::clone(&engine), store.report(), settings)?;
        let origin = Origin {
            address: "replay".into(),
            local_address: "replay".into(),
            is_unix: false,
            descriptor: -1,
        };
        Ok(Replay {
            shared,
            session: Arc::clone(&engine).session()?,
            engine,
            scratch: Scratch::default(),
            client: Client::new(Arc::new(Peer::new(0, 0, origin)), true),
            answer: Vec::new(),
            may_lack_keys: false,
        })
    }

    /// From now on a RENAME whose key is absent is no failure: keys of the file were left out.
    pub fn allow_absent_keys(&mut self) {
        self.may_lack_keys = true;
    }

    /// Runs a request, or queues it behind MULTI: `spans` are (start, end) of its arguments in `buffer`, the
    /// command's name first.
    ///
    /// # Errors
    /// See [`Refusal`]. An EXEC fails with the first error among its answers; its other commands have run.
    pub fn request(&mut self, buffer: &[u8], spans: &[(u32, u32)]) -> Result<(), Refusal> {
        let args = Args::new(buffer, spans);
        let (_, command) = command::resolve(&args).map_err(|_| Refusal::Unknown)?;
        if !command.writes && command.name != "multi" {
            return Err(Refusal::NoWrite);
        }
        if is_relative(command.name, args) {
            return Err(Refusal::Relative);
        }
        self.answer.clear();
        let mut keys = Direct::new(&mut *self.session, &*self.engine, &mut self.scratch);
        dispatch(&mut Context {
            args,
            keys: &mut keys,
            reply: Reply::new(&mut self.answer, false),
            client: &mut self.client,
            shared: &self.shared,
            now_ms: BEFORE_ALL_EXPIRIES,
        });
        match first_error(&self.answer, self.may_lack_keys) {
            Some(line) => Err(Refusal::Answer(String::from_utf8_lossy(line).into_owned())),
            None => Ok(()),
        }
    }

    /// Stores a value, outside any transaction; it expires at `expires_at_ms` (Unix ms; 0 = never).
    ///
    /// # Errors
    /// See [`EngineSession::put`].
    pub fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.session.put(key, value, expires_at_ms)
    }

    /// Makes everything before durable. Commands that wait for EXEC stay queued.
    ///
    /// # Errors
    /// See [`EngineSession::commit`] and [`EngineSession::wait`].
    pub fn commit(&mut self) -> Result<(), Error> {
        let ticket = self.session.commit()?;
        self.session.wait(ticket)
    }
}

/// Whether the request sets an expiry that counts from now.
fn is_relative(name: &str, args: Args<'_>) -> bool {
    let first = match name {
        "expire" | "pexpire" | "setex" | "psetex" => return true,
        "set" => 3,
        "getex" => 2,
        _ => return false,
    };
    let is_unit =
        |option: &[u8]| option.eq_ignore_ascii_case(b"ex") || option.eq_ignore_ascii_case(b"px");
    args.iter_from(first).any(is_unit)
}

/// The first error line of an answer, or of the answers in an array. `may_lack_keys`: [`NO_SUCH_KEY`] is
/// none.
fn first_error(answer: &[u8], may_lack_keys: bool) -> Option<&[u8]> {
    let mut rest = answer;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\r') {
        let (line, behind) = rest.split_at(end);
        rest = behind.get(2..).unwrap_or_default();
        match line.split_first() {
            Some((b'-', text)) if !(may_lack_keys && text == NO_SUCH_KEY) => return Some(text),
            Some((b'$', length)) => {
                let length = std::str::from_utf8(length).ok();
                // A length of -1 has no bytes behind it.
                if let Some(length) = length.and_then(|text| text.parse::<usize>().ok()) {
                    rest = rest.get(length + 2..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    None
}

/// Splits a line into words as Redis does, with its quotes and escapes. `None`: unbalanced quotes.
#[must_use]
pub fn words(mut line: Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut spans = Vec::new();
    split_words(&mut line, 0, &mut spans)?;
    let args = Args::new(&line, &spans);
    Some(args.iter_from(0).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use everdram::Options;

    fn request(replay: &mut Replay, words: &str) -> Result<(), String> {
        let (mut buffer, mut spans) = (Vec::new(), Vec::new());
        for word in words.split(' ') {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(word.as_bytes());
            spans.push((start, buffer.len() as u32));
        }
        replay
            .request(&buffer, &spans)
            .map_err(|refusal| refusal.to_string())
    }

    fn run(requests: &[&str]) -> (Vec<Result<(), String>>, Store, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::default();
        options.clock = Some(Arc::new(|| BEFORE_ALL_EXPIRIES));
        let store = Store::open(directory.path().join("pool"), &options).unwrap();
        let mut replay = Replay::new(&store).unwrap();
        let answers = requests
            .iter()
            .map(|words| request(&mut replay, words))
            .collect();
        replay.commit().unwrap();
        (answers, store, directory)
    }

    #[test]
    fn an_expiry_that_has_passed_counts_only_at_the_end() {
        let (answers, store, _directory) = run(&[
            "SET counter 5 PXAT 1000",
            "INCR counter",
            "PERSIST counter",
            "SET gone 5",
            "PEXPIREAT gone 7",
            "RENAME gone moved",
        ]);
        assert_eq!(answers, vec![Ok(()); 6]);
        let mut session = store.session().unwrap();
        assert_eq!(session.get(b"counter").unwrap().as_deref(), Some(&b"6"[..]));
        let mut value = Vec::new();
        let found = session.get_into(b"moved", &mut value).unwrap().unwrap();
        assert_eq!(found.expires_at_ms, 7);
    }

    #[test]
    fn what_no_file_of_redis_has_is_refused() {
        for (words, why) in [
            ("RPUSH list 1", "no such command"),
            ("GET key", "no command that changes keys"),
            ("CONFIG SET maxclients 5", "no command that changes keys"),
            ("SHUTDOWN", "no command that changes keys"),
            ("EXPIRE key 5", "unknown moment"),
            ("SET key value ex 5", "unknown moment"),
            ("GETEX key PX 5", "unknown moment"),
            ("SET key", "wrong number of arguments"),
            ("EXEC", "EXEC without MULTI"),
        ] {
            let (answers, ..) = run(&[words]);
            let error = answers[0].clone().unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
        assert_eq!(run(&["SET key EX"]).0, [Ok(())]);
    }

    #[test]
    fn keys_that_were_left_out_may_be_renamed() {
        let (answers, store, _directory) = run(&["RENAME absent to"]);
        assert!(answers[0].is_err());
        let mut replay = Replay::new(&store).unwrap();
        replay.allow_absent_keys();
        for (words, is_well) in [
            ("RENAME absent to", true),
            ("SET text value", true),
            ("MULTI", true),
            ("RENAME absent to", true),
            ("INCR text", true),
            ("EXEC", false),
        ] {
            assert_eq!(request(&mut replay, words).is_ok(), is_well, "{words}");
        }
    }

    #[test]
    fn errors_among_the_answers_of_exec_are_found() {
        let (answers, store, _directory) = run(&[
            "SET text -ERR",
            "MULTI",
            "GETSET text -other",
            "INCR number",
            "GETSET absent 1",
            "EXEC",
            "MULTI",
            "INCR text",
            "INCR number",
            "EXEC",
            "MULTI",
            "INCR number",
        ]);
        for (index, answer) in answers.iter().enumerate() {
            assert_eq!(answer.is_err(), index == 9, "{index}: {answer:?}");
        }
        let mut session = store.session().unwrap();
        assert_eq!(session.get(b"number").unwrap().as_deref(), Some(&b"2"[..]));
    }
}
