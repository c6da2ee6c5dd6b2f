//! The keys of the demo: the documents of a corpus, and counters.

use super::corpus::Corpus;
use crate::killing::keys::{Keys, Kind};
use crate::killing::value;
use std::borrow::Cow;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// Counters that each connection increments.
const COUNTERS_PER_CONNECTION: usize = 8;

/// Documents first, then counters. Key `i` is written by connection `i % connections` and no other.
pub(super) struct DemoKeys {
    names: Vec<Vec<u8>>,
    /// First value of each document, by its hash.
    first: Vec<u128>,
    connections: usize,
}

impl DemoKeys {
    /// The keys for a corpus. With fewer documents than connections, there are only as many connections as
    /// documents.
    pub(super) fn new(corpus: &Corpus, connections: usize) -> DemoKeys {
        let documents = &corpus.documents;
        let connections = connections.min(documents.len()).max(1);
        let mut names: Vec<Vec<u8>> = documents.iter().map(|(key, _)| key.clone()).collect();
        for index in 0..connections * COUNTERS_PER_CONNECTION {
            names.push(format!("everdram:demo:counter:{index}").into_bytes());
        }
        let first = documents.iter().map(|(_, value)| xxh3_128(value)).collect();
        DemoKeys {
            names,
            first,
            connections,
        }
    }

    pub(super) fn documents(&self) -> usize {
        self.first.len()
    }

    pub(super) fn counters(&self) -> Range<usize> {
        self.first.len()..self.names.len()
    }

    /// The document nearest to `key` that `connection` owns.
    pub(super) fn owned_document(&self, key: usize, connection: usize) -> usize {
        let near = key - key % self.connections + connection;
        if near < self.documents() {
            near
        } else {
            connection
        }
    }

    /// One of the counters that `connection` owns, chosen by `number`.
    pub(super) fn owned_counter(&self, number: usize, connection: usize) -> usize {
        let first = self.documents() + self.connections - 1;
        let aligned = first - first % self.connections + connection;
        let last_round = (self.len() - 1 - aligned) / self.connections;
        aligned + number % (last_round + 1) * self.connections
    }
}

impl Keys for DemoKeys {
    fn connections(&self) -> usize {
        self.connections
    }

    fn len(&self) -> usize {
        self.names.len()
    }

    fn kind(&self, key: usize) -> Kind {
        if key < self.documents() {
            Kind::Document
        } else {
            Kind::Counter
        }
    }

    fn writer(&self, key: usize) -> usize {
        key % self.connections
    }

    fn name(&self, key: usize) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.names[key])
    }

    /// The first value of a document comes from the corpus and carries no number.
    fn write_of(&self, key: usize, found: &[u8]) -> Result<u64, String> {
        value::read(found, &self.names[key]).or_else(|what| {
            let is_first = xxh3_128(found) == self.first[key];
            is_first.then_some(1).ok_or(what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_writer() {
        for (documents, connections) in [(1, 1), (3, 8), (8, 3), (100, 7), (99, 2)] {
            let corpus = Corpus::generated(documents, 1);
            let keys = DemoKeys::new(&corpus, connections);
            let mut owned: Vec<usize> = (0..keys.connections)
                .flat_map(|connection| keys.owned_by(connection))
                .collect();
            owned.sort_unstable();
            assert!(owned.into_iter().eq(0..keys.len()));
            for connection in 0..keys.connections {
                for number in 0..200 {
                    let document = keys.owned_document(number % keys.documents(), connection);
                    assert!(keys.writer(document) == connection && document < keys.documents());
                    let counter = keys.owned_counter(number, connection);
                    assert!(keys.writer(counter) == connection);
                    assert!(keys.counters().contains(&counter));
                }
            }
        }
    }
}
