//! Independent keys.
//!
//! An engine locks keys, and tracks dependencies of reads, by *stripes*: groups of keys, by a hash that every
//! open store draws anew. A submitted write holds its key's stripe, so a thread with two sessions that writes
//! two keys of one stripe may wait for itself. A failed write affects its whole stripe. Tests of several keys
//! choose them here.

use everdram::{Session, Store};

/// Far more than needed to find a few keys of different stripes among thousands.
const CANDIDATES: u32 = 10_000;

/// Absent keys of pairwise different stripes.
///
/// The watch number of an absent key is the clock of its stripe. So a candidate that is put and deleted moves
/// the numbers of the keys in its stripe. These writes stay in the block of a separate session, which
/// existing sessions do not share.
pub(crate) fn independent_keys<const COUNT: usize>(store: &Store) -> [Vec<u8>; COUNT] {
    let mut session = store.session().unwrap();
    let mut chosen: Vec<Vec<u8>> = Vec::new();
    for number in 0..CANDIDATES {
        let candidate = format!("key-{number}").into_bytes();
        let before = clocks(&mut session, &chosen);
        session.put(&candidate, b"").unwrap();
        assert!(session.delete(&candidate).unwrap());
        if clocks(&mut session, &chosen) == before {
            chosen.push(candidate);
        }
        match chosen.try_into() {
            Ok(keys) => return keys,
            Err(few) => chosen = few,
        }
    }
    panic!("{COUNT} keys of different stripes are not among {CANDIDATES}");
}

/// The watch numbers of keys.
fn clocks(session: &mut Session, keys: &[Vec<u8>]) -> Vec<u64> {
    keys.iter().map(|key| session.engine().watch(key)).collect()
}
