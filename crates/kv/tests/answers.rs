//! Callers wait for what an answer depends on. Each test opens with what went wrong once.

mod support;

use everdram::engine::BatchOp;
use everdram::{EngineKind, Error, test_each_engine};
use support::each_bed;

test_each_engine!(
    a_batch_that_finds_nothing_to_do_waits_for_what_it_found,
    a_commit_waits_for_all_that_was_answered,
    that_a_value_is_too_short_is_an_answer,
);

/// A batch whose removals found all keys absent had nothing to write. It was acknowledged without waiting for
/// another session's removal of these keys, which was not durable yet. After a crash the keys were back.
fn a_batch_that_finds_nothing_to_do_waits_for_what_it_found(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let (mut first, mut second) = (store.session().unwrap(), store.session().unwrap());
        first.put(b"key", b"value").unwrap();
        first.submit_delete(b"key").unwrap();
        let removed = first.commit().unwrap();
        let nothing = second
            .engine()
            .batch(&[BatchOp::Delete { key: b"key" }])
            .unwrap();
        assert!(nothing >= removed, "{nothing:?} is before {removed:?}");
    });
}

/// Of several removals submitted together, those that found nothing waited for nothing, although another
/// session's removal of these keys may not have been durable yet.
fn a_commit_waits_for_all_that_was_answered(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let (mut first, mut second) = (store.session().unwrap(), store.session().unwrap());
        first.put(b"key", b"value").unwrap();
        first.submit_delete(b"key").unwrap();
        let removed = first.commit().unwrap();
        assert!(!second.submit_delete(b"key").unwrap());
        assert!(!second.submit_delete(b"another").unwrap());
        let nothing = second.commit().unwrap();
        assert!(nothing >= removed, "{nothing:?} is before {removed:?}");
    });
}

/// The error for a missing word tells the length of the value, but did not wait for another session's put of
/// that value, which may not have been durable yet.
fn that_a_value_is_too_short_is_an_answer(engine: EngineKind) {
    each_bed(engine, |bed| {
        let store = bed.open();
        let (mut first, mut second) = (store.session().unwrap(), store.session().unwrap());
        first.put(b"key", b"more than a word").unwrap();
        first.submit_put(b"key", b"short").unwrap();
        let shortened = first.commit().unwrap();
        let refused = second.engine().update_word(b"key", 0, &mut |word| word + 1);
        assert!(
            matches!(refused, Err(Error::WordOutside { len: 5, .. })),
            "{refused:?}"
        );
        let seen = second.engine().last_read();
        assert!(seen >= shortened, "{seen:?} is before {shortened:?}");
    });
}
