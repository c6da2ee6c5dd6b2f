//! The link over libfabric: connected endpoints of a provider, such as `tcp` or `verbs`.

use crate::link::{Access, Area, Buffer, Conn, Event, Link, LinkError, Listen, Request, Waker};
use crate::wire::{GREETING, MESSAGE_BYTES, VERSION};
use everdram_fabric_sys as sys;
use everdram_pm::Window;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const SIZES: sys::Sizes = sys::Sizes {
    message_bytes: MESSAGE_BYTES,
};

/// The token of writes that are not durable when they end.
const PLAIN: u64 = u64::MAX;

/// Where a door listens: `tcp://127.0.0.1:7700`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) provider: String,
    pub(crate) address: SocketAddr,
}

impl Place {
    /// `None`: it is not `PROVIDER://ADDRESS:PORT`.
    pub(crate) fn parse(text: &str) -> Option<Place> {
        let (provider, address) = text.split_once("://")?;
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if provider.is_empty() || !provider.chars().all(is_name) {
            return None;
        }
        Some(Place {
            provider: provider.to_owned(),
            address: address.parse().ok()?,
        })
    }
}

/// The listening end.
pub(crate) struct Ear {
    provider: String,
    listener: sys::Listener,
}

impl Ear {
    pub(crate) fn bind(place: &Place) -> Result<Result<Ear, LinkError>, sys::LoadError> {
        let library = sys::library()?;
        let bound = sys::Listener::bind(library, &place.provider, place.address);
        Ok(bound.map_err(LinkError::from).map(|listener| Ear {
            provider: place.provider.clone(),
            listener,
        }))
    }

    /// A link for connections that this hears of.
    pub(crate) fn port(&self) -> Result<Port, LinkError> {
        Ok(Port::over(sys::Port::of(&self.listener, SIZES)?))
    }
}

impl Listen for Ear {
    fn wait(&mut self, timeout: Duration) -> Result<Option<Request>, LinkError> {
        let Some(incoming) = self.listener.wait(timeout)? else {
            return Ok(None);
        };
        let is_ours = match incoming.parameter() {
            [b'E', b'V', b'F', b'1', oldest, newest, ..] => (*oldest..=*newest).contains(&VERSION),
            _ => false,
        };
        Ok(is_ours.then(|| Box::new(incoming) as Request))
    }

    fn address(&self) -> String {
        format!("{}://{}", self.provider, self.listener.local_address())
    }
}

/// One end with its connections.
pub(crate) struct Port {
    port: sys::Port,
    areas: HashMap<u64, sys::Area>,
    events: Vec<sys::Event>,
}

