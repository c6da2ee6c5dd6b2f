//! Objects: values that are opened, read and written at offsets, and locked (DStore section 4.1, table 2).
//!
//! | paper | here |
//! | --- | --- |
//! | `ds_init`, `ds_finalize` | [`Store::bucket`], and dropping it |
//! | `oopen`, `oclose` | [`Bucket::open`], and dropping the [`Object`] |
//! | `oread`, `owrite` | [`Bucket::read_at`], [`Bucket::write_at`] |
//! | `oget`, `oput`, `odelete` | [`Bucket::get`], [`Bucket::put`], [`Bucket::delete`] |
//! | `olock`, `ounlock` | [`Bucket::lock`], [`Bucket::unlock`] |
//!
//! An object is the value of a key, so all doors of a store see it. Every engine has objects. The engine
//! `dstore` reads and writes only the blocks concerned, and there an object may have up to 1 TiB; the others
//! read and write all of it, up to 512 MiB.
//!
//! A write is atomic whatever its length, also across a crash, and durable when it returns.

pub(crate) mod locks;

use crate::engine::Ensure;
use crate::error::Error;
use crate::store::{Session, Store};
pub use locks::Lock;
use locks::Locks;
use std::sync::Arc;
use std::time::Duration;

impl Store {
    /// A bucket for one thread (the paper's context).
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// use everdram::object::OpenHow;
    /// let mut bucket = store.bucket()?;
    /// let object = bucket.open(b"photo", &OpenHow::new().write(true).create(true))?;
    /// bucket.write_at(&object, 1 << 20, b"far behind the beginning")?;
    /// let mut bytes = [0; 3];
    /// assert_eq!(bucket.read_at(&object, 1 << 20, &mut bytes)?, 3);
    /// assert_eq!(&bytes, b"far");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Store::session`].
    pub fn bucket(&self) -> Result<Bucket, Error> {
        let locks = Arc::clone(self.locks());
        Ok(Bucket {
            number: locks.next_owner(),
            session: self.session()?,
            locks,
            bytes: Vec::new(),
            held: Vec::new(),
        })
    }
}

/// How to open an object: as [`std::fs::OpenOptions`] says it of files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenHow {
    ensure: Ensure,
    is_written: bool,
}

impl OpenHow {
    /// To read an object that exists.
    #[must_use]
    pub fn new() -> OpenHow {
        OpenHow::default()
    }

    /// To write it, too.
    #[must_use]
    pub fn write(self, is_written: bool) -> OpenHow {
        OpenHow { is_written, ..self }
    }

    /// Creates it, empty, if it does not exist. Needs `write`.
    #[must_use]
    pub fn create(mut self, creates: bool) -> OpenHow {
        self.ensure.creates = creates;
        self
    }

    /// Creates it, and refuses one that exists. Needs `write`.
    #[must_use]
    pub fn create_new(mut self, creates_new: bool) -> OpenHow {
        self.ensure.creates_new = creates_new;
        self
    }

    /// Empties it. Needs `write`.
    #[must_use]
    pub fn truncate(mut self, truncates: bool) -> OpenHow {
        self.ensure.truncates = truncates;
        self
    }

    /// The least length in bytes that it has afterwards: zeros are added (`size` of `oopen`). Needs `write`.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> OpenHow {
        self.ensure.bytes = bytes;
        self
    }

    fn changes(&self) -> bool {
        self.ensure != Ensure::default()
    }
}

/// An open object: a name, and whether it may be written. It names whatever object has that name: after a
/// removal and a creation, the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    name: Vec<u8>,
    is_written: bool,
}

impl Object {
    /// Its name, which is its key.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

/// One thread's way to the objects of a store. Its writes respect the locks of other buckets; sessions and
/// other doors do not know of them.
pub struct Bucket {
    session: Session,
    locks: Arc<Locks>,
    number: u64,
    /// What a read of a part got.
    bytes: Vec<u8>,
    /// The last lock of each name that was not given back.
    held: Vec<Lock>,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.locks.drop_all(self.number);
    }
}

impl Bucket {
    /// Opens an object. What this changes is durable on return.
    ///
    /// # Errors
    /// [`Error::NoObject`], [`Error::ObjectExists`]; [`Error::Options`] if a change is asked for without
    /// `write`; as [`Bucket::write_at`].
    pub fn open(&mut self, name: &[u8], how: &OpenHow) -> Result<Object, Error> {
        if how.changes() && !how.is_written {
            return Err(Error::Options(
                "to create, empty or lengthen an object, open it to `write`".into(),
            ));
        }
        let missing = match how.changes() {
            false => !self.session.contains(name)?,
            true => self.writing(name, |session| {
                let found = session.engine().ensure(name, &how.ensure);
                // Also what is refused depends on what was seen.
                session.finish()?;
                Ok(found?.is_none())
            })?,
        };
        if missing {
            return Err(Error::NoObject);
        }
        Ok(Object {
            name: name.to_vec(),
            is_written: how.is_written,
        })
    }

    /// Fills `into` with the bytes from `at` on; returns how many there are.
    ///
    /// # Errors
    /// [`Error::NoObject`]: it was removed; as [`Session::get`].
    pub fn read_at(&mut self, object: &Object, at: u64, into: &mut [u8]) -> Result<usize, Error> {
        self.bytes.clear();
        let engine = self.session.engine();
        let found = engine.read_range(&object.name, at, into.len() as u64, &mut self.bytes)?;
        engine.wait(engine.last_read())?;
        if found.is_none() {
            return Err(Error::NoObject);
        }
        let count = self.bytes.len();
        into[..count].copy_from_slice(&self.bytes);
        Ok(count)
    }

