//! A small crash lab: the memory of a pool as a crash sees it, and hooks at moments.
//!
//! It keeps two images: `stored` has every store, as after a kill; `durable` has what flushes and fences
//! promise, as if no line ever left the caches on its own. A crash may leave either.

use everdram_pm::Region;
use everdram_pm::lab::{Actor, Event, Perform, Source, StoreKind, Tap};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

const LINE: usize = 64;

/// When a watcher is called: before the event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Load,
    Store,
    Fence,
}

type Watcher = (Moment, Box<dyn FnMut() + Send>);

/// Records everything that happens to a pool.
pub(crate) struct Memory {
    images: Mutex<Images>,
    watcher: Mutex<Option<Watcher>>,
    actors: AtomicU32,
}

struct Images {
    stored: Vec<u8>,
    durable: Vec<u8>,
    /// Lines that an actor has flushed or streamed since its last fence.
    leaving: HashMap<Actor, Vec<(usize, [u8; LINE])>>,
}

impl Images {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.stored[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn flush(&mut self, actor: Actor, at: usize, bytes: usize) {
        for line in (at / LINE * LINE..at + bytes).step_by(LINE) {
            let held = self.stored[line..line + LINE].try_into().unwrap();
            self.leaving.entry(actor).or_default().push((line, held));
        }
    }

    fn fence(&mut self, actor: Actor) {
        for (line, held) in self.leaving.remove(&actor).unwrap_or_default() {
            self.durable[line..line + LINE].copy_from_slice(&held);
        }
    }
}

impl Memory {
    /// Memory of `capacity` bytes that begins with `image`.
    pub(crate) fn new(mut image: Vec<u8>, capacity: usize) -> Memory {
        image.resize(capacity, 0);
        Memory {
            images: Mutex::new(Images {
                stored: image.clone(),
                durable: image,
                leaving: HashMap::new(),
            }),
            watcher: Mutex::default(),
            actors: AtomicU32::new(0),
        }
    }

    pub(crate) fn stored(&self) -> Vec<u8> {
        self.images.lock().unwrap().stored.clone()
    }

    pub(crate) fn durable(&self) -> Vec<u8> {
        self.images.lock().unwrap().durable.clone()
    }

    /// The memory that a process finds after its predecessor was killed: caches have what was `stored`.
    pub(crate) fn found(stored: Vec<u8>, durable: Vec<u8>, capacity: usize) -> Memory {
        let memory = Memory::new(stored, capacity);
        let mut durable = durable;
        durable.resize(capacity, 0);
        memory.images.lock().unwrap().durable = durable;
        memory
    }

    /// Calls `watcher` each time, until [`Memory::unwatch`]; events of the watcher itself do not count.
    pub(crate) fn watch(&self, moment: Moment, watcher: impl FnMut() + Send + 'static) {
        *self.watcher.lock().unwrap() = Some((moment, Box::new(watcher)));
    }

    /// Calls `watcher` once.
    pub(crate) fn watch_once(&self, moment: Moment, watcher: impl FnOnce() + Send + 'static) {
        let mut watcher = Some(watcher);
        self.watch(moment, move || {
            if let Some(watcher) = watcher.take() {
                watcher();
            }
        });
    }

    pub(crate) fn unwatch(&self) {
        self.watcher.lock().unwrap().take();
    }

    fn meet(&self, moment: Moment) {
        let taken = self.watcher.lock().unwrap().take_if(|(m, _)| *m == moment);
        if let Some((moment, mut watcher)) = taken {
            watcher();
            self.watcher
                .lock()
                .unwrap()
                .get_or_insert((moment, watcher));
        }
    }
}

impl Tap for Memory {
    fn actor(&self) -> Actor {
        self.actors.fetch_add(1, Ordering::Relaxed)
    }

    fn event(
        &self,
        _region: &Region,
        source: Source,
        event: Event<'_>,
        perform: Perform<'_>,
    ) -> bool {
        match event {
            Event::Store { .. } => self.meet(Moment::Store),
            Event::Fence => self.meet(Moment::Fence),
            Event::Flush { .. } => {}
        }
        let happened = perform();
        let mut images = self.images.lock().unwrap();
        match event {
            Event::Store {
                at, bytes, kind, ..
            } if happened => {
                images.store(at as usize, bytes);
                if kind == StoreKind::Stream {
                    images.flush(source.actor, at as usize, bytes.len());
                }
            }
            Event::Store { .. } => {}
            Event::Flush { at, bytes, .. } => {
                images.flush(source.actor, at as usize, bytes as usize)
            }
            Event::Fence => images.fence(source.actor),
        }
        happened
    }

    fn load(&self, _region: &Region, _at: u64, _bytes: u64) {
        self.meet(Moment::Load);
    }
}
