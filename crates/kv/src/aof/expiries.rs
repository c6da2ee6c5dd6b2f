//! How many bytes of a segment expire, and when: roughly, in a few steps of time.
//!
//! A step counts as expired when the last entry in it has. So what is counted has expired, and what has is
//! counted a little later.

use std::collections::BTreeMap;

/// Steps that are told apart.
const STEPS: usize = 32;

/// See the module text.
#[derive(Default)]
pub(super) struct Expiries {
    /// Bytes by the last expiry of each step, in Unix milliseconds.
    steps: BTreeMap<u64, u64>,
    /// The first expiry of all.
    first: Option<u64>,
}

impl Expiries {
    /// Notes an entry of so many bytes that expires then.
    pub(super) fn note(&mut self, bytes: u64, expires_at_ms: u64) {
        let first = self.first.get_or_insert(expires_at_ms);
        *first = expires_at_ms.min(*first);
        *self.steps.entry(expires_at_ms).or_default() += bytes;
        if self.steps.len() > STEPS {
            self.join();
        }
    }

    /// Makes one step of two, so that as few bytes as possible are counted as little later as possible.
    fn join(&mut self) {
        let pairs = self.steps.iter().zip(self.steps.keys().skip(1));
        let delay = |((one, bytes), next): &((&u64, &u64), &u64)| {
            u128::from(**next - **one) * u128::from(**bytes)
        };
        let cheapest = pairs.min_by_key(delay);
        if let Some(((&one, &bytes), &next)) = cheapest {
            self.steps.remove(&one);
            *self.steps.entry(next).or_default() += bytes;
        }
    }

    /// Whether an entry has expired by `now`.
    pub(super) fn has_begun(&self, now: u64) -> bool {
        self.first.is_some_and(|first| first <= now)
    }

    /// Bytes that have expired by `now`, at least.
    pub(super) fn expired(&self, now: u64) -> u64 {
        self.steps.range(..=now).map(|(_, bytes)| bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_has_expired() {
        let mut expiries = Expiries::default();
        assert!(!expiries.has_begun(u64::MAX) && expiries.expired(u64::MAX) == 0);
        // Mixed: of an hour, of a day, and for ever but for one millisecond.
        for number in 0..1000u64 {
            let at = match number % 10 {
                0..6 => number * 3600,
                6..9 => 1 << 40 | number,
                _ => u64::MAX - 1,
            };
            expiries.note(10, at);
            assert!(expiries.steps.len() <= STEPS);
        }
        assert!(expiries.has_begun(0) && !Expiries::default().has_begun(0));
        for now in (0..1000).map(|number| number * 3600) {
            let truly = (0..=now / 3600).filter(|number| number % 10 < 6).count() as u64 * 10;
            let counted = expiries.expired(now);
            assert!(
                counted <= truly && counted + 1000 >= truly,
                "{counted} of {truly}"
            );
        }
        assert_eq!(expiries.expired(1 << 39), 6000);
        assert_eq!(expiries.expired(1 << 41), 9000);
        assert_eq!(expiries.expired(u64::MAX), 10_000);
    }
}
