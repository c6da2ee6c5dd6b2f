//! The calls of a workload, their answers, and the values that they store.

use std::collections::HashMap;

/// A value, by number: [`Values`] has its bytes. Numbers make states small and comparisons cheap.
pub type ValueId = u32;

/// A key, by number: [`crate::plan::profile::Profile::key`] has its bytes.
pub type Key = u8;

/// Absolute expiry in the workload's milliseconds; 0 = never.
pub type Expiry = u64;

/// One call of one session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Stores a value.
    Put(Key, ValueId, Expiry),
    /// A remote client stores a value: it asks for a grant and writes its slot of the landing area, which is
    /// all that it takes. It ends when that is durable, which may be within a [`Call::Late`]. Where there is
    /// no landing area, a put.
    Remote(Key, ValueId, Expiry, Fate),
    /// What a remote client wrote arrives late. If its put has not ended, the rest comes and is made durable;
    /// otherwise all of it comes once more, also if its connection has ended. The number picks the client.
    Late(u32),
    /// The connection of a remote client ends, and its grant is released. The number picks the client.
    Hangup(u32),
    /// Reads a value.
    Get(Key),
    /// Removes a key.
    Delete(Key),
    /// Stores a value and answers with the one before, in one step.
    Swap(Key, ValueId),
    /// Removes a key and answers with the value that it had, in one step.
    Take(Key),
    /// Appends a value to the stored one, and answers with the length of both.
    Append(Key, ValueId),
    /// Sets the bytes of a value from some byte of the stored one on, and answers with the new length.
    Overwrite(Key, u32, ValueId),
    /// Cuts or lengthens the stored value, and answers with the length before.
    Cut(Key, u32),
    /// Reads so many bytes of a value, from some byte on.
    Part(Key, u32, u32),
    /// Adds to a word of a value, in place where the engine can; answers with the word before. See
    /// [`word_of`].
    Add(Key, u64),
    /// Reads several keys as of one moment.
    Many(Vec<Key>),
    /// The length and the expiry of a value.
    Probe(Key),
    /// Visits all keys. At each, other sessions may run for so many events.
    Scan(u32),
    /// Visits the keys from one to another, both included, in order; for engines that have one. At each,
    /// other sessions may run for so many events.
    Range(Key, Key, u32),
    /// Any key.
    RandomKey,
    /// Watches a key, reads it, lets other sessions run for so many events, and stores a value in a
    /// transaction if the key has not changed.
    Guarded(Key, ValueId, u32),
    /// A transaction: reads its keys, lets other sessions run, applies its parts.
    Exec(Exec),
    /// Several puts (and, without a value, removals), all or none.
    Batch(Vec<(Key, Option<ValueId>)>),
    /// Several puts and removals submitted one after another and committed together.
    Pipeline(Vec<(Key, Option<ValueId>)>),
    /// A pipeline that waits before its commit: other sessions run for so many events, and the redo log is
    /// checkpointed.
    Slow(Vec<(Key, Option<ValueId>)>, u32),
    /// Removes everything.
    Clear,
    /// Background work: growth, reclamation, the sweep of expired keys.
    Tend,
    /// So many turns of a session at background work, as a worker takes them between two requests.
    Turn(u64),
    /// Reclamation to its end.
    Reclaim,
    /// Copies what changed to the image (files only).
    Checkpoint,
    /// The clock goes on by so many milliseconds.
    Advance(u64),
    /// The process is killed and the pool opened again.
    Kill,
    /// The pool is closed and opened again.
    Reopen,
    /// The session is closed; its next call opens another one.
    Leave,
}

/// How far the write of a remote client comes at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is durable, which acknowledges it.
    Durable,
    /// And the client tells the server.
    Told,
    /// So many percent of its pieces have arrived, and none is durable for certain.
    Part(u8),
}

/// The offset of the word to which `by` is added: the first word of the value, or the second.
#[must_use]
pub fn word_of(by: u64) -> usize {
    (by / 2 % 2) as usize * 8
}

impl Call {
    /// Whether the call is about the process itself, and returns in the next one.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        matches!(self, Call::Kill | Call::Reopen)
    }

    /// Whether its answer depends on what it reads. Starting a process and background work read much and
    /// answer nothing.
    #[must_use]
    pub fn tells(&self) -> bool {
        !matches!(
            self,
            Call::Kill
                | Call::Reopen
                | Call::Late(_)
                | Call::Hangup(_)
                | Call::Tend
                | Call::Turn(_)
                | Call::Reclaim
                | Call::Checkpoint
        )
    }

    /// Whether its answer is about an interval and not a moment; see [`crate::judge::history`].
    #[must_use]
    pub fn observes(&self) -> bool {
        matches!(self, Call::Scan(_) | Call::Range(..) | Call::RandomKey)
    }

    /// Its puts and removals, of which some may be left out.
    pub fn parts_mut(&mut self) -> Option<&mut Vec<(Key, Option<ValueId>)>> {
        match self {
            Call::Batch(parts) | Call::Pipeline(parts) | Call::Slow(parts, _) => Some(parts),
            Call::Exec(exec) => Some(&mut exec.parts),
            _ => None,
        }
    }

    /// The values that it stores.
    pub fn values_mut(&mut self) -> Vec<&mut ValueId> {
        match self {
            Call::Put(_, value, _)
            | Call::Remote(_, value, ..)
            | Call::Swap(_, value)
            | Call::Append(_, value)
            | Call::Overwrite(_, _, value)
            | Call::Guarded(_, value, _) => vec![value],
            _ => {
                let parts = self.parts_mut().into_iter().flatten();
                parts.filter_map(|(_, value)| value.as_mut()).collect()
            }
        }
    }
}

