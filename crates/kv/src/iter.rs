//! Iterators over a store's keys and values.

use crate::error::Error;
use crate::store::Session;

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
    pub fn keys(&mut self) -> Keys<'_> {
        Keys::new(self)
    }
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
