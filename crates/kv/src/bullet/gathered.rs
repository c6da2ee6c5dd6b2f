//! Keys whose records a gleaner has met and not applied yet: it looks for all of them at once, so that their cache misses overlap.

/// Keys gathered before they are applied.
const MOST: usize = 24;

/// See the module text.
#[derive(Default)]
pub(super) struct Gathered {
    /// The hash of each, and where its key ends.
    hashes: Vec<(u64, usize)>,
    keys: Vec<u8>,
}

impl Gathered {
    /// Adds a key. `false`: that is enough.
    #[inline]
    pub(super) fn push(&mut self, hash: u64, key: &[u8]) -> bool {
        self.keys.extend_from_slice(key);
        self.hashes.push((hash, self.keys.len()));
        self.hashes.len() < MOST
    }

    /// Hash and key of each, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut from = 0;
        self.hashes.iter().map(move |&(hash, to)| {
            let key = self.keys.get(from..to).unwrap_or(&[]);
            from = to;
            (hash, key)
        })
    }

    pub(super) fn clear(&mut self) {
        self.hashes.clear();
        self.keys.clear();
    }
}
