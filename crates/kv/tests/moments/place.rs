//! A running engine over a small crash lab, with helpers for tests.

use crate::memory::{Memory, Moment};
use everdram::engine::{Engine, EngineSession};
use everdram::lab::{identity, open};
use everdram::landing::Landing;
use everdram::{EngineKind, Error, Options};
use everdram_pm::lab;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for a thread that may itself be waiting.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

pub(crate) type Contents = BTreeMap<Vec<u8>, Vec<u8>>;
/// The fault, if any.
pub(crate) type Outcome = Result<(), String>;

/// A small pool of Bullet: two logs of a few dozen entries, and tables of four buckets. The first session
/// writes the first log, the second the other one.
pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.engine = Some(EngineKind::Bullet);
    options.initial_bytes = 16 << 10;
    options.chunk_bytes = 16 << 10;
    options.max_bytes = 256 << 10;
    options.sessions_max = 4;
    options.bullet.logs = 2;
    options.bullet.log_bytes = 4 << 10;
    options.bullet.transaction_bytes = 1 << 10;
    options.bullet.chunk_bytes = 4 << 10;
    options.bullet.depth = 2;
    options
}

pub(crate) fn durable(memory: &Memory) -> Vec<Vec<u8>> {
    vec![memory.durable()]
}

pub(crate) fn one(key: &[u8], value: &[u8]) -> Contents {
    Contents::from([(key.to_vec(), value.to_vec())])
}

/// Independent keys: each in a stripe of its own.
pub(crate) fn apart<const COUNT: usize>(user: &mut User) -> [[u8; 1]; COUNT] {
    let mut chosen: Vec<[u8; 1]> = Vec::new();
    for key in (0..=255).map(|byte| [byte]) {
        let clocks = |user: &mut User, keys: &[[u8; 1]]| -> Vec<u64> {
            keys.iter().map(|key| user.0.watch(key)).collect()
        };
        let before = clocks(user, &chosen);
        user.put(&key, b"");
        user.delete(&key);
        if clocks(user, &chosen) == before {
            chosen.push(key);
        }
        if chosen.len() == COUNT {
            break;
        }
    }
    chosen.try_into().unwrap()
}

/// A running engine and its memory.
pub(crate) struct Place {
    options: Options,
    pub(crate) memory: Arc<Memory>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) landing: Option<Arc<Landing>>,
}

impl Place {
    pub(crate) fn new(options: &Options) -> Place {
        let (engine, geometry) = identity(options).unwrap();
        let image = lab::create(lab::Seed(7), engine, geometry).unwrap();
        Place::recover(options, image).unwrap()
    }

    pub(crate) fn recover(options: &Options, image: Vec<u8>) -> Result<Place, Error> {
        let memory = Arc::new(Memory::new(image.clone(), options.max_bytes as usize));
        Place::recover_in(options, &image, memory)
    }

    /// As [`Place::recover`], in memory that has the image already.
    pub(crate) fn recover_in(
        options: &Options,
        image: &[u8],
        memory: Arc<Memory>,
    ) -> Result<Place, Error> {
        let pool = lab::open(image, options.max_bytes, Some(memory.clone()))?;
        let opened = open(pool, options)?;
        Ok(Place {
            options: options.clone(),
            memory,
            engine: opened.engine(),
            landing: opened.landing(),
        })
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The least that a crash leaves.
    pub(crate) fn crash(&self) -> Result<Place, String> {
        self.crash_to(self.memory.durable())
    }

    pub(crate) fn crash_to(&self, image: Vec<u8>) -> Result<Place, String> {
        Place::recover(&self.options, image).map_err(|error| format!("recovery: {error}"))
    }

    pub(crate) fn session(&self) -> User {
        User(self.engine.clone().session().unwrap())
    }

    /// A crash now keeps exactly `wanted`.
    pub(crate) fn keeps(&self, wanted: &Contents) -> Outcome {
        self.crash()?.holds(wanted)
    }

    /// It has exactly `wanted`, and its own check finds nothing.
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

    /// Lets another thread act at a moment, and continues when it is done or must wait, perhaps for the
    /// caller.
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
            while !other.is_finished() && begun.elapsed() < LONGEST_WAIT {
                std::thread::sleep(Duration::from_millis(1));
            }
            *started.lock().unwrap() = Some(other);
        });
        Beside {
            memory: self.memory.clone(),
            thread,
        }
    }

    /// Does something, and judges the images of crashes at each of its fences: `images` makes them of the
    /// memory.
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

/// The other thread's action.
pub(crate) struct Beside {
    memory: Arc<Memory>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Beside {
    /// Waits for its end, after its moment has come.
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
