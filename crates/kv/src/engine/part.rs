//! Changes of a part of a value, and of its length.

use super::{Change, EngineSession, VALUE_BYTES_MAX};
use crate::error::Error;

/// A change of a part of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Sets these bytes from byte `at` on; zeros are between an earlier end and them.
    Write { at: u64, bytes: &'a [u8] },
    /// Adds these bytes at the end.
    Append(&'a [u8]),
    /// Cuts the value, or adds zeros, so that it has this length.
    Length(u64),
    /// So many zeros instead of the value.
    Zeros(u64),
}

impl<'a> Part<'a> {
    /// The bytes that are set, and where in a value of this length.
    pub(crate) fn bytes(&self, length: u64) -> (u64, &'a [u8]) {
        match *self {
            Part::Write { at, bytes } => (at, bytes),
            Part::Append(bytes) => (length, bytes),
            Part::Length(_) | Part::Zeros(_) => (length, &[]),
        }
    }

    /// The length of a value afterwards, if it is at most `most`.
    ///
    /// # Errors
    /// [`Error::ValueLength`].
    pub(crate) fn length(&self, before: u64, most: u64) -> Result<u64, Error> {
        let after = match *self {
            Part::Length(length) | Part::Zeros(length) => Some(length),
            _ => {
                let (at, bytes) = self.bytes(before);
                at.checked_add(bytes.len() as u64)
                    .map(|end| end.max(before))
            }
        };
        match after.filter(|after| *after <= most) {
            Some(after) => Ok(after),
            None => Err(Error::ValueLength(
                usize::try_from(after.unwrap_or(u64::MAX)).unwrap_or(usize::MAX),
            )),
        }
    }

    /// Changes a value that is there as a whole.
    ///
    /// # Errors
    /// [`Error::ValueLength`]; the value is unchanged then.
    pub(crate) fn apply(&self, value: &mut Vec<u8>) -> Result<(), Error> {
        if let Part::Zeros(_) = self {
            value.clear();
        }
        let (before, most) = (value.len() as u64, VALUE_BYTES_MAX as u64);
        value.resize(self.length(before, most)? as usize, 0);
        let (at, bytes) = self.bytes(before);
        if !bytes.is_empty() {
            value[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// What [`EngineSession::ensure`] is to see to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ensure {
    /// Creates a key that is absent, with an empty value that never expires.
    pub creates: bool,
    /// The same, and refuses a key that exists.
    pub creates_new: bool,
    /// Empties the value.
    pub truncates: bool,
    /// The least length of the value in bytes; zeros are added.
    pub bytes: u64,
}

/// What is to be done to a key.
pub(super) enum Ensured {
    /// Nothing: it is absent.
    Missing,
    /// Nothing: its value is as it has to be.
    Fits,
    /// Its value gets this length, which is not less.
    Length(u64),
    /// Its value becomes so many zeros.
    Zeros(u64),
}

impl Ensure {
    /// What is to be done to a key with a value of this length. Values may have `most` bytes.
    ///
    /// # Errors
    /// [`Error::ObjectExists`], [`Error::ValueLength`].
    pub(super) fn decide(&self, before: Option<u64>, most: u64) -> Result<Ensured, Error> {
        let is_created = self.creates || self.creates_new;
        let decision = match before {
            Some(_) if self.creates_new => return Err(Error::ObjectExists),
            None if !is_created => return Ok(Ensured::Missing),
            Some(before) if !self.truncates && before >= self.bytes => return Ok(Ensured::Fits),
            Some(_) if !self.truncates => Ensured::Length(self.bytes),
            None | Some(_) => Ensured::Zeros(self.bytes),
        };
        match self.bytes <= most {
            true => Ok(decision),
            false => Err(Error::ValueLength(self.bytes as usize)),
        }
    }
}

impl Ensured {
    /// The answer about a key that existed, or did not.
    pub(super) fn existed(&self, existed: bool) -> Option<bool> {
        match self {
            Ensured::Missing => None,
            Ensured::Fits | Ensured::Length(_) | Ensured::Zeros(_) => Some(existed),
        }
    }
}

/// As [`EngineSession::ensure`], by replacing all of a value.
pub(super) fn ensure_whole<S: EngineSession + ?Sized>(
    session: &mut S,
    key: &[u8],
    how: &Ensure,
) -> Result<Option<bool>, Error> {
    let (mut decision, mut existed) = (Ok(Ensured::Missing), false);
    session.modify(key, &mut |current, value| {
        existed = current.is_some();
        let before = current.map(|current| current.value.len() as u64);
        decision = how.decide(before, VALUE_BYTES_MAX as u64);
        let length = match decision {
            Ok(Ensured::Zeros(length)) => length,
            Ok(Ensured::Length(length)) => {
                value.extend_from_slice(current.map_or(&[], |current| current.value));
                length
            }
            Ok(Ensured::Missing | Ensured::Fits) | Err(_) => return Change::Keep,
        };
        value.resize(length as usize, 0);
        Change::Put {
            expires_at_ms: current.map_or(0, |current| current.expires_at_ms),
        }
    })?;
    Ok(decision?.existed(existed))
}

/// Changes a part of a value by replacing all of it.
pub(super) fn change_part<S: EngineSession + ?Sized>(
    session: &mut S,
    key: &[u8],
    part: Part<'_>,
) -> Result<[u64; 2], Error> {
    let mut lengths = [0; 2];
    let mut refused = Ok(());
    session.modify(key, &mut |current, value| {
        value.extend_from_slice(current.map_or(&[], |current| current.value));
        let before = value.len() as u64;
        refused = part.apply(value);
        lengths = [before, value.len() as u64];
        let (_, bytes) = part.bytes(before);
        let is_same = bytes.is_empty() && lengths[0] == lengths[1];
        match refused.is_err() || is_same {
            true => Change::Keep,
            false => Change::Put {
                expires_at_ms: current.map_or(0, |current| current.expires_at_ms),
            },
        }
    })?;
    refused.map(|()| lengths)
}
