//! A door without threads: whoever has it turns its loop.

use super::event_loop::{EventLoop, Mailbox};
use super::memory::Memory;
use super::{Settings, Shared, StartError};
use crate::inside::{Ear, Network};
use crate::link::{Link, LinkError, Listen};
use everdram::Store;
use everdram::engine::Engine;
use everdram::landing::Landing;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A door of one loop that the caller turns. Dropped, it ends: drop its clients before.
pub struct TurnedDoor {
    event_loop: EventLoop,
    shared: Arc<Shared>,
    ear: Ear,
    #[cfg(feature = "modelled")]
    clock: Option<crate::inside::EndClock>,
}

impl TurnedDoor {
    /// A door over `store` for clients of `network`.
    ///
    /// # Errors
    /// The engine has no session left.
    pub fn new(
        store: &Store,
        network: &Network,
        settings: Settings,
    ) -> Result<TurnedDoor, StartError> {
        let engine = Arc::clone(store.engine());
        let over = (engine, store.landing(), super::hello(store));
        TurnedDoor::over(over, network, settings)
    }

    /// A door over an engine with the landing area below it, and what it answers to a Hello.
    pub(super) fn over(
        (engine, landing, hello): (Arc<dyn Engine>, Option<Arc<Landing>>, Vec<u8>),
        network: &Network,
        settings: Settings,
    ) -> Result<TurnedDoor, StartError> {
        let port: Box<dyn Link> = Box::new(network.port());
        #[cfg(feature = "modelled")]
        let clock = port.clock();
        let shared = Arc::new(Shared {
            engine,
            hello,
            landing,
            memory: Memory::of(settings.memory_bytes),
            settings,
            mailboxes: vec![Mailbox::new(port.waker())],
            connections: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        });
        Ok(TurnedDoor {
            event_loop: EventLoop::new(port, 0, Arc::clone(&shared))?,
            ear: network.listen(),
            shared,
            #[cfg(feature = "modelled")]
            clock,
        })
    }

    /// Hears one who wants to connect, if somebody does within this time; a turn accepts.
    pub fn hear(&mut self, timeout: Duration) {
        if let Ok(Some(request)) = self.ear.wait(timeout)
            && let Some(mailbox) = self.shared.mailboxes.first()
        {
            self.shared.connections.fetch_add(1, Ordering::Relaxed);
            if !mailbox.hand(request) {
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// One wake-up: carries out what has arrived within this time, and answers.
    ///
    /// # Errors
    /// The link has failed.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.event_loop.turn(Some(timeout), false)
    }

    /// What a Hello is answered with.
    #[cfg(feature = "fuzzing")]
    pub(super) fn hello(&self) -> &[u8] {
        &self.shared.hello
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.event_loop.connections.len()
    }
}

/// On a modelled network.
#[cfg(feature = "modelled")]
impl TurnedDoor {
    /// Its clock; `None`: the network is not modelled.
    #[must_use]
    pub fn clock(&self) -> Option<crate::inside::EndClock> {
        self.clock.clone()
    }

    /// Whether the engine has more work for its thread.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.event_loop.has_work()
    }
}
