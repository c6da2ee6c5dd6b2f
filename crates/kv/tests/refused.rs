//! Batches for which there is no room: nothing of them happens, now or after a restart.

mod support;

use everdram::engine::BatchOp;
use everdram::{EngineKind, Error, Session, test_each_engine};
use support::{Bed, copy_pool};

test_each_engine!(
    a_batch_without_room_changes_nothing,
    a_refused_batch_leaves_nothing_in_the_log,
);

/// A batch that cannot fit says so before anything happened, and everything is as it was.
fn a_batch_without_room_changes_nothing(engine: EngineKind) {
    let bed = Bed::emulated().of(engine);
    let store = bed.open_with(|options| {
        options.max_bytes = 4 << 20;
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

/// Lines that were written for a batch which was refused half-way came to the redo log with the session's
/// next fence, and replay laid them over what another session had been told is durable.
fn a_refused_batch_leaves_nothing_in_the_log(engine: EngineKind) {
    let bed = Bed::file_in_memory().of(engine);
    let store = bed.open_with(|options| options.max_bytes = 16 << 20);
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
