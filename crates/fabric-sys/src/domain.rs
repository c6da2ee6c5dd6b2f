//! Owners of what belongs to a domain: the domain, its completion queue, registrations of memory.
//!
//! A domain and all of this is used by one thread at a time, the owner of the [`crate::Port`]. The one
//! exception is [`Waker`], whose call the library allows in any thread.

use crate::abi::{
    Padded, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry, fid_cq, fid_domain, fid_mr,
};
use crate::constants::*;
use crate::fabric::{Fabric, code};
use crate::info::Info;
use crate::object::{close, entry};
use crate::{Error, Library};
use core::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Completions that fit before the provider has to make room; verbs cannot, so it is ample.
const QUEUE_ENTRIES: usize = 8192;

/// An opened domain.
pub(crate) struct Domain {
    pub(crate) raw: NonNull<fid_domain>,
    pub(crate) fabric: Arc<Fabric>,
}

// SAFETY: all owners of a domain belong to one port and move between threads with it.
unsafe impl Send for Domain {}
// SAFETY: a port takes `&mut self` for every call, so two threads never use a domain at once.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn open(fabric: &Arc<Fabric>, info: &Info) -> Result<Arc<Domain>, Error> {
        let library = fabric.library;
        let mut raw = ptr::null_mut();
        let open =
            entry!(fabric.raw.as_ptr(), ops, domain).ok_or_else(|| library.missing("fi_domain"))?;
        // SAFETY: fabric and offer are live; the call copies what it needs.
        let returned = unsafe {
            open(
                fabric.raw.as_ptr(),
                info.as_ptr(),
                &mut raw,
                ptr::null_mut(),
            )
        };
        library.check("fi_domain", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| library.missing("fi_domain"))?;
        Ok(Arc::new(Domain {
            raw,
            fabric: fabric.clone(),
        }))
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.fabric.library
    }

    /// Registers memory for `access`; `flags` say what kind of memory it is.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes at `memory` stay allocated until the registration is closed, and longer where a peer
    /// may reach them: until no endpoint is left whose peer knows the key.
    pub(crate) unsafe fn register(
        self: &Arc<Domain>,
        memory: *const u8,
        bytes: usize,
        access: u64,
        flags: u64,
        wanted_key: u64,
    ) -> Result<Region, Error> {
        let library = self.library();
        let mut raw = ptr::null_mut();
        let register =
            entry!(self.raw.as_ptr(), mr, reg).ok_or_else(|| library.missing("fi_mr_reg"))?;
        let domain = self.raw.as_ptr().cast();
        // SAFETY: the domain is live and begins with its `fid`; the caller answers for the memory.
        let returned = unsafe {
            register(
                domain,
                memory.cast(),
                bytes,
                access,
                0,
                wanted_key,
                flags,
                &mut raw,
                ptr::null_mut(),
            )
        };
        library.check("fi_mr_reg", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| library.missing("fi_mr_reg"))?;
        Ok(Region {
            raw,
            _domain: self.clone(),
        })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let _ = close!(self.raw.as_ptr());
    }
}

/// A registration of memory.
pub(crate) struct Region {
    raw: NonNull<fid_mr>,
    _domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Region {}

impl Region {
    /// What calls want beside a pointer into the memory.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: the object is live.
        unsafe { (*self.raw.as_ptr()).mem_desc }
    }

    /// What peers name the memory by.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: the object is live.
        unsafe { (*self.raw.as_ptr()).key }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = close!(self.raw.as_ptr());
    }
}

/// Wakes a port that waits. It may outlive the port, and then does nothing.
#[derive(Clone)]
pub struct Waker {
    shared: Arc<Wake>,
}

impl fmt::Debug for Waker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Waker").finish_non_exhaustive()
    }
}

/// What wakers and the queue share.
struct Wake {
    /// Set until the port has returned from a wait for it; so a wake-up is never lost, and many cost one
    /// call.
    is_woken: AtomicBool,
    /// The queue, until it closes; the lock keeps it open for the length of a call.
    queue: Mutex<Option<Signalled>>,
}

/// The queue, for signals alone.
struct Signalled(NonNull<fid_cq>);

// SAFETY: used for `fi_cq_signal` alone, which exists to be called while another thread waits.
unsafe impl Send for Signalled {}

impl Waker {
    /// Makes the port's wait return, or its next one if it is not waiting.
    pub fn wake(&self) {
        if self.shared.is_woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let queue = self
            .shared
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(Signalled(raw)) = &*queue else {
            return;
        };
        let Some(signal) = entry!(raw.as_ptr(), ops, signal) else {
            return;
        };
        // SAFETY: the queue cannot close while the lock is held.
        let _ = unsafe { signal(raw.as_ptr()) };
    }
}

/// A completion, good or bad.
#[derive(Clone, Copy)]
pub(crate) struct Completed {
    /// What was given as context: an address, not to be followed.
    pub(crate) context: usize,
    /// Bytes of a received message.
    pub(crate) bytes: usize,
    /// 0, or the code of the failure.
    pub(crate) code: i32,
    /// What came with a write of a peer, if it is the completion of that.
    pub(crate) told: Option<u64>,
}

