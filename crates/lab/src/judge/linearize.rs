//! Just-in-time linearization: the search that judges of histories share.
//!
//! A judge goes along a history and keeps every *configuration* that explains the answers so far: a state,
//! and which of the calls under way have happened in it. When a call returns or a crash comes, any calls
//! under way may have happened before that, in any order. This finds all configurations to which that leads.
//! What a call does, which calls may happen and which configurations explain an answer is for the judge to
//! say.

use std::collections::HashSet;
use std::hash::Hash;

/// All configurations that can be reached from `start`, `start` included. `happen` adds to its second
/// argument those to which one more call leads; adding none ends the search there.
pub fn reachable<C: Clone + Eq + Hash>(
    start: impl IntoIterator<Item = C>,
    mut happen: impl FnMut(&C, &mut Vec<C>),
) -> HashSet<C> {
    let mut found: HashSet<C> = start.into_iter().collect();
    let mut open: Vec<C> = found.iter().cloned().collect();
    let mut next = Vec::new();
    while let Some(configuration) = open.pop() {
        happen(&configuration, &mut next);
        for one in next.drain(..) {
            if found.insert(one.clone()) {
                open.push(one);
            }
        }
    }
    found
}
