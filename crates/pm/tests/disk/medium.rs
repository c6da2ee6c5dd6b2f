//! The medium below a simulated disk, as its tap sees it, and what crashes leave of it.

use everdram_pm::lab::{Answer, DiskEvent, DiskTap, FileId, Site};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// A medium that loses all that it may: a file has the state of its last sync, and so has the directory.
#[derive(Default)]
pub(super) struct Medium {
    /// What the process wrote, and what of it is durable.
    pub(super) files: BTreeMap<FileId, (Vec<u8>, Vec<u8>)>,
    /// Names, as the process sees them; as they are durable.
    names: (BTreeMap<FileId, String>, BTreeMap<FileId, String>),
}

impl Medium {
    pub(super) fn new(files: &Files) -> Medium {
        let names: BTreeMap<_, _> = (0..).map(FileId).zip(files.keys().cloned()).collect();
        let bytes = files.values().map(|bytes| (bytes.clone(), bytes.clone()));
        Medium {
            files: (0..).map(FileId).zip(bytes).collect(),
            names: (names.clone(), names),
        }
    }

    pub(super) fn hear(&mut self, event: DiskEvent<'_>) {
        match event {
            DiskEvent::Create { file, name } => {
                self.names.0.insert(file, name.into());
                self.files.insert(file, Default::default());
            }
            DiskEvent::Write { file, at, bytes } => {
                let end = at as usize + bytes.len();
                self.grow(file, end)[at as usize..end].copy_from_slice(bytes);
            }
            DiskEvent::SetLen { file, bytes } => self.grow(file, 0).resize(bytes as usize, 0),
            DiskEvent::Allocate { file, at, bytes } => {
                self.grow(file, (at + bytes) as usize);
            }
            DiskEvent::Reserve { .. } => {}
            DiskEvent::Sync { file, .. } => {
                let (seen, durable) = self.files.get_mut(&file).unwrap();
                durable.clone_from(seen);
            }
            DiskEvent::Unlink { file } => {
                self.names.0.remove(&file);
            }
            DiskEvent::Rename { file, name } => {
                self.names.0.retain(|_, had| had != name);
                self.names.0.insert(file, name.into());
            }
            // The pools here have no folders.
            DiskEvent::SyncDirectory { .. } => self.names.1 = self.names.0.clone(),
        }
    }

    fn grow(&mut self, file: FileId, end: usize) -> &mut Vec<u8> {
        let (seen, _) = self.files.get_mut(&file).unwrap();
        if seen.len() < end {
            seen.resize(end, 0);
        }
        seen
    }

    /// The least that a crash leaves.
    pub(super) fn durable(&self) -> Files {
        self.crash(|| false)
    }

    /// What a crash leaves: `keep` decides, for each sector and each length, whether it is more than the
    /// least.
    pub(super) fn crash(&self, mut keep: impl FnMut() -> bool) -> Files {
        let mut mix = |seen: &[u8], durable: &[u8]| {
            let length = if keep() { seen.len() } else { durable.len() };
            let mut mixed = seen.to_vec();
            for (at, sector) in (0..).step_by(512).zip(mixed.chunks_mut(512)) {
                let before = durable.get(at..).unwrap_or_default();
                let before = &before[..before.len().min(sector.len())];
                if !sector.starts_with(before) && !keep() {
                    sector.fill(0);
                    sector[..before.len()].copy_from_slice(before);
                }
            }
            mixed.resize(length, 0);
            mixed
        };
        let named = self.names.1.iter();
        let mixed = named.map(|(file, name)| {
            let (seen, durable) = &self.files[file];
            (name.clone(), mix(seen, durable))
        });
        mixed.collect()
    }
}

/// Records every event after asking `judge` for the answer.
pub(super) struct Recorder<J> {
    medium: Mutex<Medium>,
    /// Kind of event and file, in order.
    pub(super) heard: Mutex<Vec<(&'static str, String)>>,
    names: Mutex<BTreeMap<FileId, String>>,
    pub(super) sites: Mutex<Vec<Site>>,
    judge: J,
}

impl<J: Fn(DiskEvent<'_>, &str) -> Answer> Recorder<J> {
    pub(super) fn new(files: &Files, judge: J) -> Arc<Recorder<J>> {
        let medium = Medium::new(files);
        Arc::new(Recorder {
            names: Mutex::new(medium.names.0.clone()),
            medium: Mutex::new(medium),
            heard: Mutex::default(),
            sites: Mutex::default(),
            judge,
        })
    }

    pub(super) fn durable(&self) -> Files {
        self.medium.lock().unwrap().durable()
    }

    /// Counts events of this kind on files whose name starts with `file`.
    pub(super) fn count(&self, kind: &str, file: &str) -> usize {
        let heard = self.heard.lock().unwrap();
        heard
            .iter()
            .filter(|(what, name)| *what == kind && name.starts_with(file))
            .count()
    }
}

impl<J: Fn(DiskEvent<'_>, &str) -> Answer + Send + Sync> DiskTap for Recorder<J> {
    fn disk(&self, site: Site, event: DiskEvent<'_>) -> Answer {
        if let DiskEvent::Create { file, name } = event {
            self.names.lock().unwrap().insert(file, name.into());
        }
        let (kind, file) = match event {
            DiskEvent::Create { file, .. } => ("create", Some(file)),
            DiskEvent::Write { file, .. } => ("write", Some(file)),
            DiskEvent::SetLen { file, .. } => ("set length", Some(file)),
            DiskEvent::Allocate { file, .. } => ("allocate", Some(file)),
            DiskEvent::Reserve { file, .. } => ("reserve", Some(file)),
            DiskEvent::Sync { file, .. } => ("sync", Some(file)),
            DiskEvent::Unlink { file } => ("unlink", Some(file)),
            DiskEvent::Rename { file, .. } => ("rename", Some(file)),
            DiskEvent::SyncDirectory { .. } => ("sync directory", None),
        };
        let name = file.map_or(String::new(), |file| {
            self.names.lock().unwrap()[&file].clone()
        });
        self.heard.lock().unwrap().push((kind, name.clone()));
        self.sites.lock().unwrap().push(site);
        let answer = (self.judge)(event, &name);
        if answer == Answer::Go {
            self.medium.lock().unwrap().hear(event);
        }
        answer
    }
}

/// Plays a crash before each call on the disk: half of them keep only what was synced, half also keep a
/// random set of the other sectors.
pub(super) struct Crasher {
    pub(super) medium: Mutex<Medium>,
    random: Mutex<StdRng>,
    /// The confirmed values, by line.
    pub(super) told: Mutex<Vec<u64>>,
    /// What each crash left, and what was confirmed by then.
    pub(super) crashes: Mutex<Vec<(Files, Vec<u64>)>>,
}

impl Crasher {
    pub(super) fn new(files: &Files, seed: u64) -> Arc<Crasher> {
        Arc::new(Crasher {
            medium: Mutex::new(Medium::new(files)),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            told: Mutex::default(),
            crashes: Mutex::default(),
        })
    }
}

impl DiskTap for Crasher {
    fn disk(&self, _site: Site, event: DiskEvent<'_>) -> Answer {
        let mut medium = self.medium.lock().unwrap();
        let mut random = self.random.lock().unwrap();
        let torn = random.random();
        let left = medium.crash(|| torn && random.random());
        let told = self.told.lock().unwrap().clone();
        self.crashes.lock().unwrap().push((left, told));
        medium.hear(event);
        Answer::Go
    }
}
