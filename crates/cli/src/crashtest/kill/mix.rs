//! The requests of a campaign's connections: every kind of write, frequent overwriting of the same keys, and
//! reads of what other connections have just written.

use super::keys::Keys;
use crate::killing::journal::now_ms;
use crate::killing::keys::Kind;
use crate::killing::load::{self, Connection};
use crate::killing::value::VALUE_BYTES_MIN;
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::atomic::Ordering;

/// Most requests under way on one connection.
pub(super) const DEPTH_MAX: usize = 16;
/// An expiry so far in the future that no key expires within a campaign.
const FAR_MS: u64 = 86_400_000;
/// One of this many reads, deletions and changes of expiry has a key whose values may be large.
const LARGE_ONE_IN: usize = 24;
/// One of this many rounds only reads what other connections have just written. Without own writes, no slow
/// answer delays those of the reads.
const LOOK_ONE_IN: u32 = 3;
/// Most reads in such a round.
const LOOKS_MAX: usize = 3;

pub(super) struct Mix {
    pub(super) keys: Keys,
}

impl load::Mix for Mix {
    fn round(&self, to: &mut Connection<'_>) {
        match to.random.random_range(0..LOOK_ONE_IN) {
            0 => (0..to.random.random_range(1..=LOOKS_MAX)).for_each(|_| look(to)),
            _ => (0..to.random.random_range(1..=DEPTH_MAX)).for_each(|_| self.queue(to)),
        }
    }

    /// Mostly small, some larger than a page, a few larger than several blocks.
    fn value_bytes(&self, kind: Kind, random: &mut StdRng) -> usize {
        let most = match (kind, random.random_range(0..100)) {
            (Kind::Large, 0..30) => 1 << 20,
            (Kind::Large, _) => 200 << 10,
            (_, 0..60) => 300,
            (_, 60..92) => 4 << 10,
            (_, 92..99) => 20 << 10,
            (_, _) => 64 << 10,
        };
        random.random_range(VALUE_BYTES_MIN..most)
    }
}

impl Mix {
    fn queue(&self, to: &mut Connection<'_>) {
        let (keys, own) = (self.keys, to.number);
        let chosen = to.random.random_range(0..1 << 30);
        match to.random.random_range(0..1000) {
            0..220 => to.read(self.random_key(chosen)),
            220..500 => put(keys.document(own, chosen), to),
            500..560 => to.delete(self.value_key(own, chosen)),
            560..600 => expire(self.value_key(own, chosen), to),
            600..604 => put(keys.large(own, chosen), to),
            604..700 => to.increment(keys.counter(own, chosen)),
            _ => to.put_batch(keys.batch(own, chosen)),
        }
    }

    fn random_key(&self, chosen: usize) -> usize {
        let keys = self.keys;
        let (connection, chosen) = (chosen % keys.connections, chosen / keys.connections);
        let chosen_key = chosen / 4;
        match chosen % 4 {
            0 => keys.batch(connection, chosen_key),
            1 => keys.counter(connection, chosen_key),
            _ => self.value_key(connection, chosen_key),
        }
    }

    /// Most often a document, sometimes a large one.
    fn value_key(&self, connection: usize, chosen: usize) -> usize {
        let (keys, rest) = (self.keys, chosen / LARGE_ONE_IN);
        match chosen % LARGE_ONE_IN {
            0 => keys.large(connection, rest),
            _ => keys.document(connection, rest),
        }
    }
}

/// Reads the key that a random connection wrote last.
fn look(to: &mut Connection<'_>) {
    let latest = &to.shared.latest;
    let other = to.random.random_range(0..latest.len());
    let key = latest[other].load(Ordering::Relaxed);
    to.read(key);
}

fn put(key: usize, to: &mut Connection<'_>) {
    let expires_at_ms = match to.random.random_range(0..10) {
        0 => now_ms() + to.random.random_range(1..400),
        1 => now_ms() + FAR_MS,
        _ => 0,
    };
    to.put(key, expires_at_ms);
}

/// Adds or removes the expiry of the key's value. Puts a value if the key may have none.
fn expire(key: usize, to: &mut Connection<'_>) {
    if to.is_there(key) != Some(true) {
        put(key, to);
    } else if to.last(key).expires_at_ms != 0 {
        to.change_expiry(key, 0);
    } else {
        let from_now = if to.random.random() { FAR_MS } else { 150 };
        to.change_expiry(key, now_ms() + from_now);
    }
}
