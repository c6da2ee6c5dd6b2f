//! Memory that peers of a port write and read by themselves: of the port, or of a pool.

use crate::constants::{
    FI_ENOKEY, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA_PMEM,
};
use crate::domain::{Domain, Region};
use crate::memory::{Memory, copy_shared};
use crate::{Conn, Error};
use everdram_pm::Window;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

/// Memory that peers may write and read while it is exposed.
#[derive(Debug)]
pub struct Area {
    /// What a peer must name: an address of this process, or 0 where the provider counts from an area's
    /// start.
    pub address: u64,
    /// What a peer must show.
    pub key: u64,
    /// Bytes.
    pub bytes: usize,
    number: u64,
}

/// What peers may do with an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    fn flags(self) -> u64 {
        match self {
            Access::Read => FI_REMOTE_READ,
            Access::Write => FI_REMOTE_WRITE,
            Access::ReadWrite => FI_REMOTE_READ | FI_REMOTE_WRITE,
        }
    }
}

/// What an area consists of. It does not move while this lives.
enum Bytes {
    Own(Memory),
    /// Memory of a pool, which the pool accesses through atomics only.
    Pool(Arc<Window>),
}

impl Bytes {
    fn address(&self) -> *mut u8 {
        match self {
            Bytes::Own(memory) => memory.at(0, 0),
            Bytes::Pool(window) => window.address(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Bytes::Own(memory) => memory.len(),
            Bytes::Pool(window) => window.len(),
        }
    }

    fn read_shared(&self, at: usize, into: &mut [u8]) {
        let end = at.checked_add(into.len());
        assert!(end.is_some_and(|end| end <= self.len()), "{at} of an area");
        match self {
            Bytes::Own(memory) => memory.read_shared(at, into),
            // SAFETY: in bounds (asserted) of a window, which is live and accessed through atomics only.
            Bytes::Pool(window) => unsafe {
                copy_shared(window.address().wrapping_add(at), into);
            },
        }
    }
}

/// An area's memory. The registration closes before the memory is freed.
struct Exposed {
    region: Region,
    memory: Bytes,
    /// Where in it the area begins.
    from: usize,
    /// Who was told the key.
    conn: Conn,
}

/// Memory whose registration is closed.
struct Retired {
    memory: Bytes,
    /// Who was told its key.
    conn: Conn,
    /// The newest connection of its time.
    newest: Conn,
}

/// All areas of a port, and memory of former ones that peers may still reach.
pub(crate) struct Areas {
    exposed: HashMap<u64, Exposed>,
    /// Closing a registration does not stop a write that has begun; a closed endpoint does. So memory waits
    /// for all endpoints of its time: the one that was told its key may have told others. Windows wait for
    /// that one, unless keys are the provider's, which can be guessed.
    retired: Vec<Retired>,
    numbers: u64,
    mr_mode: i32,
    key_bytes: usize,
    /// What kind of memory windows are, for the provider.
    window_flags: u64,
    /// Makes keys that a peer cannot guess from another key, as far as the provider leaves them to us.
    keys: RandomState,
    domain: Arc<Domain>,
}

impl Areas {
    pub(crate) fn new(
        domain: Arc<Domain>,
        mr_mode: i32,
        key_bytes: usize,
        can_commit: bool,
    ) -> Areas {
        Areas {
            exposed: HashMap::new(),
            retired: Vec::new(),
            numbers: 0,
            mr_mode,
            key_bytes,
            window_flags: if can_commit { FI_RMA_PMEM } else { 0 },
            keys: RandomState::new(),
            domain,
        }
    }

    /// Memory of the port, with `behind` bytes behind it that no peer may reach.
    pub(crate) fn expose(
        &mut self,
        conn: Conn,
        bytes: usize,
        behind: usize,
    ) -> Result<Area, Error> {
        let whole = bytes.checked_add(behind).ok_or(Error::NoMemory { bytes })?;
        // What waits for a connection to close is used again: a late write spoils what is written there now,
        // and no other memory.
        let is_right = |retired: &Retired| match &retired.memory {
            Bytes::Own(memory) => memory.len() == whole,
            Bytes::Pool(_) => false,
        };
        let memory = match self.retired.iter().position(is_right) {
            Some(place) => self.retired.swap_remove(place).memory,
            None => Bytes::Own(Memory::new(whole, 4096)?),
        };
        self.register(conn, memory, 0..bytes, Access::ReadWrite)
    }

    pub(crate) fn expose_part(
        &mut self,
        conn: Conn,
        window: &Arc<Window>,
        part: Range<usize>,
        access: Access,
    ) -> Result<Area, Error> {
        let memory = Bytes::Pool(window.clone());
        self.register(conn, memory, part, access)
    }

