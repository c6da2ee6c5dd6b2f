//! The requests of the demo's connections: half of them read any key, half write a key of their own.

use super::keys::DemoKeys;
use crate::killing::keys::Kind;
use crate::killing::load::{self, Connection};
use crate::killing::value::VALUE_BYTES_MIN;
use anyhow::Context;
use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Zipf};

/// Requests under way on one connection.
const DEPTH: usize = 16;
/// Skew of the keys' popularity, as in YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

pub(super) struct Mix<'a> {
    keys: &'a DemoKeys,
    ranks: Zipf<f64>,
}

impl load::Mix for Mix<'_> {
    fn round(&self, to: &mut Connection<'_>) {
        for _ in 0..DEPTH {
            self.queue(to);
        }
    }

    /// Mostly 40 bytes to 1 KiB; one in a hundred has up to 64 KiB. So every kind of page is used.
    fn value_bytes(&self, _kind: Kind, random: &mut StdRng) -> usize {
        let most = if random.random_ratio(1, 100) {
            64 << 10
        } else {
            1 << 10
        };
        random.random_range(VALUE_BYTES_MIN..most)
    }
}

impl<'a> Mix<'a> {
    pub(super) fn new(keys: &'a DemoKeys) -> anyhow::Result<Mix<'a>> {
        let ranks = Zipf::new(keys.documents() as f64, ZIPF_EXPONENT).context("zipf")?;
        Ok(Mix { keys, ranks })
    }

    fn queue(&self, to: &mut Connection<'_>) {
        match to.random.random_range(0..100) {
            0..45 => {
                let key = self.document(to);
                to.read(key);
            }
            45..50 => {
                let key = to.random.random_range(self.keys.counters());
                to.read(key);
            }
            50..86 => {
                let key = self.own_document(to);
                to.put(key, 0);
            }
            86..92 => {
                let key = self.own_document(to);
                to.delete(key);
            }
            _ => {
                let number = to.random.random_range(0..1024);
                to.increment(self.keys.owned_counter(number, to.number));
            }
        }
    }

    /// A document, chosen by popularity. The popular ones are spread over the corpus and the same for all
    /// connections.
    fn document(&self, to: &mut Connection<'_>) -> usize {
        let documents = self.keys.documents();
        let rank = self.ranks.sample(&mut to.random) as u64;
        let spread = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        usize::try_from(spread % documents as u64).unwrap_or(0)
    }

    fn own_document(&self, to: &mut Connection<'_>) -> usize {
        let key = self.document(to);
        self.keys.owned_document(key, to.number)
    }
}
