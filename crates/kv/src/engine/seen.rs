//! Keys that an iteration has met, until they are shown.

use super::Visit;

/// Keys in a row, each with what is said of it.
#[derive(Default)]
pub(crate) struct Met {
    keys: Vec<u8>,
    /// Where its key ends, bytes of its value, expiry in Unix milliseconds.
    entries: Vec<(usize, u64, u64)>,
}

impl Met {
    pub(crate) fn push(&mut self, key: &[u8], value_bytes: u64, expires_at_ms: u64) {
        self.keys.extend_from_slice(key);
        self.entries
            .push((self.keys.len(), value_bytes, expires_at_ms));
    }

    /// Shows all, in the order in which they were met.
    pub(crate) fn show(&self, visit: Visit<'_>) {
        let mut from = 0;
        for &(end, value_bytes, expires_at_ms) in &self.entries {
            visit(&self.keys[from..end], value_bytes, expires_at_ms);
            from = end;
        }
    }
}