    /// Writes bytes from `at` on, all or none, durably. What is between an earlier end and `at` is zeros. An
    /// object that was removed is created again.
    ///
    /// # Errors
    /// [`Error::ObjectReadOnly`]: it was not opened to write; [`Error::ValueLength`];
    /// [`Error::ObjectLocked`], [`Error::LeaseEnded`]; as [`Session::put`].
    pub fn write_at(&mut self, object: &Object, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.writing_object(object, |session| {
            session.engine().write_range(&object.name, at, bytes)?;
            session.finish()
        })
    }

    /// Writes bytes at the end, durably; returns where the end is then.
    ///
    /// # Errors
    /// As [`Bucket::write_at`].
    pub fn append(&mut self, object: &Object, bytes: &[u8]) -> Result<u64, Error> {
        self.writing_object(object, |session| {
            let end = session.append(&object.name, bytes)?;
            Ok(end as u64)
        })
    }

    /// The length of an object in bytes.
    ///
    /// # Errors
    /// As [`Bucket::read_at`].
    pub fn len(&mut self, object: &Object) -> Result<u64, Error> {
        let engine = self.session.engine();
        let found = engine.probe(&object.name)?;
        engine.wait(engine.last_read())?;
        found.map(|(_, length)| length).ok_or(Error::NoObject)
    }

    /// Whether an object has no bytes.
    ///
    /// # Errors
    /// As [`Bucket::read_at`].
    pub fn is_empty(&mut self, object: &Object) -> Result<bool, Error> {
        Ok(self.len(object)? == 0)
    }

    /// Cuts an object, or adds zeros, so that it has this length in bytes; durably.
    ///
    /// # Errors
    /// [`Error::NoObject`]; as [`Bucket::write_at`].
    pub fn set_len(&mut self, object: &Object, length: u64) -> Result<(), Error> {
        self.writing_object(object, |session| {
            let before = session.engine().set_len(&object.name, length)?;
            session.finish()?;
            before.map(drop).ok_or(Error::NoObject)
        })
    }

    /// The whole value of a key; all of it is of one version.
    ///
    /// # Errors
    /// As [`Session::get`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.session.get(key)
    }

    /// Sets the whole value of a key, durably. Returns whether the key is new.
    ///
    /// # Errors
    /// [`Error::ObjectLocked`], [`Error::LeaseEnded`]; as [`Session::put`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.writing(key, |session| session.put(key, value))
    }

    /// Removes an object or a key, durably. Returns whether it existed.
    ///
    /// # Errors
    /// [`Error::ObjectLocked`], [`Error::LeaseEnded`]; as [`Session::delete`].
    pub fn delete(&mut self, name: &[u8]) -> Result<bool, Error> {
        self.writing(name, |session| session.delete(name))
    }

    /// Locks a name, which need not exist: other buckets cannot write it until it is unlocked, this bucket is
    /// dropped, or the lease ends. Waits for another bucket's lock for up to `wait`. A name that this bucket
    /// has locked gets the new lease. Nothing of locks is persistent, or logged (the paper logs a no-op).
    ///
    /// ```
    /// # fn main() -> Result<(), everdram::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
    /// use std::time::Duration;
    /// let mut bucket = store.bucket()?;
    /// // The directory is locked while its file changes.
    /// let lock = bucket.lock(b"/photos", Duration::from_secs(1), Duration::from_secs(10))?;
    /// bucket.put(b"/photos/1", b"...")?;
    /// bucket.unlock(lock);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyLength`]; [`Error::ObjectLocked`] after `wait`.
    pub fn lock(&mut self, name: &[u8], wait: Duration, lease: Duration) -> Result<Lock, Error> {
        crate::engine::check_key(name)?;
        let lock = self.locks.lock(name, self.number, wait, lease)?;
        let number = self.locks.number_of(name);
        self.held.retain(|held| !held.is_of(number));
        self.held.push(lock.copy());
        Ok(lock)
    }

    /// Gives a lock back; does nothing if its lease has ended, and somebody else may have it.
    pub fn unlock(&mut self, lock: Lock) {
        self.held.retain(|held| *held != lock);
        self.locks.unlock(&lock);
    }

    /// The session, for everything else.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    fn writing_object<T>(
        &mut self,
        object: &Object,
        work: impl FnOnce(&mut Session) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if !object.is_written {
            return Err(Error::ObjectReadOnly);
        }
        self.writing(&object.name, work)
    }

    /// Runs a write while no other bucket has the name locked.
    fn writing<T>(
        &mut self,
        name: &[u8],
        work: impl FnOnce(&mut Session) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let held = match self.held.is_empty() {
            true => None,
            false => {
                let number = self.locks.number_of(name);
                self.held.iter().position(|held| held.is_of(number))
            }
        };
        let lock = held.and_then(|held| self.held.get(held));
        let writing = self.locks.begin_write(name, self.number, lock);
        if let (Err(Error::LeaseEnded), Some(held)) = (&writing, held) {
            drop(self.held.swap_remove(held));
        }
        let _writing = writing?;
        work(&mut self.session)
    }
}
