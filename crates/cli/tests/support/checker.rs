//! Whether some order of the operations, each at one moment between its call and its
//! return, explains every answer.
//!
//! Keys that some operation uses together are judged together, all others apart. For each such group the
//! calls and returns are gone through in order of time, with the set of all *configurations* that explain
//! what was answered so far: the state, and which of the operations under way have happened in it. A return
//! keeps the configurations in which its operation has happened, after letting any of those under way happen
//! in any order before it ([`everdram_lab::linearize`], which the crash lab judges by, too). No configuration
//! left = no order explains the answer.
//!
//! An operation that nobody saw the answer of is under way until the killed process was gone; then it has
//! happened, or it never will.

use super::history::Operation;
use super::model::{State, apply};
use everdram_lab::linearize::reachable;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Operations told around the one that convicts.
const TOLD: usize = 12;

/// A state and the operations under way that have happened in it, ascending.
type Configuration = (State, Vec<usize>);

/// What was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) operations: usize,
    pub(crate) groups: usize,
    /// Most configurations at once: how much there was to choose.
    pub(crate) configurations_max: usize,
}

/// Judges a history.
///
/// # Errors
/// Which answer nothing explains, and what led to it.
pub(crate) fn check(history: &[Operation]) -> Result<Judged, String> {
    let mut judged = Judged::default();
    for (name, group) in groups(history) {
        let most = check_group(&group).map_err(|words| format!("keys with {name}: {words}"))?;
        judged.operations += group.len();
        judged.groups += 1;
        judged.configurations_max = judged.configurations_max.max(most);
    }
    Ok(judged)
}

/// The operations by the keys that are used together; a group is named after one of them.
fn groups(history: &[Operation]) -> BTreeMap<&str, Vec<&Operation>> {
    let mut above: HashMap<&str, &str> = HashMap::new();
    for operation in history {
        let keys = || operation.steps.iter().map(|step| step.key.as_str());
        for (first, key) in keys().zip(keys().skip(1)) {
            let (first, key) = (root(&above, first), root(&above, key));
            if first != key {
                above.insert(key, first);
            }
        }
    }
    let mut groups: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        let key = operation.steps[0].key.as_str();
        groups.entry(root(&above, key)).or_default().push(operation);
    }
    groups
}

fn root<'a>(above: &HashMap<&'a str, &'a str>, mut key: &'a str) -> &'a str {
    while let Some(next) = above.get(key) {
        key = next;
    }
    key
}

fn check_group(operations: &[&Operation]) -> Result<usize, String> {
    // At equal times calls come first: intervals that touch overlap.
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(operations.len() * 2);
    for (index, operation) in operations.iter().enumerate() {
        events.push((operation.called, false, index));
        events.push((operation.returned, true, index));
    }
    events.sort_unstable();
    let mut under_way: Vec<usize> = Vec::new();
    let mut possible: HashSet<Configuration> = HashSet::from([Configuration::default()]);
    let mut most = 1;
    for (_, is_return, index) in events {
        if !is_return {
            under_way.push(index);
            continue;
        }
        let after = explain(operations, &under_way, &possible, index);
        if after.is_empty() {
            return Err(words(operations, &under_way, &possible, index));
        }
        most = most.max(after.len());
        possible = after;
        under_way.retain(|&one| one != index);
    }
    Ok(most)
}

/// The configurations after operation `index` returned.
fn explain(
    operations: &[&Operation],
    under_way: &[usize],
    possible: &HashSet<Configuration>,
    index: usize,
) -> HashSet<Configuration> {
    let must_have_happened = operations[index].known;
    let reached = reachable(possible.iter().cloned(), |(state, happened), next| {
        if must_have_happened && happened.contains(&index) {
            // What else may happen by then may as well happen later.
            return;
        }
        for &one in under_way.iter().filter(|one| !happened.contains(one)) {
            let operation = operations[one];
            if let Some(state) = apply(state, &operation.steps, operation.known) {
                let mut happened = happened.clone();
                happened.push(one);
                happened.sort_unstable();
                next.push((state, happened));
            }
        }
    });
    let explain = |(_, happened): &Configuration| !must_have_happened || happened.contains(&index);
    let after = reached.into_iter().filter(explain);
    after
        .map(|(state, mut happened)| {
            happened.retain(|&one| one != index);
            (state, happened)
        })
        .collect()
}

fn words(
    operations: &[&Operation],
    under_way: &[usize],
    possible: &HashSet<Configuration>,
    index: usize,
) -> String {
    let convict = operations[index];
    let states: HashSet<&State> = possible.iter().map(|(state, _)| state).collect();
    let mut before: Vec<&&Operation> = operations
        .iter()
        .filter(|one| one.returned < convict.returned)
        .collect();
    before.sort_unstable_by_key(|one| one.returned);
    let before = &before[before.len().saturating_sub(TOLD)..];
    let list = |of: &mut dyn Iterator<Item = String>| of.collect::<Vec<_>>().join("\n  ");
    format!(
        "no order explains\n  {convict:?}\npossible states before it:\n  {}\nunder way with it:\n  {}\nreturned before it:\n  {}",
        list(&mut states.iter().map(|state| format!("{state:?}"))),
        list(
            &mut under_way
                .iter()
                .map(|&one| format!("{:?}", operations[one]))
        ),
        list(&mut before.iter().map(|one| format!("{one:?}"))),
    )
}
