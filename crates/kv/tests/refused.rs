//! Writes for which there is no room: it is made if it can be; otherwise nothing of them happens, now or
//! after a restart.

mod support;

use everdram::engine::{BatchOp, Change, Current, Scope};
use everdram::{EngineKind, Error, Session, test_each_engine};
use support::{Bed, copy_pool};

test_each_engine!(
    a_batch_without_room_changes_nothing,
    a_refused_batch_leaves_nothing_in_the_log,
    a_transaction_gets_the_room_of_what_was_replaced,
    a_change_of_one_key_gets_the_room_of_what_was_replaced,
    others_may_write_while_room_is_made,
);

/// A batch that cannot fit is refused before anything happens, and nothing changes.
fn a_batch_without_room_changes_nothing(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open_with(|options| {
        options.max_bytes = 4 << 20;
        options.dstore.data_bytes_max = 4 << 20;
        options.initial_bytes = 1 << 20;
    });
    let mut session = store.session().unwrap();
    session.put(b"a", b"before").unwrap();
    let large = vec![1; 1 << 20];
    let keys: Vec<Vec<u8>> = (0..8u8).map(|n| vec![b'a' + n]).collect();
    let put = |key| BatchOp::Put {
        key,
        value: &large,
        expires_at_ms: 0,
    };
    let ops: Vec<BatchOp<'_>> = keys.iter().map(|key| put(key.as_slice())).collect();
    assert!(matches!(session.batch(&ops), Err(Error::NoSpace(_))));
    assert_eq!(session.get(b"a").unwrap().as_deref(), Some(&b"before"[..]));
    assert_eq!(store.len(), 1);
    session.put(b"a", b"after").unwrap();
    drop(session);
    drop(store);
    let store = bed.open();
    let mut session = store.session().unwrap();
    assert_eq!(session.get(b"a").unwrap().as_deref(), Some(&b"after"[..]));
    assert_eq!(store.len(), 1);
    bed.verify(&store);
}

/// Lines written for a batch that was refused half-way reached the redo log with the session's next fence,
/// and replay laid them over another session's durable writes.
fn a_refused_batch_leaves_nothing_in_the_log(engine: EngineKind) {
    let bed = Bed::file_in_memory().of(engine);
    let store = bed.open_with(|options| {
        options.max_bytes = 16 << 20;
        options.dstore.data_bytes_max = 16 << 20;
    });
    let (mut refused, mut other) = (store.session().unwrap(), store.session().unwrap());
    let value = |byte, bytes| vec![byte; bytes];
    let (first, second) = (value(1, 100_000), value(2, 64 << 20));
    let put = |key, value| BatchOp::Put {
        key,
        value,
        expires_at_ms: 0,
    };
    let ops = [put(b"a", &first), put(b"b", &second)];
    assert!(matches!(refused.batch(&ops), Err(Error::NoSpace(_))));
    let durable = |session: &mut Session, key: &[u8], bytes| {
        session.submit_put(key, &value(3, bytes)).unwrap();
        let ticket = session.commit().unwrap();
        session.wait(ticket).unwrap();
    };
    durable(&mut other, b"c", 100_000);
    durable(&mut refused, b"d", 10);
    let left = Bed::file_in_memory().of(engine);
    copy_pool(&bed.path(), &left.path());
    let after = left.open();
    let mut session = after.session().unwrap();
    let found = session.get(b"c").unwrap();
    assert!(found == Some(value(3, 100_000)), "c is lost");
    assert_eq!(session.get(b"d").unwrap(), Some(value(3, 10)));
    assert_eq!(session.get(b"a").unwrap(), None);
    left.verify(&after);
}

