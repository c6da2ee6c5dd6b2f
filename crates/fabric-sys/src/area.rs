//! Memory of a port that peers write and read by themselves.

use crate::constants::{
    FI_ENOKEY, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_REMOTE_READ, FI_REMOTE_WRITE,
};
use crate::domain::{Domain, Region};
use crate::memory::Memory;
use crate::{Conn, Error};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
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

/// An area's memory. The registration closes before the memory is freed.
struct Exposed {
    region: Region,
    memory: Memory,
    /// Who was told the key.
    conn: Conn,
}

/// Memory whose registration is closed.
struct Retired {
    memory: Memory,
    /// Who was told its key.
    conn: Conn,
    /// The newest connection of its time.
    newest: Conn,
}

/// All areas of a port, and memory of former ones that peers may still reach.
pub(crate) struct Areas {
    exposed: HashMap<u64, Exposed>,
    /// Closing a registration does not stop a write that has begun; a closed endpoint does. So memory waits
    /// for that of whoever was told its key. Keys of the provider can be guessed: there it waits for all of
    /// its time.
    retired: Vec<Retired>,
    numbers: u64,
    mr_mode: i32,
    key_bytes: usize,
    /// Makes keys that a peer cannot guess from another key, as far as the provider leaves them to us.
    keys: RandomState,
    domain: Arc<Domain>,
}

impl Areas {
    pub(crate) fn new(domain: Arc<Domain>, mr_mode: i32, key_bytes: usize) -> Areas {
        Areas {
            exposed: HashMap::new(),
            retired: Vec::new(),
            numbers: 0,
            mr_mode,
            key_bytes,
            keys: RandomState::new(),
            domain,
        }
    }

    pub(crate) fn expose(&mut self, conn: Conn, bytes: usize) -> Result<Area, Error> {
        let memory = Memory::new(bytes, 4096)?;
        let at = memory.at(0, 0);
        let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
        for attempt in 0.. {
            self.numbers += 1;
            let wanted = self.key(self.numbers);
            // SAFETY: the memory is kept until the region and then all endpoints of its time are closed;
            // `Port` drops its endpoints before its areas.
            match unsafe { self.domain.register(at, memory.len(), access, wanted) } {
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
        }) = exposed
        {
            drop(region);
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
        let oldest = match is_guessed {
            true => open.keys().min().copied(),
            false => None,
        };
        self.retired.retain(|retired| match is_guessed {
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
        if end > area.bytes.min(exposed.memory.len()) {
            return Err(outside);
        }
        exposed.memory.read_shared(at, into);
        Ok(())
    }
}
