//! Iterators over a store's keys and values.

use crate::error::Error;
use crate::store::Session;
use std::ops::Bound;

impl Session {
    /// Every live key with its value, in no order. A key that exists during the whole iteration appears at
    /// least once, since the store may grow meanwhile. A key that is added or removed meanwhile may appear.
    /// Each value is durable, and current when it is returned.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"a", b"1")?;
    /// session.put(b"b", b"2")?;
    /// let mut all = session.iter().collect::<Result<Vec<_>, _>>()?;
    /// all.sort();
    /// assert_eq!(all, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// In items: see [`EngineSession::scan`], whose errors end the iteration, and [`EngineSession::get`].
    ///
    /// [`EngineSession::scan`]: crate::engine::EngineSession::scan
    /// [`EngineSession::get`]: crate::engine::EngineSession::get
    pub fn iter(&mut self) -> Iter<'_> {
        Iter::new(self)
    }

    /// Every live key without its value; otherwise as [`Session::iter`].
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// # let mut session = store.session()?;
    /// session.put(b"key", b"value")?;
    /// for key in session.keys() {
    ///     assert_eq!(key?, b"key");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// In items: see [`EngineSession::scan`], whose errors end the iteration.
    ///
    /// [`EngineSession::scan`]: crate::engine::EngineSession::scan
    pub fn keys(&mut self) -> Keys<'_> {
        Keys::new(self)
    }
}

impl Session {
    /// Keys between two bounds with their values, in ascending order of the keys' bytes. A key that exists
    /// during the whole iteration appears exactly once; one that is added or removed meanwhile may appear.
    /// Each value is durable, and current when it is returned.
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use everdram::{EngineKind, Options, Store};
    /// use std::ops::Bound::{Excluded, Included};
    /// let mut options = Options::default();
    /// options.engine = Some(EngineKind::Dstore); // it keeps the keys in order
    /// let store = Store::open(dir.path().join("pool"), &options)?;
    /// let mut session = store.session()?;
    /// for key in [b"a", b"b", b"c"] {
    ///     session.put(key, b"value")?;
    /// }
    /// let range = session.range(Included(b"b"), Excluded(b"z"));
    /// let keys: Vec<Vec<u8>> = range.keys().collect::<Result<_, _>>()?;
    /// assert_eq!(keys, [b"b", b"c"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// In items: [`Error::Unordered`] of engines without an order, and those of [`EngineSession::range`], end
    /// the iteration; [`EngineSession::get`].
    ///
    /// [`EngineSession::range`]: crate::engine::EngineSession::range
    /// [`EngineSession::get`]: crate::engine::EngineSession::get
    pub fn range(&mut self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Range<'_> {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        Range(RangeKeys {
            session: self,
            from: Some(owned(from)),
            to: owned(to),
            fetched: Vec::new().into_iter(),
        })
    }

    /// Keys that begin with these bytes, with their values, in order; as [`Session::range`].
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # use everdram::{EngineKind, Options, Store};
    /// # let mut options = Options::default();
    /// # options.engine = Some(EngineKind::Dstore);
    /// # let store = Store::open(dir.path().join("pool"), &options)?;
    /// # let mut session = store.session()?;
    /// session.put(b"user:1", b"ann")?;
    /// session.put(b"user:2", b"bob")?;
    /// session.put(b"vote:1", b"yes")?;
    /// assert_eq!(session.scan_prefix(b"user:").count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::range`].
    pub fn scan_prefix(&mut self, prefix: &[u8]) -> Range<'_> {
        let end = behind_prefix(prefix);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.range(Bound::Included(prefix), to)
    }
}

/// The least key that is behind all keys that begin with `prefix`; `None`: there is none.
#[must_use]
pub fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Keys per scan.
const KEYS_AT_ONCE: usize = 256;

/// See [`Session::keys`].
pub struct Keys<'s> {
    session: &'s mut Session,
    /// Where the scan continues; `None` at the end.
    cursor: Option<u64>,
    /// Fetched, but not returned yet.
    fetched: std::vec::IntoIter<Vec<u8>>,
}

impl<'s> Keys<'s> {
    pub(crate) fn new(session: &'s mut Session) -> Keys<'s> {
        Keys {
            session,
            cursor: Some(0),
            fetched: Vec::new().into_iter(),
        }
    }

    fn fetch(&mut self, cursor: u64) -> Result<(), Error> {
        let mut keys = Vec::with_capacity(KEYS_AT_ONCE);
        let mut visit = |key: &[u8], _, _| keys.push(key.to_vec());
        let next = self.session.scan(cursor, KEYS_AT_ONCE, &mut visit)?;
        self.cursor = (next != 0).then_some(next);
        self.fetched = keys.into_iter();
        Ok(())
    }
}

impl Iterator for Keys<'_> {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(key) = self.fetched.next() {
                return Some(Ok(key));
            }
            // An error ends the iteration. Otherwise a caller could get the same error forever.
            let cursor = self.cursor.take()?;
            if let Err(error) = self.fetch(cursor) {
                return Some(Err(error));
            }
        }
    }
}

/// See [`Session::iter`].
pub struct Iter<'s>(Keys<'s>);

impl<'s> Iter<'s> {
    pub(crate) fn new(session: &'s mut Session) -> Iter<'s> {
        Iter(Keys::new(session))
    }
}

impl Iterator for Iter<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let key = match self.0.next()? {
                Ok(key) => key,
                Err(error) => return Some(Err(error)),
            };
            match self.0.session.get(&key) {
                Ok(Some(value)) => return Some(Ok((key, value))),
                // Removed since the scan.
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// See [`Session::range`].
pub struct Range<'s>(RangeKeys<'s>);

impl<'s> Range<'s> {
    /// The keys alone.
    #[must_use]
    pub fn keys(self) -> RangeKeys<'s> {
        self.0
    }
}

impl Iterator for Range<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let key = match self.0.next()? {
                Ok(key) => key,
                Err(error) => return Some(Err(error)),
            };
            match self.0.session.get(&key) {
                Ok(Some(value)) => return Some(Ok((key, value))),
                // Removed since it was met.
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The keys of a [`Range`].
pub struct RangeKeys<'s> {
    session: &'s mut Session,
    /// Where the range continues; `None` at the end.
    from: Option<Bound<Vec<u8>>>,
    to: Bound<Vec<u8>>,
    /// Fetched, but not returned yet.
    fetched: std::vec::IntoIter<Vec<u8>>,
}

impl RangeKeys<'_> {
    fn fetch(&mut self, from: &Bound<Vec<u8>>) -> Result<(), Error> {
        let mut keys = Vec::new();
        let mut visit = |key: &[u8], _, _| keys.push(key.to_vec());
        let [from, to] = [from, &self.to].map(|bound| bound.as_ref().map(Vec::as_slice));
        let engine = self.session.engine();
        let next = engine.range(from, to, KEYS_AT_ONCE, &mut visit)?;
        engine.wait(engine.last_read())?;
        self.from = next.map(Bound::Excluded);
        self.fetched = keys.into_iter();
        Ok(())
    }
}

impl Iterator for RangeKeys<'_> {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(key) = self.fetched.next() {
                return Some(Ok(key));
            }
            // As in `Keys`.
            let from = self.from.take()?;
            if let Err(error) = self.fetch(&from) {
                return Some(Err(error));
            }
        }
    }
}
