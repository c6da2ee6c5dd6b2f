//! Operations under way: for each a context that the library may use, and memory.
//!
//! Slots lie in chunks that never move and are not given back before the port ends. An operation's slot is
//! free again only when the library cannot touch it any more: after its completion, or after its endpoint was
//! closed and the completion queue was empty once since.
//!
//! A completion names its slot by the context's address. The address is looked up and never followed, so that
//! a completion of something unknown (a peer may cause one) is harmless.

use crate::abi::fi_context2;
use crate::constants::{FI_READ, FI_RECV, FI_SEND, FI_WRITE};
use crate::domain::{Domain, Region};
use crate::endpoint::{Remote, Span};
use crate::memory::Memory;
use crate::{Completion, Conn, Error};
use core::ffi::c_void;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::Arc;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Nothing.
    Free,
    /// A receive buffer that is posted.
    Receive,
    /// A received message that the port's user has.
    Held,
    /// A message under way.
    Send,
    /// A one-sided write, and what its completion says.
    Write(Completion),
    /// A one-sided read.
    Read,
}

/// One operation.
pub(crate) struct Slot {
    pub(crate) job: Job,
    pub(crate) conn: Conn,
    /// The number of the operation within the port, which orders it.
    pub(crate) order: u64,
    /// Bytes of the message, or to be written or read; of a posted receive buffer all of it.
    pub(crate) bytes: usize,
    pub(crate) remote: Remote,
    pub(crate) token: u64,
    /// The connection is gone: completions mean nothing, and the slot waits to become free.
    pub(crate) is_dead: bool,
    large: Option<Large>,
}

/// Memory of an operation that does not fit a message buffer. The registration closes before the memory is
/// freed.
struct Large {
    region: Option<Region>,
    memory: Memory,
}

/// Some slots' contexts and buffers.
struct Chunk {
    region: Option<Region>,
    buffers: Memory,
    contexts: Memory,
}

const CONTEXT_BYTES: usize = size_of::<fi_context2>();
const _: () = assert!(CONTEXT_BYTES == 64);

/// Buffers of a chunk take about this much.
const CHUNK_BYTES: usize = 256 << 10;
/// Memory of large operations kept for the next ones.
const SPARE_BYTES: usize = 32 << 20;
const PAGE_BYTES: usize = 4096;

/// All slots of a port.
pub(crate) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The slots of each connection that are in use.
    of: HashMap<Conn, Vec<u32>>,
    chunks: Vec<Chunk>,
    /// From the address of a chunk's first context to the chunk.
    bases: BTreeMap<usize, usize>,
    spare: Vec<Large>,
    /// Buffers in a chunk.
    chunk_slots: usize,
    /// Bytes from one buffer to the next.
    stride: usize,
    message_bytes: usize,
    orders: u64,
    /// Set if the provider wants local memory registered.
    is_registered: bool,
    next_key: u64,
    domain: Arc<Domain>,
}

