//! What a store over a landing area may hold after requests and one-sided writes, by what a client of it
//! knows: which requests were answered, and what lies in its slots.
//!
//! A slot counts from the moment in which it is what its grant is for, to the last byte, and once. Whoever
//! asks for the key finds it applied. What was whole may be damaged again by its own client before that; then
//! either is possible.

use everdram::landing::{Landing, slot};
use everdram_fabric::Status;
use everdram_fabric::fuzzing::{Answer, Asked, Told};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a key holds, without what has expired.
type Held = Option<Vec<u8>>;

/// A grant whose value was not applied for certain.
struct Pending {
    guest: usize,
    told: Told,
    /// It was whole once.
    was_whole: bool,
    /// It may have been applied while it was whole.
    maybe: bool,
}

/// See the module text.
pub struct Possible {
    landing: Arc<Landing>,
    now_ms: u64,
    held: BTreeMap<Vec<u8>, BTreeSet<Held>>,
    pending: Vec<Pending>,
}

impl Possible {
    /// Of an empty store.
    #[must_use]
    pub fn new(landing: Arc<Landing>, now_ms: u64) -> Possible {
        Possible {
            landing,
            now_ms,
            held: BTreeMap::new(),
            pending: Vec::new(),
        }
    }

    /// What this key may hold.
    pub fn of(&mut self, key: &[u8]) -> &mut BTreeSet<Held> {
        let held = self.held.entry(key.to_vec());
        held.or_insert_with(|| BTreeSet::from([None]))
    }

