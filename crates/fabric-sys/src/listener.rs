//! The end that waits for connections: a listener and what it hears.

use crate::fabric::{Fabric, Happened, PassiveEndpoint};
use crate::info::{End, Info, ask_for};
use crate::{Error, Library};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Listens at an address. Used by one thread; ports that accept live in others.
pub struct Listener {
    pub(crate) endpoint: Arc<PassiveEndpoint>,
    pub(crate) info: Info,
}

/// A request to connect. Without [`crate::Port::accept`] it is refused when it is dropped.
pub struct Incoming {
    pub(crate) info: Info,
    endpoint: Arc<PassiveEndpoint>,
    parameter: Vec<u8>,
    is_answered: bool,
}

impl fmt::Debug for Listener {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Listener")
            .field("address", &self.local_address())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Incoming")
            .field("parameter", &self.parameter)
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens with a provider (`tcp`, `verbs`) at an address of this machine; port 0 picks a free one.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the provider is not there or the address cannot be had.
    pub fn bind(
        library: &'static Library,
        provider: &str,
        address: SocketAddr,
    ) -> Result<Listener, Error> {
        let info = ask_for(library, provider, End::Here(address))?;
        let fabric = Fabric::open(library, &info)?;
        let endpoint = PassiveEndpoint::listen(fabric, &info)?;
        Ok(Listener {
            endpoint: Arc::new(endpoint),
            info,
        })
    }

    /// The address, with the port that was bound.
    pub fn local_address(&self) -> SocketAddr {
        self.endpoint.address()
    }

    /// Waits for a request, at most for `timeout`; none came if it returns `None`.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the queue of events cannot be read.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Incoming>, Error> {
        let until = Instant::now().checked_add(timeout);
        loop {
            let left = until.map_or(timeout, |until| {
                until.saturating_duration_since(Instant::now())
            });
            let happened = self.endpoint.events.next(milliseconds(left))?;
            if let Some(Happened::Request { info, parameter }) = happened {
                let endpoint = self.endpoint.clone();
                return Ok(Some(Incoming {
                    info,
                    endpoint,
                    parameter,
                    is_answered: false,
                }));
            }
            if happened.is_none() && left.is_zero() {
                return Ok(None);
            }
        }
    }
}

/// Whole milliseconds, rounded up; what is longer than a C `int` waits as long as that can say.
pub(crate) fn milliseconds(duration: Duration) -> i32 {
    let whole = duration.as_nanos().div_ceil(1_000_000);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

impl Incoming {
    /// What the peer sent along with its request, if the provider carries it to its end.
    ///
    /// A provider may add zeros: verbs of some releases delivers its full 56 bytes.
    pub fn parameter(&self) -> &[u8] {
        &self.parameter
    }

    /// The request was used for an endpoint, whose closing answers it from now on.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_answered {
            self.endpoint.reject(&self.info);
        }
    }
}
