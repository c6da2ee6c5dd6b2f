//! Every store keeps the contract that the benchmark measures by: what was put is there, what was deleted is
//! not, and where the store is on a medium, all of it is there after it was opened again.
#![forbid(unsafe_code)]

use everdram_bench::{Client, Durability, Opener, Subject};
use std::thread;

const RECORDS: u64 = 1000;
const RECORD_BYTES: usize = 16 + 200;

/// Runs `check` on each store in a directory of its own.
fn each_store(check: impl Fn(&dyn Opener, &std::path::Path)) {
    for opener in everdram_bench_rivals::all() {
        println!("{} {}", opener.name(), opener.version());
        let dir = tempfile::tempdir().unwrap();
        check(opener.as_ref(), dir.path());
    }
}

fn open(opener: &dyn Opener, dir: &std::path::Path) -> Box<dyn Subject> {
    opener.open(dir, RECORDS, RECORD_BYTES).unwrap()
}

fn value_of(client: &mut dyn Client, key: &str) -> Option<Vec<u8>> {
    let mut value = b"before".to_vec();
    let found = client.get(key.as_bytes(), &mut value).unwrap();
    let appended = value
        .strip_prefix(b"before")
        .expect("what was in the buffer stays")
        .to_vec();
    assert!(found || appended.is_empty());
    found.then_some(appended)
}

#[test]
fn values_are_put_overwritten_and_deleted() {
    each_store(|opener, dir| {
        let subject = open(opener, dir);
        let mut client = subject.client().unwrap();
        assert_eq!(value_of(client.as_mut(), "a"), None);
        client.put(b"a", &[1; 200]).unwrap();
        client.put(b"b", b"").unwrap();
        assert_eq!(value_of(client.as_mut(), "a"), Some(vec![1; 200]));
        assert_eq!(value_of(client.as_mut(), "b"), Some(Vec::new()));
        client.put(b"a", &[2; 100_000]).unwrap();
        assert_eq!(value_of(client.as_mut(), "a"), Some(vec![2; 100_000]));
        assert!(client.delete(b"a").unwrap());
        assert!(!client.delete(b"a").unwrap());
        assert_eq!(value_of(client.as_mut(), "a"), None);
        assert_eq!(value_of(client.as_mut(), "b"), Some(Vec::new()));
    });
}

#[test]
fn a_word_steps_in_place() {
    each_store(|opener, dir| {
        let subject = open(opener, dir);
        let mut client = subject.client().unwrap();
        assert!(!client.update_word(b"a").unwrap());
        client.put(b"a", &[255, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap();
        assert!(client.update_word(b"a").unwrap());
        assert_eq!(
            value_of(client.as_mut(), "a"),
            Some(vec![0, 1, 0, 0, 0, 0, 0, 0, 9])
        );
        client.put(b"short", b"1234567").unwrap();
        assert!(client.update_word(b"short").is_err());
        assert_eq!(
            value_of(client.as_mut(), "short"),
            Some(b"1234567".to_vec())
        );
    });
}

#[test]
fn many_are_put_and_read_at_once() {
    each_store(|opener, dir| {
        let subject = open(opener, dir);
        let mut client = subject.client().unwrap();
        client
            .put_many(&[(b"a", b"1"), (b"b", b"22"), (b"c", b"333")])
            .unwrap();
        let mut values = b"before".to_vec();
        assert_eq!(
            client
                .get_many(&[b"c", b"absent", b"a"], &mut values)
                .unwrap(),
            2
        );
        assert_eq!(values, b"before3331");
    });
}

#[test]
fn a_scan_visits_as_many_as_asked_for() {
    each_store(|opener, dir| {
        let subject = open(opener, dir);
        let mut client = subject.client().unwrap();
        for number in 0..100 {
            client
                .put(format!("key{number:03}").as_bytes(), &[7; 5])
                .unwrap();
        }
        let mut values = Vec::new();
        assert_eq!(client.scan(b"key000", 10, &mut values).unwrap(), 10);
        assert_eq!(values, [7; 50]);
        values.clear();
        assert_eq!(client.scan(b"key", 1000, &mut values).unwrap(), 100);
        assert_eq!(values.len(), 500);
    });
}

#[test]
fn threads_share_a_store() {
    each_store(|opener, dir| {
        let subject = open(opener, dir);
        thread::scope(|scope| {
            for thread in 0..4 {
                let subject = &subject;
                scope.spawn(move || {
                    let mut client = subject.client().unwrap();
                    for number in 0..25 {
                        client
                            .put(format!("{thread}-{number}").as_bytes(), &[thread; 200])
                            .unwrap();
                    }
                });
            }
        });
        let mut client = subject.client().unwrap();
        for thread in 0..4 {
            for number in 0..25 {
                let value = value_of(client.as_mut(), &format!("{thread}-{number}"));
                assert_eq!(value, Some(vec![thread; 200]), "{}", opener.name());
            }
        }
    });
}

#[test]
fn what_was_closed_is_there_after_opening_again() {
    each_store(|opener, dir| {
        let subject = open(opener, dir);
        if subject.medium_bytes().is_none() {
            assert_eq!(opener.durability(), Durability::Never);
            return;
        }
        let mut client = subject.client().unwrap();
        for number in 0..50 {
            client
                .put(format!("key{number}").as_bytes(), &[number; 200])
                .unwrap();
        }
        client.delete(b"key3").unwrap();
        client.update_word(b"key4").unwrap();
        client
            .put_many(&[(b"key5", b"five"), (b"new", b"one")])
            .unwrap();
        drop(client);
        assert!(
            subject.medium_bytes().unwrap() > 50 * 200,
            "{}",
            opener.name()
        );
        drop(subject);

        let subject = open(opener, dir);
        let mut client = subject.client().unwrap();
        let mut word_four = vec![4; 200];
        word_four[0] = 5;
        assert_eq!(
            value_of(client.as_mut(), "key2"),
            Some(vec![2; 200]),
            "{}",
            opener.name()
        );
        assert_eq!(value_of(client.as_mut(), "key3"), None, "{}", opener.name());
        assert_eq!(
            value_of(client.as_mut(), "key4"),
            Some(word_four),
            "{}",
            opener.name()
        );
        assert_eq!(value_of(client.as_mut(), "key5"), Some(b"five".to_vec()));
        assert_eq!(value_of(client.as_mut(), "new"), Some(b"one".to_vec()));
    });
}

#[test]
fn names_are_distinct_and_versions_known() {
    let mut names = Vec::new();
    for opener in everdram_bench_rivals::all() {
        let version = opener.version();
        assert!(
            version.starts_with(|first: char| first.is_ascii_digit()),
            "{}: {version}",
            opener.name()
        );
        assert!(!names.contains(&opener.name()));
        names.push(opener.name());
    }
}
