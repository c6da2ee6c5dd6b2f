//! Holes in the layout of records and the coverage of their checks.

use crate::support::Bed;
use crate::support::contents::{Contents, assert_holds, assert_sound};
use crate::support::frozen::{DATA_AT, Frozen, changed_words, word};
use crate::{after_kill, map, opened, quiet};
use everdram::{Error, Store};

/// Flushing stepped 64 bytes at a time from an unaligned start and missed the last line. On files an
/// unflushed line is not in the log, so this medium shows it.
#[test]
fn hole_v7_the_last_line_of_every_record_is_flushed() {
    let bed = Bed::file_in_memory();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for length in 0..300usize {
        let (key, value) = (format!("{length}").into_bytes(), vec![length as u8; length]);
        session.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    let killed = Frozen::take(&bed.path());
    let elsewhere = Bed::file_in_memory();
    killed.lay(&elsewhere.path());
    assert_holds(&quiet(&elsewhere), &model, "killed");
}

/// The effect of one put, word by word: the image before it, after it, and where they differ.
fn one_put() -> (Frozen, Frozen, Vec<usize>, Contents) {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"before", &[1; 77]).unwrap();
    let before = Frozen::take(&bed.path());
    session.put(b"key", &[2; 216]).unwrap();
    let after = Frozen::take(&bed.path());
    let changed = changed_words(before.image(), after.image());
    assert!(changed.len() > 27, "{}", changed.len());
    (before, after, changed, map(&[(b"before", &[1; 77])]))
}

/// Asserts that a record of which only some words arrived does not count.
fn assert_no_torn_record(keep: impl Fn(usize, usize) -> bool) {
    let (before, after, changed, model) = one_put();
    for round in 0..changed.len() {
        let mut torn = before.clone();
        for (index, &at) in changed.iter().enumerate() {
            if keep(round, index) {
                torn.image_mut()[at..at + 8].copy_from_slice(&after.image()[at..at + 8]);
            }
        }
        let (_place, store) = opened(&torn);
        assert_holds(
            &store,
            &model,
            &format!("word {round} of {}", changed.len()),
        );
    }
}

/// A record's lengths could straddle two words, so a crash left garbage lengths that recovery followed.
#[test]
fn hole_v8_torn_lengths_are_not_followed() {
    assert_no_torn_record(|round, index| index != round);
}

/// The valid bit left the cache with the data, not after it: a crash kept the bit and lost the data.
#[test]
fn hole_v9_a_record_without_its_data_is_none() {
    assert_no_torn_record(|round, index| index < round);
}

/// A reused page had valid records of its earlier life after the new tail.
#[test]
fn hole_v10_bytes_of_an_earlier_life_stay_dead() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    for life in 0..4u32 {
        for number in 0..400u32 {
            session
                .put(
                    &[life.to_le_bytes(), number.to_le_bytes()].concat(),
                    &[life as u8; 100],
                )
                .unwrap();
        }
        for number in 0..400u32 {
            session
                .delete(&[life.to_le_bytes(), number.to_le_bytes()].concat())
                .unwrap();
        }
        store.engine().reclaim().unwrap();
    }
    // A few records at the start of blocks full of old data.
    let mut model = Contents::new();
    for number in 0..3u8 {
        store
            .session()
            .unwrap()
            .put(&[number], b"the only ones")
            .unwrap();
        model.insert(vec![number], b"the only ones".to_vec());
    }
    assert!(store.stats().blocks_reclaimed > 4);
    let (_place, killed) = after_kill(&bed);
    assert_holds(&killed, &model, "killed");
}

/// Length 0 meant "the value is on the next page": an empty value read garbage, and key and value pages were
/// deleted and compacted separately.
#[test]
fn hole_v11_empty_and_many_page_values_are_whole() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    let mut model = Contents::new();
    for round in 0..6usize {
        for number in 0..12usize {
            let length = [0, 40_000, 0, 4_000, 100_000, 24_000][(round + number) % 6];
            let (key, value) = (vec![number as u8], vec![round as u8; length]);
            session.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        store.engine().reclaim().unwrap();
        let (_place, killed) = after_kill(&bed);
        assert_holds(&killed, &model, &format!("round {round}, killed"));
    }
    assert_holds(&store, &model, "at the end");
}

/// In-place updates of up to 64 bytes were called atomic, but power fails between words. And they invalidated
/// a record's checksum.
#[test]
fn hole_v13_only_whole_words_change_in_place() {
    let bed = Bed::shaped(6, Some((8, 16)));
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    for number in 0..1_000u64 {
        session.put(&number.to_le_bytes(), &[1; 16]).unwrap();
    }
    let key = 3u64.to_le_bytes();
    for at in [1, 4, 9, 12, 16, usize::MAX] {
        let refused = session.update_word(&key, at, &mut |word| word + 1);
        assert!(
            matches!(refused, Err(Error::WordOutside { .. })),
            "{at}: {refused:?}"
        );
    }
    session.update_word(&key, 0, &mut |word| word).unwrap();
    let before = Frozen::take(&bed.path());
    session.update_word(&key, 8, &mut |_| 77).unwrap();
    let after = Frozen::take(&bed.path());
    assert_eq!(
        changed_words(before.image(), after.image()).len(),
        1,
        "one word is stored, nothing else"
    );
    let elsewhere = Bed::shaped(6, Some((8, 16)));
    after.lay(&elsewhere.path());
    let killed = quiet(&elsewhere);
    assert_eq!(
        word(&killed.session().unwrap().get(&key).unwrap().unwrap(), 8),
        77
    );
    assert_eq!(killed.len(), 1_000);
    assert_sound(&killed, "killed");
}

/// Without checksums a media error or a stray write was returned as a value.
#[test]
fn hole_v16_a_damaged_value_is_an_error() {
    let bed = Bed::emulated();
    let store = quiet(&bed);
    let mut session = store.session().unwrap();
    session.put(b"key", b"needle in the image").unwrap();
    session.put(b"other", b"fine").unwrap();
    drop(session);
    store.close().unwrap();
    let mut frozen = Frozen::take(&bed.path());
    let image = frozen.image_mut();
    let at = (DATA_AT..)
        .find(|&at| image[at..].starts_with(b"needle"))
        .unwrap();
    image[at] ^= 1;
    frozen.lay(&bed.path());
    let refused = Store::open(bed.path(), &bed.options())
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(refused, Error::Corrupt { offset, .. } if offset.abs_diff(at as u64) < 64),
        "{refused}"
    );
}

/// Fingerprints without a key let a client choose colliding keys, and checksums without one let it forge
/// records inside its values.
#[test]
fn hole_v18_checks_are_keyed_for_each_pool() {
    let images = [0, 1].map(|_| {
        let bed = Bed::emulated();
        let store = quiet(&bed);
        store
            .session()
            .unwrap()
            .put(b"key", b"the same in both")
            .unwrap();
        Frozen::take(&bed.path())
    });
    let [one, two] = &images;
    let at = (DATA_AT..)
        .find(|&at| one.image()[at..].starts_with(b"the same"))
        .unwrap();
    let record = at - 3 - 24;
    assert_eq!(
        &one.image()[record..record + 16],
        &two.image()[record..record + 16]
    );
    assert_ne!(
        word(one.image(), record + 16),
        word(two.image(), record + 16),
        "the checks are the same"
    );
    // A record copied from the other pool, whole and to its own place, does not count.
    let mut forged = one.clone();
    forged.image_mut()[record..record + 48].copy_from_slice(&two.image()[record..record + 48]);
    let (_place, store) = opened(&forged);
    assert_holds(&store, &Contents::new(), "a forged record");
}
