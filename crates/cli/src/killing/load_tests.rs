//! The load compares each answer with the correct one, and records every answer that it received.

use super::super::expected::Expected;
use super::super::journal::Journal;
use super::*;
use std::borrow::Cow;
use std::io::Write as _;
use std::net::TcpListener;

#[test]
fn what_is_known_of_an_answer_is_demanded() {
    let (ok, one) = (|| Reply::Simple("OK".into()), || Reply::Integer(1));
    let transaction = Answer::Transaction(vec![ok(), one()]);
    let is_right = |answer: &Answer, reply| answer.judge(reply).unwrap().is_none();
    assert!(is_right(&Answer::Ok, ok()));
    assert!(is_right(&Answer::Unknown, Reply::Integer(7)));
    assert!(is_right(&Answer::Integer(1), one()));
    assert!(!is_right(&Answer::Integer(2), one()));
    assert!(is_right(&transaction, Reply::Array(vec![ok(), one()])));
    let other = vec![ok(), Reply::Integer(0)];
    assert!(!is_right(&transaction, Reply::Array(other)));
    let refusal = || Reply::Error("ERR no".into());
    for (answer, reply) in [
        (&Answer::Ok, one()),
        (&Answer::Integer(1), ok()),
        (&transaction, Reply::Null),
        (&transaction, Reply::Array(vec![ok()])),
        (&transaction, Reply::Array(vec![ok(), refusal()])),
    ] {
        assert!(answer.judge(reply).is_err());
    }
}

/// A server that answers the first request with OK and refuses all later ones.
fn refusing_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let refusals = "-ERR no\r\n".repeat(100);
        write!(stream, "+OK\r\n{refusals}").unwrap();
        // Until the client closes the connection.
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    port
}

/// Two documents, a counter and a batch of one connection.
struct Four;

impl Keys for Four {
    fn connections(&self) -> usize {
        1
    }

    fn len(&self) -> usize {
        4
    }

    fn kind(&self, key: usize) -> Kind {
        [Kind::Document, Kind::Document, Kind::Counter, Kind::Exec][key]
    }

    fn writer(&self, _key: usize) -> usize {
        0
    }

    fn name(&self, key: usize) -> Cow<'_, [u8]> {
        Cow::Owned(vec![b'a'; key + 1])
    }
}

/// Queues a SET and one more request in each round.
struct SetAnd(fn(&mut Connection<'_>));

impl Mix for SetAnd {
    fn round(&self, to: &mut Connection<'_>) {
        to.put(0, 0);
        self.0(to);
    }

    fn value_bytes(&self, _kind: Kind, _random: &mut StdRng) -> usize {
        100
    }
}

/// A refusal once ended the round at once. Earlier answers of the round then never reached the expected-state
/// file.
#[test]
fn answers_before_a_refusal_are_written_down() {
    for and in [
        |to: &mut Connection<'_>| to.read(1),
        |to: &mut Connection<'_>| to.put(1, 0),
        |to: &mut Connection<'_>| to.delete(1),
        |to: &mut Connection<'_>| to.increment(2),
        |to: &mut Connection<'_>| to.put_batch(3),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("expected");
        let (expected, tally) = (Expected::new(Four.len()), Tally::default());
        let journal = Journal::open(&path).unwrap();
        let ledger = Ledger {
            expected: &expected,
            journal: Some(&journal),
        };
        let mix = SetAnd(and);
        let shared = Shared::new(&Four, &mix, ledger, &tally);
        assert!(run(&shared, 0, refusing_server(), 1).is_err());
        let text = std::fs::read_to_string(&path).unwrap();
        let written = text.lines().filter(|line| line.starts_with("A "));
        assert_eq!(
            (written.count(), tally.acknowledged.get()),
            (1, 1),
            "{text}"
        );
        assert_eq!(expected.acknowledged(0), 1);
    }
}
