//! Owners of the objects that belong to a fabric: the fabric, event queues, passive endpoints.
//!
//! Each owner keeps alive what its object was opened from, so objects close in the order the library demands,
//! whatever the order in which owners are dropped. Calls on these objects are control calls, which the
//! library declares safe in any thread; event queues are nevertheless read by one thread each.

use crate::abi::{
    Padded, fi_eq_attr, fi_eq_cm_entry, fi_eq_err_entry, fid, fid_eq, fid_fabric, fid_pep,
};
use crate::address::Name;
use crate::constants::*;
use crate::info::Info;
use crate::object::{close, entry};
use crate::{Error, Library};
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// An opened fabric.
pub(crate) struct Fabric {
    pub(crate) raw: NonNull<fid_fabric>,
    pub(crate) library: &'static Library,
}

// SAFETY: all calls on a fabric are control calls, which the library declares safe in any thread.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Fabric {
    pub(crate) fn open(library: &'static Library, info: &Info) -> Result<Arc<Fabric>, Error> {
        let attr = info.first().fabric_attr();
        let mut raw = ptr::null_mut();
        // SAFETY: the attributes are those of a live offer, which the library made itself.
        let returned = unsafe { (library.fabric)(attr, &mut raw, ptr::null_mut()) };
        library.check("fi_fabric", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| library.missing("fi_fabric"))?;
        Ok(Arc::new(Fabric { raw, library }))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = close!(self.raw.as_ptr());
    }
}

/// What an event queue has to say.
pub(crate) enum Happened {
    /// Somebody wants to connect.
    Request { info: Info, parameter: Vec<u8> },
    /// The endpoint is connected.
    Connected(*mut fid),
    /// The endpoint's connection is over, refused, or failed.
    Over(*mut fid),
    /// Something that means nothing here.
    Other,
}

/// Events of connections.
pub(crate) struct EventQueue {
    pub(crate) raw: NonNull<fid_eq>,
    fabric: Arc<Fabric>,
}

// SAFETY: as for `Fabric`.
unsafe impl Send for EventQueue {}
// SAFETY: as for `Fabric`.
unsafe impl Sync for EventQueue {}

/// Room for one event and the parameter that came with it; verbs and tcp carry at most 256 bytes.
#[repr(C)]
struct Room {
    entry: fi_eq_cm_entry,
    parameter: [u8; 1024],
}

impl EventQueue {
    pub(crate) fn open(fabric: &Arc<Fabric>) -> Result<EventQueue, Error> {
        let library = fabric.library;
        let mut attr = Padded::new(fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: FI_WAIT_UNSPEC,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        });
        let mut raw = ptr::null_mut();
        let open = entry!(fabric.raw.as_ptr(), ops, eq_open)
            .ok_or_else(|| library.missing("fi_eq_open"))?;
        // SAFETY: the fabric is live; the attributes outlive the call, which keeps no pointer to them.
        let returned = unsafe {
            open(
                fabric.raw.as_ptr(),
                &raw mut attr.value,
                &mut raw,
                ptr::null_mut(),
            )
        };
        library.check("fi_eq_open", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| library.missing("fi_eq_open"))?;
        Ok(EventQueue {
            raw,
            fabric: fabric.clone(),
        })
    }

    /// The next event, or none after `wait_ms` milliseconds; 0 looks without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the queue cannot be read.
    pub(crate) fn next(&self, wait_ms: i32) -> Result<Option<Happened>, Error> {
        let library = self.fabric.library;
        let mut event = 0;
        let mut room = Room {
            entry: fi_eq_cm_entry {
                fid: ptr::null_mut(),
                info: ptr::null_mut(),
            },
            parameter: [0; 1024],
        };
        let (raw, place, bytes) = (self.raw.as_ptr(), (&raw mut room).cast(), size_of::<Room>());
        let returned = if wait_ms == 0 {
            let read = entry!(raw, ops, read).ok_or_else(|| library.missing("fi_eq_read"))?;
            // SAFETY: the queue is live, and writes at most `bytes` at `place`, which has as many.
            unsafe { read(raw, &mut event, place, bytes, 0) }
        } else {
            let read = entry!(raw, ops, sread).ok_or_else(|| library.missing("fi_eq_sread"))?;
            // SAFETY: the queue is live, and writes at most `bytes` at `place`, which has as many.
            unsafe { read(raw, &mut event, place, bytes, wait_ms, 0) }
        };
        if returned < 0 {
            return match code(returned) {
                FI_EAGAIN | FI_EINTR | FI_ETIMEDOUT | FI_ECANCELED => Ok(None),
                FI_EAVAIL => self.failure(),
                _ => Err(library.error("fi_eq_sread", returned)),
            };
        }
        let parameter = (returned as usize).saturating_sub(size_of::<fi_eq_cm_entry>());
        Ok(Some(match event {
            FI_CONNREQ => match NonNull::new(room.entry.info) {
                Some(info) => Happened::Request {
                    // SAFETY: with a connection request the library gives its offer away.
                    info: unsafe { Info::adopt(library, info) },
                    parameter: room.parameter[..parameter.min(1024)].to_vec(),
                },
                None => Happened::Other,
            },
            FI_CONNECTED => Happened::Connected(room.entry.fid),
            FI_SHUTDOWN => Happened::Over(room.entry.fid),
            _ => Happened::Other,
        }))
    }

    fn failure(&self) -> Result<Option<Happened>, Error> {
        let library = self.fabric.library;
        let mut room = Padded::new(fi_eq_err_entry {
            fid: ptr::null_mut(),
            context: ptr::null_mut(),
            data: 0,
            err: 0,
            prov_errno: 0,
            err_data: ptr::null_mut(),
            err_data_size: 0,
        });
        let read = entry!(self.raw.as_ptr(), ops, readerr)
            .ok_or_else(|| library.missing("fi_eq_readerr"))?;
        // SAFETY: the queue is live, and writes one entry; no room for error data is offered.
        let returned = unsafe { read(self.raw.as_ptr(), &raw mut room.value, 0) };
        match returned {
            0.. => Ok(Some(Happened::Over(room.value.fid))),
            _ if code(returned) == FI_EAGAIN => Ok(None),
            _ => Err(library.error("fi_eq_readerr", returned)),
        }
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        let _ = close!(self.raw.as_ptr());
    }
}