impl Port {
    fn over(port: sys::Port) -> Port {
        Port {
            port,
            areas: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// An end that connects to a place.
    pub(crate) fn to(
        place: &Place,
        buffers: usize,
    ) -> Result<Result<(Port, Conn), LinkError>, sys::LoadError> {
        let library = sys::library()?;
        let connect = || -> Result<(Port, Conn), LinkError> {
            let port = sys::Port::connecting(library, &place.provider, place.address, SIZES)?;
            let mut port = Port::over(port);
            let conn = port.port.connect(place.address, &GREETING, buffers)?;
            Ok((port, Conn(conn.0)))
        };
        Ok(connect())
    }
}

impl Port {
    /// Remembers an area, by what peers name it.
    fn keep(&mut self, area: sys::Area) -> Area {
        let named = Area {
            address: area.address,
            key: area.key,
            bytes: area.bytes,
        };
        self.areas.insert(area.key, area);
        named
    }
}

impl Link for Port {
    fn accept(&mut self, request: Request, buffers: usize) -> Result<Conn, LinkError> {
        let incoming = request
            .downcast::<sys::Incoming>()
            .map_err(|_| LinkError::Foreign)?;
        Ok(Conn(self.port.accept(*incoming, buffers)?.0))
    }

    fn post(&mut self, conn: Conn) -> Result<(), LinkError> {
        Ok(self.port.post(sys::Conn(conn.0))?)
    }

    fn send(&mut self, conn: Conn, parts: &[&[u8]]) -> Result<(), LinkError> {
        Ok(self.port.send(sys::Conn(conn.0), parts)?)
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<Event>) -> Result<(), LinkError> {
        self.port.wait(timeout, &mut self.events)?;
        for event in self.events.drain(..) {
            into.push(match event {
                sys::Event::Opened(_) => Event::Opened,
                sys::Event::Message(conn, buffer) => Event::Message(Conn(conn.0), Buffer(buffer.0)),
                sys::Event::Written(_, PLAIN, outcome) => Event::Written(outcome.is_ok()),
                sys::Event::Written(_, token, outcome) => Event::Committed(token, outcome.is_ok()),
                sys::Event::Told(told) => Event::Told(None, told),
                sys::Event::Read(_, token, outcome) => Event::Read(token, outcome.ok()),
                sys::Event::Closed(conn) => Event::Closed(Conn(conn.0)),
                // There are no others.
                _ => continue,
            });
        }
        Ok(())
    }

    fn message(&self, buffer: &Buffer) -> &[u8] {
        self.port.message(&sys::Buffer(buffer.0))
    }

    fn give_back(&mut self, buffer: Buffer, again: bool) -> Result<(), LinkError> {
        Ok(self.port.give_back(sys::Buffer(buffer.0), again)?)
    }

    fn close(&mut self, conn: Conn) {
        self.port.close(sys::Conn(conn.0));
    }

    fn waker(&self) -> Waker {
        let waker = self.port.waker();
        Arc::new(move || waker.wake())
    }

    fn unsent(&self, conn: Conn) -> usize {
        self.port.unsent(sys::Conn(conn.0))
    }

    fn expose(&mut self, conn: Conn, bytes: usize) -> Result<Area, LinkError> {
        let area = self.port.expose(sys::Conn(conn.0), bytes)?;
        Ok(self.keep(area))
    }

    fn expose_part(
        &mut self,
        conn: Conn,
        window: &Arc<Window>,
        part: Range<usize>,
        access: Access,
    ) -> Result<Area, LinkError> {
        let conn = sys::Conn(conn.0);
        let area = self.port.expose_part(conn, window, part, access)?;
        Ok(self.keep(area))
    }

    fn unexpose(&mut self, area: Area) {
        if let Some(area) = self.areas.remove(&area.key) {
            self.port.unexpose(area);
        }
    }

    fn read_area(&self, area: &Area, at: usize, into: &mut [u8]) -> Result<(), LinkError> {
        let area = self.areas.get(&area.key).ok_or(LinkError::Foreign)?;
        Ok(self.port.read_area(area, at, into)?)
    }

    fn write(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        (address, key): (u64, u64),
    ) -> Result<(), LinkError> {
        let (conn, how) = (sys::Conn(conn.0), sys::Completion::Sent);
        Ok(self.port.write(conn, &[bytes], address, key, PLAIN, how)?)
    }

    fn can_commit(&self) -> bool {
        self.port.can_commit()
    }

    fn write_durably(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        (address, key): (u64, u64),
        token: u64,
    ) -> Result<(), LinkError> {
        assert_ne!(token, PLAIN);
        let (conn, how) = (sys::Conn(conn.0), sys::Completion::Durable);
        Ok(self.port.write(conn, &[bytes], address, key, token, how)?)
    }

    fn can_tell(&self) -> bool {
        self.port.can_tell()
    }

    fn checks_writes(&self) -> bool {
        self.port.checks_writes()
    }

    fn write_and_tell(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        (address, key): (u64, u64),
        token: u64,
        told: u32,
    ) -> Result<(), LinkError> {
        assert_ne!(token, PLAIN);
        let (conn, how) = (sys::Conn(conn.0), sys::Completion::DurableAndTold(told));
        Ok(self.port.write(conn, &[bytes], address, key, token, how)?)
    }

    fn read(
        &mut self,
        conn: Conn,
        bytes: usize,
        (address, key): (u64, u64),
        token: u64,
    ) -> Result<(), LinkError> {
        let conn = sys::Conn(conn.0);
        Ok(self.port.read(conn, bytes, address, key, token)?)
    }
}
