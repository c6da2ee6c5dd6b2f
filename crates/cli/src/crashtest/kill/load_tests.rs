//! Answers are compared with what they must be, and none that came is forgotten.

use super::*;
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

/// A server that answers any first request with OK and refuses all that follow.
fn refusing_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let refusals = "-ERR no\r\n".repeat(8 * DEPTH_MAX);
        write!(stream, "+OK\r\n{refusals}").unwrap();
        // Until the client hangs up.
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    port
}

/// A refusal ended the round at once, and answers that had come before it never reached the expected-state
/// file.
#[test]
fn answers_before_a_refusal_are_written_down() {
    let mut acknowledged = 0;
    for seed in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("expected");
        let keys = Keys { connections: 1 };
        let expected = Expected::new(keys.len());
        let (journal, tally) = (Journal::open(&path).unwrap(), Tally::default());
        let shared = Shared::new(keys, &expected, &journal, &tally);
        assert!(
            run(&shared, 0, refusing_server(), seed).is_err(),
            "seed {seed}"
        );
        let text = std::fs::read_to_string(&path).unwrap();
        let written = text.lines().filter(|line| line.starts_with("A ")).count();
        assert_eq!(
            written as u64,
            shared.tally.acknowledged.get(),
            "seed {seed}"
        );
        acknowledged += written;
    }
    assert!(acknowledged > 0, "no round began with a SET");
}
