//! libfabric, loaded at run time: safe owners of its objects for connected endpoints.
//!
//! Nothing of libfabric is needed to build: [`library`] finds `libfabric.so.1` when it is first asked for. A
//! [`Listener`] hears requests to connect; a [`Port`] is one end with all its connections, for one thread. A
//! connection carries messages, in their order, and one-sided writes and reads of memory that the other end
//! exposes: of its own, or a window of a pool. A write may ask to be durable when it completes, where the
//! provider is known to see to that ([`Port::can_commit`]). Provider `tcp` works everywhere; `verbs` was
//! seen on soft-RoCE. [`probe`] tries a provider out.
//!
//! ```
//! use everdram_fabric_sys::{Event, Listener, Port, Sizes, library};
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let Ok(_) = library() else { return Ok(()) };
//! let (library, sizes) = (library()?, Sizes { message_bytes: 4096 });
//! let mut listener = Listener::bind(library, "tcp", "127.0.0.1:0".parse()?)?;
//! let address = listener.local_address();
//! let client = std::thread::spawn(move || {
//!     let mut port = Port::connecting(library, "tcp", address, sizes)?;
//!     let conn = port.connect(address, b"hello", 4)?;
//!     port.send(conn, &[b"one ", b"message"])?; // goes out when the connection is open
//!     let mut events = Vec::new();
//!     while !events.iter().any(|event| matches!(event, Event::Closed(_))) {
//!         port.wait(None, &mut events)?;
//!     }
//!     Ok::<(), everdram_fabric_sys::Error>(())
//! });
//! let incoming = listener.wait(Duration::from_secs(5))?.expect("a request");
//! let mut port = Port::of(&listener, sizes)?;
//! let conn = port.accept(incoming, 4)?;
//! let mut events = Vec::new();
//! loop {
//!     port.wait(None, &mut events)?;
//!     if let Some(Event::Message(_, buffer)) = events.last() {
//!         assert_eq!(port.message(buffer), b"one message");
//!         break;
//!     }
//! }
//! port.close(conn);
//! client.join().expect("no panic")?;
//! # Ok(())
//! # }
//! ```
//!
//! From the bottom: `abi` and `constants` are facts of the interface; `library` finds it; `info` asks
//! providers; `fabric`, `domain` and `endpoint` own objects; `memory`, `slab` and `area` hold what the
//! library may touch; `listener`, `port`, `transfer` and `wait` are what users see; `probe` is such a user.
//!
//! Threads: objects of a domain are used by the owner of its port alone (`FI_THREAD_DOMAIN`). Other threads
//! have a [`Waker`].
#![cfg(target_pointer_width = "64")]

mod abi;
mod address;
mod area;
mod constants;
mod domain;
mod endpoint;
mod error;
mod fabric;
mod info;
mod library;
mod listener;
mod memory;
mod object;
mod port;
mod probe;
mod slab;
mod transfer;
mod wait;

#[doc(hidden)]
pub use abi::{Layout, layouts};
pub use area::{Access, Area};
pub use domain::Waker;
pub use error::{Error, LoadError};
pub use info::{Provider, providers};
pub use library::{Library, library};
pub use listener::{Incoming, Listener};
pub use port::{Buffer, Conn, Port, Sizes};
pub use probe::{Bounds, Commit, Probe, WriteTimes, probe};
pub use transfer::Completion;
pub use wait::Event;

/// Ports and requests move between threads, and wakers are shared by them.
const _: () = {
    const fn moves<T: Send>() {}
    const fn is_shared<T: Send + Sync>() {}
    moves::<Port>();
    moves::<Listener>();
    moves::<Incoming>();
    moves::<Event>();
    is_shared::<Waker>();
};
