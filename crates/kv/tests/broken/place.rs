//! A running engine over a small crash lab, and what a story needs of it.

use crate::memory::{Memory, Moment};
use everdram::engine::{Engine, EngineSession};
use everdram::lab::{identity, open};
use everdram::{EngineKind, Error, Hole, Options};
use everdram_pm::lab;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long somebody waits who may be waited for.
const PATIENCE: Duration = Duration::from_millis(100);

pub(crate) type Contents = BTreeMap<Vec<u8>, Vec<u8>>;
/// What went wrong, if anything did.
pub(crate) type Outcome = Result<(), String>;

/// What small pools of all engines have in common.
pub(crate) fn base(engine: EngineKind, hole: Option<Hole>) -> Options {
    let mut options = Options::default();
    options.engine = Some(engine);
    options.initial_bytes = 16 << 10;
    options.chunk_bytes = 16 << 10;
    options.max_bytes = 256 << 10;
    options.sessions_max = 4;
    options.broken = hole;
    options
}

/// A running engine and its memory.
pub(crate) struct Place {
    options: Options,
    pub(crate) memory: Arc<Memory>,
    pub(crate) engine: Arc<dyn Engine>,
}

impl Place {
    pub(crate) fn new(options: &Options) -> Place {
        let (engine, geometry) = identity(options).unwrap();
        let image = lab::create(lab::Seed(7), engine, geometry).unwrap();
        Place::recover(options, image).unwrap()
    }

    pub(crate) fn recover(options: &Options, image: Vec<u8>) -> Result<Place, Error> {
        let memory = Arc::new(Memory::new(image.clone(), options.max_bytes as usize));
        let pool = lab::open(&image, options.max_bytes, Some(memory.clone()))?;
        Ok(Place {
            options: options.clone(),
            memory,
            engine: open(pool, options)?.engine(),
        })
    }

    /// What a crash leaves that keeps no line it need not keep.
    pub(crate) fn crash(&self) -> Result<Place, String> {
        self.crash_to(self.memory.durable())
    }

    pub(crate) fn crash_to(&self, image: Vec<u8>) -> Result<Place, String> {
        Place::recover(&self.options, image).map_err(|error| format!("recovery: {error}"))
    }

    pub(crate) fn session(&self) -> User {
        User(self.engine.clone().session().unwrap())
    }

    /// Everything a crash now keeps is `wanted`.
    pub(crate) fn keeps(&self, wanted: &Contents) -> Outcome {
        self.crash()?.holds(wanted)
    }

    /// It has what is `wanted`, and its own check finds nothing.
    pub(crate) fn holds(&self, wanted: &Contents) -> Outcome {
        let found = self.session().contents()?;
        agree("after a crash", &found, wanted)?;
        let report = self.engine.check().map_err(|error| error.to_string())?;
        match report.findings.is_empty() {
            true => Ok(()),
            false => Err(format!("{:?}", report.findings)),
        }
    }

    pub(crate) fn reclaim(&self) {
        self.engine.reclaim().unwrap();
    }

    /// Lets another thread do something at a moment, and goes on when that is done or has to wait, which it
    /// may for the caller.
    pub(crate) fn beside_once(
        &self,
        moment: Moment,
        act: impl FnOnce() + Send + 'static,
    ) -> Beside {
        let thread = Arc::new(Mutex::new(None));
        let started = thread.clone();
        self.memory.watch_once(moment, move || {
            let other = std::thread::spawn(act);
            let begun = Instant::now();
            while !other.is_finished() && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            *started.lock().unwrap() = Some(other);
        });
        Beside {
            memory: self.memory.clone(),
            thread,
        }
    }

    /// Does something, and judges what crashes at each fence of it leave: `images` makes them of the memory.
    pub(crate) fn at_each_fence(
        &self,
        act: impl FnOnce(),
        images: fn(&Memory) -> Vec<Vec<u8>>,
        judge: impl Fn(&Place) -> Outcome + Send + 'static,
    ) -> Outcome {
        let harm = Arc::new(Mutex::new(Ok(())));
        let (memory, first, options) = (self.memory.clone(), harm.clone(), self.options.clone());
        self.memory.watch(Moment::Fence, move || {
            let mut first = first.lock().unwrap();
            for image in images(&memory) {
                if first.is_ok() {
                    let recovered = Place::recover(&options, image);
                    *first = recovered
                        .map_err(|error| format!("recovery: {error}"))
                        .and_then(|place| judge(&place));
                }
            }
        });
        act();
        self.memory.unwatch();
        harm.lock().unwrap().clone()
    }
}

/// What another thread does.
pub(crate) struct Beside {
    memory: Arc<Memory>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Beside {
    /// Waits for its end. The moment has come.
    pub(crate) fn join(self) {
        self.memory.unwatch();
        let thread = self.thread.lock().unwrap().take();
        thread.expect("the moment has come").join().unwrap();
    }
}

/// A session whose writes are acknowledged when they return.
pub(crate) struct User(pub(crate) Box<dyn EngineSession>);

impl User {
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.put(key, value, 0).unwrap();
        self.finish();
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.0.delete(key).unwrap();
        self.finish();
    }

    pub(crate) fn finish(&mut self) {
        let ticket = self.0.commit().unwrap();
        self.0.wait(ticket).unwrap();
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let mut value = Vec::new();
        match self.0.get(key, &mut value) {
            Ok(found) => Ok(found.map(|_| value)),
            Err(error) => Err(format!("reading: {error}")),
        }
    }

    pub(crate) fn contents(&mut self) -> Result<Contents, String> {
        let mut keys = Vec::new();
        let mut cursor = 0;
        loop {
            let mut visit = |key: &[u8], _, _| keys.push(key.to_vec());
            let next = self.0.scan(cursor, 64, &mut visit);
            cursor = next.map_err(|error| format!("iterating: {error}"))?;
            if cursor == 0 {
                break;
            }
        }
        let mut contents = Contents::new();
        for key in keys {
            if let Some(value) = self.get(&key)? {
                contents.insert(key, value);
            }
        }
        Ok(contents)
    }
}

pub(crate) fn agree<T: PartialEq + std::fmt::Debug>(when: &str, found: &T, wanted: &T) -> Outcome {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{when}: found {found:?}, wanted {wanted:?}")),
    }
}

/// The story ends well on a sound engine, and not on one with the hole.
pub(crate) fn harms(hole: Hole, story: impl Fn(Option<Hole>) -> Outcome) {
    assert_eq!(story(None), Ok(()), "a sound engine");
    let harm = story(Some(hole)).expect_err("the hole does no harm");
    println!("{hole}: {}", &harm[..harm.len().min(150)]);
}