/// How much a look into a queue brought.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Nothing.
    None,
    /// Something; probably all.
    Some,
    /// As much as fits a look; there may be more.
    Full,
}

/// Completions of a port.
pub(crate) struct Queue {
    pub(crate) raw: NonNull<fid_cq>,
    wake: Arc<Wake>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Queue {}
// SAFETY: as for `Domain`.
unsafe impl Sync for Queue {}

/// Completions read at once.
const BATCH: usize = 64;

impl Queue {
    pub(crate) fn open(domain: &Arc<Domain>) -> Result<Arc<Queue>, Error> {
        let library = domain.library();
        let mut attr = Padded::new(fi_cq_attr {
            size: QUEUE_ENTRIES,
            flags: 0,
            format: FI_CQ_FORMAT_DATA,
            wait_obj: FI_WAIT_UNSPEC,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        });
        let mut raw = ptr::null_mut();
        let open = entry!(domain.raw.as_ptr(), ops, cq_open)
            .ok_or_else(|| library.missing("fi_cq_open"))?;
        // SAFETY: the domain is live; the attributes outlive the call, which keeps no pointer to them.
        let returned = unsafe {
            open(
                domain.raw.as_ptr(),
                &raw mut attr.value,
                &mut raw,
                ptr::null_mut(),
            )
        };
        library.check("fi_cq_open", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| library.missing("fi_cq_open"))?;
        let wake = Wake {
            is_woken: AtomicBool::new(false),
            queue: Mutex::new(Some(Signalled(raw))),
        };
        Ok(Arc::new(Queue {
            raw,
            wake: Arc::new(wake),
            domain: domain.clone(),
        }))
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker {
            shared: self.wake.clone(),
        }
    }

    /// Whether somebody woke the port since the last call.
    pub(crate) fn take_wake(&self) -> bool {
        self.wake.is_woken.load(Ordering::Relaxed)
            && self.wake.is_woken.swap(false, Ordering::AcqRel)
    }

    /// Adds some completions, in their order; waits for the first for `wait_ms` milliseconds, or not if that
    /// is 0. If none came with `wait_ms` 0 the queue was empty.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the queue cannot be read, which no later call repairs.
    pub(crate) fn take(&self, wait_ms: i32, into: &mut Vec<Completed>) -> Result<Taken, Error> {
        let library = self.domain.library();
        let mut batch = [fi_cq_data_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
        }; BATCH];
        let (raw, place) = (self.raw.as_ptr(), batch.as_mut_ptr().cast());
        let returned = if wait_ms == 0 {
            let read = entry!(raw, ops, read).ok_or_else(|| library.missing("fi_cq_read"))?;
            // SAFETY: the queue is live and was opened for entries of this format; there is room for `BATCH`.
            unsafe { read(raw, place, BATCH) }
        } else {
            let read = entry!(raw, ops, sread).ok_or_else(|| library.missing("fi_cq_sread"))?;
            // SAFETY: as above; no condition is used.
            unsafe { read(raw, place, BATCH, ptr::null(), wait_ms) }
        };
        if returned >= 0 {
            let count = (returned as usize).min(BATCH);
            into.extend(batch[..count].iter().map(|entry| {
                Completed {
                    context: entry.op_context.addr(),
                    bytes: entry.len,
                    code: 0,
                    // A message may have such data, too, and is a message all the same.
                    told: (entry.flags & (FI_REMOTE_CQ_DATA | FI_RECV) == FI_REMOTE_CQ_DATA)
                        .then_some(entry.data),
                }
            }));
            return Ok(match count {
                0 => Taken::None,
                BATCH => Taken::Full,
                _ => Taken::Some,
            });
        }
        match code(returned) {
            FI_EAGAIN | FI_EINTR | FI_ETIMEDOUT | FI_ECANCELED => Ok(Taken::None),
            FI_EAVAIL => self.take_failure(into),
            _ => Err(library.error("fi_cq_sread", returned)),
        }
    }

    fn take_failure(&self, into: &mut Vec<Completed>) -> Result<Taken, Error> {
        let library = self.domain.library();
        let mut room = Padded::new(fi_cq_err_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: ptr::null_mut(),
            err_data_size: 0,
        });
        let read = entry!(self.raw.as_ptr(), ops, readerr)
            .ok_or_else(|| library.missing("fi_cq_readerr"))?;
        // SAFETY: the queue is live, and writes one entry; no room for error data is offered.
        let returned = unsafe { read(self.raw.as_ptr(), &raw mut room.value, 0) };
        match returned {
            1.. => {
                let code = if room.value.err == 0 {
                    FI_EIO
                } else {
                    room.value.err
                };
                into.push(Completed {
                    context: room.value.op_context.addr(),
                    bytes: 0,
                    code,
                    told: None,
                });
                // Failures come alone, and seldom singly.
                Ok(Taken::Full)
            }
            0 => Ok(Taken::None),
            _ if code(returned) == FI_EAGAIN => Ok(Taken::None),
            _ => Err(library.error("fi_cq_readerr", returned)),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        *self
            .wake
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
        let _ = close!(self.raw.as_ptr());
    }
}
