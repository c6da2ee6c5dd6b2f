//! The keys of a run: their names, who writes them, and how the bytes found under one are understood.

use crate::demo::corpus::Corpus;
use crate::demo::ledger::{Kind, Observed};
use crate::killing::value;
use xxhash_rust::xxh3::xxh3_128;

/// Counters that each connection increments.
const COUNTERS_PER_CONNECTION: usize = 8;

/// Documents first, then counters. Key `i` is written by connection `i % connections` and no other.
pub struct Keys {
    names: Vec<Vec<u8>>,
    /// First value of each document, by its hash.
    first: Vec<u128>,
    /// Connections that write.
    pub connections: usize,
}

impl Keys {
    /// Keys for a corpus. Fewer documents than connections make fewer connections.
    #[must_use]
    pub fn new(corpus: &Corpus, connections: usize) -> Keys {
        let connections = connections.min(corpus.documents.len()).max(1);
        let mut names: Vec<Vec<u8>> = corpus
            .documents
            .iter()
            .map(|(key, _)| key.clone())
            .collect();
        for index in 0..connections * COUNTERS_PER_CONNECTION {
            names.push(format!("everdram:demo:counter:{index}").into_bytes());
        }
        let first = corpus
            .documents
            .iter()
            .map(|(_, value)| xxh3_128(value))
            .collect();
        Keys {
            names,
            first,
            connections,
        }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Number of documents; the keys after them are counters.
    #[must_use]
    pub fn documents(&self) -> usize {
        self.first.len()
    }

    /// A key's name.
    #[must_use]
    pub fn name(&self, key: usize) -> &[u8] {
        &self.names[key]
    }

    /// What each key holds, in order.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        (0..self.len()).map(|key| self.kind(key))
    }

    fn kind(&self, key: usize) -> Kind {
        if key < self.first.len() {
            Kind::Document
        } else {
            Kind::Counter
        }
    }

    /// Keys that `connection` writes.
    pub fn owned_by(&self, connection: usize) -> impl Iterator<Item = usize> {
        (connection..self.len()).step_by(self.connections)
    }

    /// Whether `connection` writes `key`.
    #[must_use]
    pub fn is_owned(&self, key: usize, connection: usize) -> bool {
        key % self.connections == connection
    }

    /// The document that `connection` owns nearest to `key`.
    #[must_use]
    pub fn owned_document(&self, key: usize, connection: usize) -> usize {
        let near = key - key % self.connections + connection;
        if near < self.documents() {
            near
        } else {
            connection
        }
    }

    /// A counter that `connection` owns, by any number.
    #[must_use]
    pub fn owned_counter(&self, number: usize, connection: usize) -> usize {
        let first = self.documents() + self.connections - 1;
        let aligned = first - first % self.connections + connection;
        let last_round = (self.len() - 1 - aligned) / self.connections;
        aligned + number % (last_round + 1) * self.connections
    }

    /// What the reply to GET says about a key.
    #[must_use]
    pub fn observe(&self, key: usize, found: Option<&[u8]>) -> Observed {
        let Some(found) = found else {
            return Observed::Absent;
        };
        if self.kind(key) == Kind::Counter {
            let number = std::str::from_utf8(found)
                .ok()
                .and_then(|text| text.parse().ok());
            let damaged = || Observed::Damaged(format!("counter `{}`", found.escape_ascii()));
            return number.map_or_else(damaged, Observed::Write);
        }
        match value::read(found, self.name(key)) {
            Ok(sequence) => Observed::Write(sequence),
            Err(_) if xxh3_128(found) == self.first[key] => Observed::Write(1),
            Err(what) => Observed::Damaged(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_writer() {
        for (documents, connections) in [(1, 1), (3, 8), (8, 3), (100, 7), (99, 2)] {
            let corpus = Corpus::generated(documents, 1);
            let keys = Keys::new(&corpus, connections);
            let mut owned: Vec<usize> = (0..keys.connections)
                .flat_map(|c| keys.owned_by(c))
                .collect();
            owned.sort_unstable();
            assert!(owned.into_iter().eq(0..keys.len()));
            for connection in 0..keys.connections {
                for number in 0..200 {
                    let document = keys.owned_document(number % keys.documents(), connection);
                    assert!(keys.is_owned(document, connection) && document < keys.documents());
                    let counter = keys.owned_counter(number, connection);
                    assert!(keys.is_owned(counter, connection));
                    assert!((keys.documents()..keys.len()).contains(&counter));
                }
            }
        }
    }
}