    /// Every key that may be there.
    #[must_use]
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.held.keys().cloned().collect()
    }

    fn seen(&self, value: &[u8], expires_at_ms: u64) -> Held {
        (expires_at_ms == 0 || expires_at_ms > self.now_ms).then(|| value.to_vec())
    }

    /// What a slot holds, if it is whole.
    fn whole(&self, told: &Told) -> Option<Held> {
        let grant = told.grant(self.landing.slots().start);
        let mut there = vec![0; grant.bytes.next_multiple_of(8) as usize];
        self.landing.pool().region().load(grant.offset, &mut there);
        there.truncate(grant.bytes as usize);
        let value = there[there.len() - told.value_bytes as usize..].to_vec();
        let mut bytes = Vec::new();
        slot::encode(&mut bytes, &grant, &told.key, &value, told.expires_at_ms);
        (bytes == there).then(|| self.seen(&value, told.expires_at_ms))
    }

    /// Something was written.
    pub fn written(&mut self) {
        for at in 0..self.pending.len() {
            let Some(held) = self.whole(&self.pending[at].told) else {
                continue;
            };
            self.pending[at].was_whole = true;
            let key = self.pending[at].told.key.clone();
            self.of(&key).insert(held);
        }
    }

    /// What is whole may have been applied.
    fn may_apply(&mut self) {
        for at in 0..self.pending.len() {
            let is_whole = self.whole(&self.pending[at].told).is_some();
            self.pending[at].maybe |= is_whole;
        }
    }

    /// Somebody has asked for this key.
    pub fn asked(&mut self, key: &[u8]) {
        let (mut last, mut is_certain, mut left) = (None, true, Vec::new());
        for pending in std::mem::take(&mut self.pending) {
            let whole = self
                .whole(&pending.told)
                .filter(|_| pending.told.key == key);
            let Some(held) = whole else {
                left.push(pending);
                continue;
            };
            is_certain &= !pending.maybe;
            let generation = pending.told.generation;
            if last.as_ref().is_none_or(|&(before, _)| before < generation) {
                last = Some((generation, held));
            }
        }
        self.pending = left;
        if let Some((_, held)) = last.filter(|_| is_certain) {
            *self.of(key) = BTreeSet::from([held]);
        }
    }

    /// A request was answered.
    ///
    /// # Panics
    /// If the answer shows what is not possible.
    pub fn answered(&mut self, guest: usize, answer: &Answer) {
        let (is_done, is_absent) = (answer.status == Status::Ok, answer.status == Status::Absent);
        if !is_done && !is_absent {
            self.may_apply();
            if let Asked::Arrived(number, generation) = answer.asked
                && answer.status == Status::Torn
            {
                let mut told = self.pending.iter().filter(|pending| {
                    let told = &pending.told;
                    (pending.guest, told.number, told.generation) == (guest, number, generation)
                });
                let whole = told.next().and_then(|pending| self.whole(&pending.told));
                assert!(whole.is_none(), "what is whole counts as torn");
            }
            return;
        }
        match &answer.asked {
            Asked::Put(key, value, expires_at_ms) => {
                self.asked(key);
                let held = self.seen(value, *expires_at_ms);
                *self.of(key) = BTreeSet::from([held]);
            }
            Asked::Delete(key) => {
                self.show(key, &|held| held.is_none() == is_absent);
                *self.of(key) = BTreeSet::from([None]);
            }
            Asked::Get(key) => {
                // The first part, if it is a long one.
                self.show(key, &|held| match held {
                    Some(value) => {
                        is_done
                            && value.len() as u64 == answer.value_bytes
                            && value.starts_with(&answer.body)
                    }
                    None => is_absent,
                });
            }
            Asked::Probe(key) => self.show(key, &|held| match held {
                Some(value) => is_done && value.len() as u64 == answer.value_bytes,
                None => is_absent,
            }),
            Asked::Arrived(number, generation) => self.arrived(guest, *number, *generation),
            Asked::Prepare => self.may_apply(),
            Asked::Other => {}
        }
        if let Some(told) = answer.told.as_ref().filter(|told| told.by_client) {
            // Its slot had another grant, whose value was applied.
            self.forget(guest, told.number);
            self.pending.push(Pending {
                guest,
                told: told.clone(),
                was_whole: false,
                maybe: false,
            });
        }
    }

    /// A key was shown, and holds what is like that.
    fn show(&mut self, key: &[u8], is_like: &dyn Fn(&Held) -> bool) {
        self.asked(key);
        let held = self.of(key);
        let before = held.clone();
        held.retain(is_like);
        assert!(
            !held.is_empty(),
            "{} shows what it cannot hold; possible: {before:?}",
            key.escape_ascii()
        );
    }

    fn arrived(&mut self, guest: usize, number: u64, generation: u64) {
        let pending = self.pending.iter().find(|pending| {
            let told = &pending.told;
            (pending.guest, told.number, told.generation) == (guest, number, generation)
        });
        if let Some(pending) = pending {
            let key = pending.told.key.clone();
            self.asked(&key);
            self.forget(guest, number);
        }
    }

    /// The value of a slot was applied.
    fn forget(&mut self, guest: usize, number: u64) {
        self.pending.retain(|pending| {
            let is_it = (pending.guest, pending.told.number) == (guest, number);
            assert!(
                !is_it || pending.was_whole,
                "a slot was applied that was never whole"
            );
            !is_it
        });
    }

    /// Requests without a reply: they may have happened, before or after what has arrived.
    pub fn lost(&mut self, lost: &[Asked]) {
        if lost.is_empty() {
            return;
        }
        self.may_apply();
        for asked in lost {
            match asked {
                // Without a key nothing happens.
                Asked::Put(key, ..) | Asked::Delete(key) if key.is_empty() => {}
                Asked::Put(key, value, expires_at_ms) => {
                    let held = self.seen(value, *expires_at_ms);
                    self.of(key).insert(held);
                }
                Asked::Delete(key) => drop(self.of(key).insert(None)),
                _ => {}
            }
        }
    }

    /// The connection of a guest is closed, and its slots are released.
    pub fn left(&mut self, guest: usize) {
        let of_guest = |pending: &&Pending| pending.guest == guest;
        let keys: BTreeSet<Vec<u8>> = self
            .pending
            .iter()
            .filter(of_guest)
            .map(|pending| pending.told.key.clone())
            .collect();
        keys.iter().for_each(|key| self.asked(key));
        self.pending.retain(|pending| pending.guest != guest);
    }

    /// The process has ended, and the next one has applied what had arrived.
    pub fn restarted(&mut self) {
        self.keys().iter().for_each(|key| self.asked(key));
        self.pending.clear();
    }
}