/// A returned value as a positive code.
pub(crate) fn code(returned: isize) -> i32 {
    i32::try_from(returned.unsigned_abs()).unwrap_or(FI_EIO)
}

/// Where connection requests arrive.
pub(crate) struct PassiveEndpoint {
    raw: NonNull<fid_pep>,
    address: SocketAddr,
    pub(crate) events: EventQueue,
    pub(crate) fabric: Arc<Fabric>,
}

// SAFETY: as for `Fabric`.
unsafe impl Send for PassiveEndpoint {}
// SAFETY: as for `Fabric`.
unsafe impl Sync for PassiveEndpoint {}

impl PassiveEndpoint {
    /// Opens an endpoint for an offer with an address of this machine, and listens.
    pub(crate) fn listen(fabric: Arc<Fabric>, info: &Info) -> Result<PassiveEndpoint, Error> {
        let library = fabric.library;
        let events = EventQueue::open(&fabric)?;
        let mut raw = ptr::null_mut();
        let open = entry!(fabric.raw.as_ptr(), ops, passive_ep)
            .ok_or_else(|| library.missing("fi_passive_ep"))?;
        // SAFETY: fabric and offer are live; the call copies what it needs.
        let returned = unsafe {
            open(
                fabric.raw.as_ptr(),
                info.as_ptr(),
                &mut raw,
                ptr::null_mut(),
            )
        };
        library.check("fi_passive_ep", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| library.missing("fi_passive_ep"))?;
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut endpoint = PassiveEndpoint {
            raw,
            address: nowhere,
            events,
            fabric,
        };
        let bind =
            entry!(raw.as_ptr(), fid.ops, bind).ok_or_else(|| library.missing("fi_pep_bind"))?;
        // SAFETY: both objects are live and begin with their `fid`; the queue outlives the endpoint in this
        // struct.
        let returned = unsafe { bind(raw.as_ptr().cast(), endpoint.events.raw.as_ptr().cast(), 0) };
        library.check("fi_pep_bind", returned)?;
        let listen =
            entry!(raw.as_ptr(), cm, listen).ok_or_else(|| library.missing("fi_listen"))?;
        // SAFETY: the endpoint is live and bound.
        let returned = unsafe { listen(raw.as_ptr()) };
        library.check("fi_listen", returned)?;
        let mut name = Name::room();
        let mut bytes = size_of::<Name>();
        let getname =
            entry!(raw.as_ptr(), cm, getname).ok_or_else(|| library.missing("fi_getname"))?;
        // SAFETY: the endpoint is live; the call writes at most `bytes`, which the place has.
        let returned = unsafe { getname(raw.as_ptr().cast(), (&raw mut name).cast(), &mut bytes) };
        library.check("fi_getname", returned)?;
        endpoint.address = name.address().ok_or_else(|| {
            Error::Unsupported(
                "the provider has no internet addresses; name one that has, like tcp".to_owned(),
            )
        })?;
        Ok(endpoint)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses a request that came from this endpoint and was not used for an endpoint; best effort.
    pub(crate) fn reject(&self, info: &Info) {
        let Some(reject) = entry!(self.raw.as_ptr(), cm, reject) else {
            return;
        };
        // SAFETY: the endpoint is live; the request came from it, and nobody has used it.
        let _ = unsafe { reject(self.raw.as_ptr(), info.first().handle(), ptr::null(), 0) };
    }
}

impl Drop for PassiveEndpoint {
    fn drop(&mut self) {
        // Before the queue it is bound to, which is a field.
        let _ = close!(self.raw.as_ptr());
    }
}
