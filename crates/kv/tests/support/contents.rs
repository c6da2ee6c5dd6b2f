//! The contents of a store, as a map, with ways to compare and change all of it.

use everdram::{Error, Session, Store};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Keys and their values.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// All keys and values of a store.
pub fn contents(session: &mut Session) -> Result<Contents, Error> {
    session.iter().collect()
}

/// The keys that differ, one per line.
pub fn difference(found: &Contents, wanted: &Contents) -> String {
    let brief = |value: Option<&Vec<u8>>| match value {
        Some(value) => format!("{} bytes {:?}", value.len(), &value[..value.len().min(8)]),
        None => "absent".into(),
    };
    let mut text = String::new();
    let mut keys: Vec<&Vec<u8>> = found.keys().chain(wanted.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys
        .into_iter()
        .filter(|key| found.get(*key) != wanted.get(*key))
    {
        let name = String::from_utf8_lossy(&key[key.len().saturating_sub(20)..]);
        let (found, wanted) = (brief(found.get(key)), brief(wanted.get(key)));
        let _ = writeln!(text, "  {name:?}: found {found}, wanted {wanted}");
    }
    text
}

/// Asserts that a store holds exactly `wanted`, by iteration and key by key, and that its check finds
/// nothing.
pub fn assert_holds(store: &Store, wanted: &Contents, when: &str) {
    let mut session = store.session().unwrap();
    let found = contents(&mut session).unwrap_or_else(|error| panic!("{when}: {error}"));
    assert!(found == *wanted, "{when}:\n{}", difference(&found, wanted));
    assert_eq!(
        store.len(),
        wanted.len() as u64,
        "{when}: the number of keys"
    );
    assert_sound(store, when);
}

/// Asserts that the store's own check finds nothing.
pub fn assert_sound(store: &Store, when: &str) {
    let report = store
        .check()
        .unwrap_or_else(|error| panic!("{when}: {error}"));
    assert!(report.findings.is_empty(), "{when}: {:?}", report.findings);
}