/// A pool full of replaced values has room for puts, which make it, but refused transactions.
fn a_transaction_gets_the_room_of_what_was_replaced(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open_with(|options| {
        options.max_bytes = 4 << 20;
        options.dstore.data_bytes_max = 4 << 20;
        options.initial_bytes = 1 << 20;
        options.reclaim_background = false;
    });
    let mut session = store.session().unwrap();
    let value = vec![1; 100_000];
    for round in 0..200_u8 {
        let keys = [[b'a', round % 4], [b'b', round % 4]];
        let mut body = |both: &mut dyn everdram::engine::Transaction| {
            both.put(&keys[0], &value, 0)?;
            both.put(&keys[1], &value, 0)
        };
        let scope = [&keys[0][..], &keys[1][..]];
        session
            .transaction(Scope::Keys(&scope), &mut body)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    assert_eq!(store.len(), 8);
    // A transaction that does not fit is refused, and changes nothing.
    let too_much = vec![2; 8 << 20];
    let scope = [&b"a\0"[..], &b"c"[..]];
    let refused = session.transaction(Scope::Keys(&scope), &mut |both| {
        both.put(b"a\0", b"new", 0)?;
        both.put(b"c", &too_much, 0)
    });
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    assert!(
        session
            .get(b"a\0")
            .unwrap()
            .is_some_and(|found| found == value)
    );
    bed.verify(&store);
}

/// As for transactions: INCR and APPEND were refused where SET made room.
fn a_change_of_one_key_gets_the_room_of_what_was_replaced(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open_with(|options| {
        options.max_bytes = 4 << 20;
        options.dstore.data_bytes_max = 4 << 20;
        options.initial_bytes = 1 << 20;
        options.reclaim_background = false;
    });
    let mut session = store.session().unwrap();
    for round in 0..200_u8 {
        let mut decide = |_: Option<Current<'_>>, value: &mut Vec<u8>| {
            value.resize(100_000, round);
            Change::Put { expires_at_ms: 0 }
        };
        // Of a key that is gone, too, whose tombstone may go while room is made.
        if round % 3 == 0 {
            session.delete(&[b'a', round % 4]).unwrap();
        }
        session
            .update(&[b'a', round % 4], &mut decide)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        session
            .append(&[b'a', round % 4], b"end")
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    for last in 196..200_u8 {
        let mut value = vec![last; 100_000];
        value.extend_from_slice(b"end");
        assert!(session.get(&[b'a', last % 4]).unwrap() == Some(value));
    }
    bed.verify(&store);
}

/// A write that found no room was refused if other sessions took the room that it made, or held some up for a
/// moment, in a pool of which most was garbage. It tries again, and decides anew.
fn others_may_write_while_room_is_made(engine: EngineKind) {
    const ROUNDS: u64 = 300;
    const THREADS: u64 = 2;
    let bed = Bed::emulated().of(engine);
    let store = bed.open_with(|options| {
        options.max_bytes = 4 << 20;
        options.dstore.data_bytes_max = 4 << 20;
        options.initial_bytes = 1 << 20;
        options.reclaim_background = false;
    });
    let count_of = |value: &[u8]| {
        value
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word))
    };
    let next = |before: u64, into: &mut Vec<u8>| {
        into.extend_from_slice(&(before + 1).to_le_bytes());
        into.resize(30_000, 1);
    };
    let update = || {
        let mut session = store.session().unwrap();
        for _ in 0..ROUNDS {
            let decided = session.update(b"shared", &mut |current, value| {
                next(current.map_or(0, |current| count_of(current.value)), value);
                Change::Put { expires_at_ms: 0 }
            });
            decided.unwrap();
        }
    };
    let transact = || {
        let mut session = store.session().unwrap();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let scope = Scope::Keys(&[b"shared", b"own"]);
            let done = session.transaction(scope, &mut |both| {
                before.clear();
                after.clear();
                both.get(b"shared", &mut before)?;
                next(count_of(&before), &mut after);
                both.put(b"shared", &after, 0)?;
                both.put(b"own", &after, 0)
            });
            done.unwrap();
        }
    };
    let put = || {
        let mut session = store.session().unwrap();
        for round in 0..ROUNDS {
            session.put(b"put", &vec![round as u8; 30_000]).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(update);
            scope.spawn(transact);
            scope.spawn(put);
        }
    });
    let value = store.session().unwrap().get(b"shared").unwrap().unwrap();
    assert_eq!(count_of(&value), 2 * THREADS * ROUNDS);
    bed.verify(&store);
}