/// A key and the value to put, or `None` to remove it.
pub type Part = (Key, Option<ValueId>);

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Exec {
    /// What it reads first.
    pub reads: Vec<Key>,
    /// What it puts and removes then.
    pub parts: Vec<Part>,
    /// Other sessions may run for so many events in between.
    pub linger: u32,
    /// Which keys it may touch.
    pub reach: Reach,
}

/// Which keys a transaction may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Those that it names.
    Named,
    /// All; it also iterates over them.
    All,
    /// All; and after the first of its parts it removes everything.
    Cleared,
}

impl Exec {
    /// Its parts before it removes everything, and those after that. All are after it if it does not.
    #[must_use]
    pub fn around_clear(&self) -> (&[Part], &[Part]) {
        match self.reach {
            Reach::Cleared => self.parts.split_at(self.parts.len().min(1)),
            Reach::Named | Reach::All => (&[], &self.parts),
        }
    }
}

/// What a key holds.
pub type Held = Option<(ValueId, Expiry)>;

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is done.
    Done,
    /// Whether the key was there.
    Was(bool),
    /// The value that was there.
    Value(Option<ValueId>),
    /// The word that was there.
    Word(Option<u64>),
    /// What several keys held at one moment.
    Several(Vec<Held>),
    /// The length in bytes and the expiry of the value that was there.
    Size(Option<(u64, Expiry)>),
    /// The length in bytes of what is there now.
    Length(u64),
    /// What was visited: keys, lengths of values in bytes, expiries.
    Visited(Vec<(Key, u64, Expiry)>),
    /// Some key that was there; or there was none.
    Key(Option<Key>),
    /// A watched key had changed, or may have, and nothing was done.
    Declined,
    /// There was no room, and nothing changed.
    NoRoom,
}

/// The bytes of every value that a workload stores or makes.
#[derive(Clone, Debug, Default)]
pub struct Values {
    bytes: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, ValueId>,
}

impl Values {
    /// The number of these bytes; a new one if they were not known.
    pub fn number(&mut self, bytes: &[u8]) -> ValueId {
        if let Some(&number) = self.numbers.get(bytes) {
            return number;
        }
        let number = self.bytes.len() as ValueId;
        self.bytes.push(bytes.to_vec());
        self.numbers.insert(bytes.to_vec(), number);
        number
    }

    /// The number of these bytes, if they are a value of the workload.
    #[must_use]
    pub fn known(&self, bytes: &[u8]) -> Option<ValueId> {
        self.numbers.get(bytes).copied()
    }

    /// How many there are: numbers are below this.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of a value.
    #[must_use]
    pub fn bytes(&self, number: ValueId) -> &[u8] {
        self.bytes.get(number as usize).map_or(&[], Vec::as_slice)
    }

    /// The value that adding to a word of another makes; `None` if it has no such word.
    pub fn added(&mut self, number: ValueId, by: u64) -> Option<(u64, ValueId)> {
        let mut bytes = self.bytes(number).to_vec();
        let word = bytes.get_mut(word_of(by)..)?.first_chunk_mut::<8>()?;
        let before = u64::from_le_bytes(*word);
        *word = before.wrapping_add(by).to_le_bytes();
        Some((before, self.number(&bytes)))
    }

    /// The value that appending one to another makes.
    pub fn joined(&mut self, first: Option<ValueId>, second: ValueId) -> ValueId {
        let mut bytes = first.map_or(Vec::new(), |first| self.bytes(first).to_vec());
        bytes.extend_from_slice(self.bytes(second));
        self.number(&bytes)
    }

    /// The value that setting bytes of another one makes.
    pub fn overwritten(&mut self, first: Option<ValueId>, at: u32, second: ValueId) -> ValueId {
        let mut bytes = first.map_or(Vec::new(), |first| self.bytes(first).to_vec());
        let (at, new) = (at as usize, self.bytes(second));
        if !new.is_empty() {
            bytes.resize(bytes.len().max(at + new.len()), 0);
            bytes[at..at + new.len()].copy_from_slice(new);
        }
        self.number(&bytes)
    }

    /// The value that another one is when it has this length.
    pub fn cut(&mut self, value: ValueId, length: u32) -> ValueId {
        let mut bytes = self.bytes(value).to_vec();
        bytes.resize(length as usize, 0);
        self.number(&bytes)
    }

    /// So many bytes of a value from some byte on, as far as it has them.
    pub fn part(&mut self, value: ValueId, at: u32, count: u32) -> ValueId {
        let bytes = self.bytes(value);
        let [from, to] = [at, at + count].map(|at| bytes.len().min(at as usize));
        let part = bytes[from..to].to_vec();
        self.number(&part)
    }

    /// A value of `bytes` bytes. It differs from all others if it has at least 4 bytes.
    pub fn make(&mut self, bytes: usize, salt: u64) -> ValueId {
        let mut made = Vec::with_capacity(bytes + 8);
        let mut word = salt ^ self.bytes.len() as u64;
        while made.len() < bytes {
            word = word
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            made.extend_from_slice(&(word ^ word >> 29).to_le_bytes());
        }
        made.truncate(bytes);
        self.number(&made)
    }
}