    /// Registers a part of memory (at least one byte), and keeps the memory.
    fn register(
        &mut self,
        conn: Conn,
        memory: Bytes,
        part: Range<usize>,
        access: Access,
    ) -> Result<Area, Error> {
        let (from, bytes) = (part.start, part.len());
        let registered = bytes.max(1);
        let end = from.checked_add(registered);
        assert!(end.is_some_and(|end| end <= memory.len()));
        let at = memory.address().wrapping_add(from);
        let flags = match &memory {
            Bytes::Own(_) => 0,
            Bytes::Pool(_) => self.window_flags,
        };
        for attempt in 0.. {
            self.numbers += 1;
            let wanted = self.key(self.numbers);
            // SAFETY: the memory has as many bytes from there (asserted) and is kept until the region and
            // then all endpoints of its time are closed; `Port` drops its endpoints before its areas.
            let outcome = unsafe {
                self.domain
                    .register(at, registered, access.flags(), flags, wanted)
            };
            match outcome {
                Ok(region) => {
                    let address = if self.mr_mode & FI_MR_VIRT_ADDR != 0 {
                        at.addr() as u64
                    } else {
                        0
                    };
                    let area = Area {
                        address,
                        key: region.key(),
                        bytes,
                        number: self.numbers,
                    };
                    let exposed = Exposed {
                        region,
                        memory,
                        from,
                        conn,
                    };
                    self.exposed.insert(self.numbers, exposed);
                    return Ok(area);
                }
                // Short keys may collide.
                Err(error) if error.code() == Some(FI_ENOKEY) && attempt < 16 => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop returns")
    }

    fn key(&self, number: u64) -> u64 {
        if self.mr_mode & FI_MR_PROV_KEY != 0 {
            return 0;
        }
        let key = self.keys.hash_one(number);
        // The highest bit is left to the library, and all ones mean no key.
        match self.key_bytes {
            0 | 8.. => key >> 1,
            bytes => key >> (65 - 8 * bytes as u32),
        }
    }

    /// Takes an area back; `newest` is the newest connection that was ever made.
    pub(crate) fn unexpose(&mut self, area: Area, newest: Conn) {
        let exposed = self.exposed.remove(&area.number);
        if let Some(Exposed {
            region,
            memory,
            conn,
            from: _,
        }) = exposed
        {
            drop(region);
            // A window that waits for a connection may have had any number of areas of it.
            let is_same = |other: &Bytes| match (&memory, other) {
                (Bytes::Pool(one), Bytes::Pool(other)) => Arc::ptr_eq(one, other),
                _ => false,
            };
            let mut retired = self.retired.iter_mut();
            let same = retired.find(|other| other.conn == conn && is_same(&other.memory));
            if let Some(same) = same {
                same.newest = same.newest.max(newest);
                return;
            }
            self.retired.push(Retired {
                memory,
                conn,
                newest,
            });
        }
    }

    /// Frees what no connection may reach; all others are wholly closed.
    pub(crate) fn free<T>(&mut self, open: &HashMap<Conn, T>) {
        let is_guessed = self.mr_mode & FI_MR_PROV_KEY != 0;
        let oldest = open.keys().min().copied();
        // Any connection may have been told the key by the one that it was for. A pool stays mapped all the
        // same; memory of our own would be somebody else's.
        let is_kept_long = |memory: &Bytes| is_guessed || matches!(memory, Bytes::Own(_));
        self.retired
            .retain(|retired| match is_kept_long(&retired.memory) {
                true => oldest.is_some_and(|oldest| oldest <= retired.newest),
                false => open.contains_key(&retired.conn),
            });
        debug_assert!(self.retired.iter().all(|retired| retired.memory.len() > 0));
    }

    /// Whether memory waits for connections to close.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.retired.is_empty()
    }

    pub(crate) fn read(&self, area: &Area, at: usize, into: &mut [u8]) -> Result<(), Error> {
        let end = at.saturating_add(into.len());
        let outside = Error::OutOfArea {
            at,
            end,
            bytes: area.bytes,
        };
        let Some(exposed) = self.exposed.get(&area.number) else {
            return Err(outside);
        };
        if end > area.bytes {
            return Err(outside);
        }
        exposed.memory.read_shared(exposed.from + at, into);
        Ok(())
    }

    /// Copies what lies behind an area, from the first byte that no peer may reach.
    pub(crate) fn read_behind(&self, area: &Area, into: &mut [u8]) {
        if let Some(exposed) = self.exposed.get(&area.number) {
            exposed.memory.read_shared(exposed.from + area.bytes, into);
        }
    }
}