impl Slab {
    pub(crate) fn new(domain: Arc<Domain>, message_bytes: usize, is_registered: bool) -> Slab {
        let stride = message_bytes.max(1).next_multiple_of(64);
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
            of: HashMap::new(),
            chunks: Vec::new(),
            bases: BTreeMap::new(),
            spare: Vec::new(),
            chunk_slots: (CHUNK_BYTES / stride).clamp(4, 64),
            stride,
            message_bytes,
            orders: 0,
            is_registered,
            next_key: 0,
            domain,
        }
    }

    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    pub(crate) fn slot_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// A free slot with room for `bytes`, for an operation of a connection.
    pub(crate) fn take(&mut self, conn: Conn, job: Job, bytes: usize) -> Result<u32, Error> {
        debug_assert_ne!(job, Job::Free);
        if self.free.is_empty() {
            self.grow()?;
        }
        let large = if bytes > self.message_bytes {
            Some(self.large(bytes)?)
        } else {
            None
        };
        let index = self.free.pop().expect("just grown");
        self.of.entry(conn).or_default().push(index);
        self.orders += 1;
        let order = self.orders;
        let slot = self.slot_mut(index);
        assert_eq!(slot.job, Job::Free);
        *slot = Slot {
            job,
            conn,
            order,
            bytes,
            large,
            ..free_slot()
        };
        Ok(index)
    }

    /// The slot is free; the library will not touch it.
    pub(crate) fn release(&mut self, index: u32) {
        let slot = self.slot_mut(index);
        assert_ne!(slot.job, Job::Free);
        let (large, conn) = (slot.large.take(), slot.conn);
        *slot = free_slot();
        self.free.push(index);
        if let Entry::Occupied(mut own) = self.of.entry(conn) {
            own.get_mut().retain(|&one| one != index);
            if own.get().is_empty() {
                own.remove();
            }
        }
        if let Some(large) = large {
            let kept: usize = self.spare.iter().map(|large| large.memory.len()).sum();
            if kept + large.memory.len() <= SPARE_BYTES {
                self.spare.push(large);
            }
        }
    }

    /// The slots of a connection that are in use, in the order of their operations.
    pub(crate) fn of(&self, conn: Conn) -> Vec<u32> {
        let mut list = self.of.get(&conn).cloned().unwrap_or_default();
        list.sort_by_key(|&index| self.slot(index).order);
        list
    }

    /// The messages and writes of a connection that are not finished.
    pub(crate) fn unsent(&self, conn: Conn) -> usize {
        let is_out = |&&index: &&u32| matches!(self.slot(index).job, Job::Send | Job::Write(_));
        let own = self.of.get(&conn).into_iter().flatten();
        own.filter(is_out).count()
    }

    fn grow(&mut self) -> Result<(), Error> {
        let first = self.slots.len();
        let buffers = Memory::new(self.chunk_slots * self.stride, PAGE_BYTES)?;
        let contexts = Memory::new(self.chunk_slots * CONTEXT_BYTES, CONTEXT_BYTES)?;
        let region = self.register(&buffers)?;
        self.bases
            .insert(contexts.at(0, 0).addr(), self.chunks.len());
        self.chunks.push(Chunk {
            region,
            buffers,
            contexts,
        });
        self.slots
            .extend((0..self.chunk_slots).map(|_| free_slot()));
        self.free
            .extend((first as u32..self.slots.len() as u32).rev());
        Ok(())
    }

    fn large(&mut self, bytes: usize) -> Result<Large, Error> {
        let fits = |large: &Large| large.memory.len() >= bytes && large.memory.len() / 4 <= bytes;
        if let Some(place) = self.spare.iter().position(fits) {
            return Ok(self.spare.swap_remove(place));
        }
        let rounded = bytes
            .checked_next_power_of_two()
            .ok_or(Error::NoMemory { bytes })?;
        let memory = Memory::new(rounded, PAGE_BYTES)?;
        Ok(Large {
            region: self.register(&memory)?,
            memory,
        })
    }

    /// Registers memory for the port's own operations, if the provider wants that.
    fn register(&mut self, memory: &Memory) -> Result<Option<Region>, Error> {
        if !self.is_registered {
            return Ok(None);
        }
        self.next_key += 1;
        let access = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
        let (at, bytes) = (memory.at(0, 0), memory.len());
        // SAFETY: chunks and large memory hold their registration beside the memory and drop it first.
        let region = unsafe { self.domain.register(at, bytes, access, 0, self.next_key) }?;
        Ok(Some(region))
    }

    /// The context of a slot, for the library.
    pub(crate) fn context(&self, index: u32) -> *mut c_void {
        let (chunk, place) = self.place(index);
        chunk
            .contexts
            .at(place * CONTEXT_BYTES, CONTEXT_BYTES)
            .cast()
    }

    /// The slot whose context lies at an address, if there is one.
    pub(crate) fn index_of(&self, context: usize) -> Option<u32> {
        let (&base, &chunk) = self.bases.range(..=context).next_back()?;
        let offset = context - base;
        let is_one =
            offset.is_multiple_of(CONTEXT_BYTES) && offset / CONTEXT_BYTES < self.chunk_slots;
        is_one.then(|| (chunk * self.chunk_slots + offset / CONTEXT_BYTES) as u32)
    }

    fn place(&self, index: u32) -> (&Chunk, usize) {
        (
            &self.chunks[index as usize / self.chunk_slots],
            index as usize % self.chunk_slots,
        )
    }

    /// The memory of a slot, as much as its operation uses, for the library.
    pub(crate) fn span(&self, index: u32) -> Span {
        let slot = self.slot(index);
        let descriptor =
            |region: &Option<Region>| region.as_ref().map_or(ptr::null_mut(), Region::descriptor);
        if let Some(large) = &slot.large {
            let pointer = large.memory.at(0, slot.bytes);
            return Span {
                pointer,
                bytes: slot.bytes,
                descriptor: descriptor(&large.region),
            };
        }
        let (chunk, place) = self.place(index);
        let pointer = chunk.buffers.at(place * self.stride, slot.bytes);
        Span {
            pointer,
            bytes: slot.bytes,
            descriptor: descriptor(&chunk.region),
        }
    }

    /// Copies parts into a slot that was just taken for as many bytes.
    pub(crate) fn fill(&mut self, index: u32, parts: &[&[u8]]) {
        let (chunk, place) = (
            index as usize / self.chunk_slots,
            index as usize % self.chunk_slots,
        );
        let (memory, mut offset) = match &mut self.slots[index as usize].large {
            Some(large) => (&mut large.memory, 0),
            None => (&mut self.chunks[chunk].buffers, place * self.stride),
        };
        for part in parts {
            // SAFETY: the slot was taken and is not posted, so its memory is nobody else's.
            unsafe { memory.write(offset, part) };
            offset += part.len();
        }
    }

    /// The bytes of a slot whose operation is complete.
    pub(crate) fn bytes(&self, index: u32) -> &[u8] {
        let slot = self.slot(index);
        let (chunk, place) = self.place(index);
        let (memory, offset) = match &slot.large {
            Some(large) => (&large.memory, 0),
            None => (&chunk.buffers, place * self.stride),
        };
        // SAFETY: the operation is complete, so the library does not write; Rust does so through `&mut` only.
        unsafe { memory.read(offset, slot.bytes) }
    }
}

fn free_slot() -> Slot {
    Slot {
        job: Job::Free,
        conn: Conn::NONE,
        order: 0,
        bytes: 0,
        remote: Remote { address: 0, key: 0 },
        token: 0,
        is_dead: false,
        large: None,
    }
}
