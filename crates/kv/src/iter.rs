//! Iterators over a store's keys and values.

use crate::error::Error;
use crate::store::Session;

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
