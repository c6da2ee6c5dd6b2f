//! An endpoint: one end of a connection.

use crate::abi::{fi_msg_rma, fi_rma_iov, fid, fid_ep, iovec};
use crate::address::Name;
use crate::constants::*;
use crate::domain::{Domain, Queue};
use crate::fabric::{EventQueue, code};
use crate::info::Info;
use crate::object::{close, entry};
use crate::{Error, Library};
use core::ffi::c_void;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Memory of an operation: where, how much, and the descriptor of its registration (or null).
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) pointer: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) descriptor: *mut c_void,
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// An enabled endpoint; keeps alive what it is bound to.
pub(crate) struct Endpoint {
    raw: NonNull<fid_ep>,
    is_closed: bool,
    domain: Arc<Domain>,
    _queue: Arc<Queue>,
    _events: Arc<EventQueue>,
}

// SAFETY: as for `Domain`: an endpoint is used by its port alone.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint for an offer, or for the request in it, binds it to the queues and enables it.
    ///
    /// `opened` says afterwards whether the request, if there was one, was used up.
    pub(crate) fn open(
        info: &Info,
        domain: &Arc<Domain>,
        queue: &Arc<Queue>,
        events: &Arc<EventQueue>,
        opened: &mut bool,
    ) -> Result<Endpoint, Error> {
        let library = domain.library();
        let mut raw = ptr::null_mut();
        let open = entry!(domain.raw.as_ptr(), ops, endpoint)
            .ok_or_else(|| library.missing("fi_endpoint"))?;
        // SAFETY: domain and offer are live; the call copies what it needs.
        let returned = unsafe {
            open(
                domain.raw.as_ptr(),
                info.as_ptr(),
                &mut raw,
                ptr::null_mut(),
            )
        };
        library.check("fi_endpoint", returned)?;
        *opened = true;
        let raw = NonNull::new(raw).ok_or_else(|| library.missing("fi_endpoint"))?;
        let endpoint = Endpoint {
            raw,
            is_closed: false,
            domain: domain.clone(),
            _queue: queue.clone(),
            _events: events.clone(),
        };
        let bind =
            entry!(raw.as_ptr(), fid.ops, bind).ok_or_else(|| library.missing("fi_ep_bind"))?;
        // SAFETY: both objects are live and begin with their `fid`; the endpoint keeps the queue alive.
        let returned = unsafe { bind(raw.as_ptr().cast(), events.raw.as_ptr().cast(), 0) };
        library.check("fi_ep_bind", returned)?;
        // SAFETY: as above.
        let returned = unsafe {
            bind(
                raw.as_ptr().cast(),
                queue.raw.as_ptr().cast(),
                FI_SEND | FI_RECV,
            )
        };
        library.check("fi_ep_bind", returned)?;
        let control =
            entry!(raw.as_ptr(), fid.ops, control).ok_or_else(|| library.missing("fi_enable"))?;
        // SAFETY: the endpoint is live and bound; the command has no argument.
        let returned = unsafe { control(raw.as_ptr().cast(), FI_ENABLE, ptr::null_mut()) };
        library.check("fi_enable", returned)?;
        Ok(endpoint)
    }

    fn library(&self) -> &'static Library {
        self.domain.library()
    }

    /// What events name the endpoint by.
    pub(crate) fn id(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    pub(crate) fn connect(&self, to: SocketAddr, parameter: &[u8]) -> Result<(), Error> {
        let name = Name::new(to);
        let connect = entry!(self.raw.as_ptr(), cm, connect)
            .ok_or_else(|| self.library().missing("fi_connect"))?;
        let (at, bytes) = (parameter.as_ptr().cast(), parameter.len());
        // SAFETY: the endpoint is live; the call copies the address, which is whole, and the parameter.
        let returned = unsafe { connect(self.raw.as_ptr(), (&raw const name).cast(), at, bytes) };
        self.library().check("fi_connect", returned)
    }

    pub(crate) fn accept(&self) -> Result<(), Error> {
        let accept = entry!(self.raw.as_ptr(), cm, accept)
            .ok_or_else(|| self.library().missing("fi_accept"))?;
        // SAFETY: the endpoint is live; there is no parameter.
        let returned = unsafe { accept(self.raw.as_ptr(), ptr::null(), 0) };
        self.library().check("fi_accept", returned)
    }

    /// Tells the peer that the connection is over; best effort.
    pub(crate) fn shutdown(&self) {
        let Some(shutdown) = entry!(self.raw.as_ptr(), cm, shutdown) else {
            return;
        };
        // SAFETY: the endpoint is live.
        let _ = unsafe { shutdown(self.raw.as_ptr(), 0) };
    }

    /// Posts a receive buffer. Here and below, false means: not now, try again.
    ///
    /// # Safety
    ///
    /// Here and below: the span is memory of the port that nothing else uses, and the context is 64 bytes
    /// that nothing else uses, until the operation completed or the endpoint was closed.
    pub(crate) unsafe fn receive(&self, span: Span, context: *mut c_void) -> Result<bool, Error> {
        let receive = entry!(self.raw.as_ptr(), msg, recv)
            .ok_or_else(|| self.library().missing("fi_recv"))?;
        let (pointer, raw) = (span.pointer.cast(), self.raw.as_ptr());
        // SAFETY: the endpoint is live and enabled; the caller answers for span and context.
        let returned = unsafe { receive(raw, pointer, span.bytes, span.descriptor, 0, context) };
        self.posted("fi_recv", returned)
    }

    /// Sends a message.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::receive`].
    pub(crate) unsafe fn send(&self, span: Span, context: *mut c_void) -> Result<bool, Error> {
        let send = entry!(self.raw.as_ptr(), msg, send)
            .ok_or_else(|| self.library().missing("fi_send"))?;
        let (pointer, raw) = (span.pointer.cast_const().cast(), self.raw.as_ptr());
        // SAFETY: the endpoint is live and enabled; the caller answers for span and context.
        let returned = unsafe { send(raw, pointer, span.bytes, span.descriptor, 0, context) };
        self.posted("fi_send", returned)
    }

    /// Writes into memory of the peer.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::receive`].
    pub(crate) unsafe fn write(
        &self,
        span: Span,
        to: Remote,
        context: *mut c_void,
    ) -> Result<bool, Error> {
        let write = entry!(self.raw.as_ptr(), rma, write)
            .ok_or_else(|| self.library().missing("fi_write"))?;
        let (pointer, raw) = (span.pointer.cast_const().cast(), self.raw.as_ptr());
        // SAFETY: the endpoint is live and enabled; the caller answers for span and context.
        let returned = unsafe {
            write(
                raw,
                pointer,
                span.bytes,
                span.descriptor,
                0,
                to.address,
                to.key,
                context,
            )
        };
        self.posted("fi_write", returned)
    }

    /// As [`Endpoint::write`]; completes when the peer's side has made the bytes durable. `told` becomes a
    /// completion over there, behind that.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::receive`].
    pub(crate) unsafe fn write_durably(
        &self,
        span: Span,
        to: Remote,
        told: Option<u32>,
        context: *mut c_void,
    ) -> Result<bool, Error> {
        let write = entry!(self.raw.as_ptr(), rma, writemsg)
            .ok_or_else(|| self.library().missing("fi_writemsg"))?;
        let mut descriptor = span.descriptor;
        let from = iovec {
            iov_base: span.pointer.cast(),
            iov_len: span.bytes,
        };
        let target = fi_rma_iov {
            addr: to.address,
            len: span.bytes,
            key: to.key,
        };
        let message = fi_msg_rma {
            msg_iov: &raw const from,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: 0,
            rma_iov: &raw const target,
            rma_iov_count: 1,
            context,
            data: told.map_or(0, u64::from),
        };
        let tells = if told.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        let flags = FI_COMPLETION | FI_COMMIT_COMPLETE | tells;
        // SAFETY: the endpoint is live and enabled; the call copies the description of the message, which
        // outlives it; the caller answers for span and context.
        let returned = unsafe { write(self.raw.as_ptr(), &raw const message, flags) };
        self.posted("fi_writemsg", returned)
    }

    /// Reads from memory of the peer.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::receive`].
    pub(crate) unsafe fn read(
        &self,
        span: Span,
        from: Remote,
        context: *mut c_void,
    ) -> Result<bool, Error> {
        let read = entry!(self.raw.as_ptr(), rma, read)
            .ok_or_else(|| self.library().missing("fi_read"))?;
        let (pointer, raw) = (span.pointer.cast(), self.raw.as_ptr());
        // SAFETY: the endpoint is live and enabled; the caller answers for span and context.
        let returned = unsafe {
            read(
                raw,
                pointer,
                span.bytes,
                span.descriptor,
                0,
                from.address,
                from.key,
                context,
            )
        };
        self.posted("fi_read", returned)
    }

    fn posted(&self, call: &'static str, returned: isize) -> Result<bool, Error> {
        match returned {
            0.. => Ok(true),
            _ if code(returned) == FI_EAGAIN => Ok(false),
            _ => Err(self.library().error(call, returned)),
        }
    }

    /// Closes the endpoint, or gives it back if the provider is not done with it yet.
    pub(crate) fn close(mut self) -> Result<(), Endpoint> {
        if close!(self.raw.as_ptr()) == -FI_EBUSY {
            return Err(self);
        }
        self.is_closed = true;
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.is_closed {
            let _ = close!(self.raw.as_ptr());
        }
    }
}
