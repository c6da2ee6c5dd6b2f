//! Memory and files as one medium: what is certain, what a crash decides, and the images that it may leave.

use super::image::Image;
use super::lines::{Lines, Mute, Muted, Waste, key};
use super::sectors::Sectors;
use super::unit::{FILES, Unit};
use crate::run::trace::{DiskStep, Step, StepId};
use everdram_pm::LINE;
use rand::rngs::StdRng;

/// The state of a medium at one moment of a run. A crash decides lines of the memory, and sectors, lengths
/// and names of files, each by itself: only a fence or a sync makes one certain before another is changed.
pub struct Model {
    lines: Option<Box<Lines>>,
    disk: Sectors,
    mute: Option<Mute>,
}

impl Model {
    /// A medium that holds `start` for certain. Memory may grow to `capacity` bytes.
    #[must_use]
    pub fn new(start: &Image, capacity: u64, mute: Option<Mute>) -> Model {
        let memory = start.memory.as_ref();
        Model {
            lines: memory.map(|bytes| Box::new(Lines::new(bytes, capacity, mute))),
            disk: Sectors::new(&start.files),
            mute,
        }
    }

    /// Whether images can get fewer at this step: then the moment before it has to be examined.
    #[must_use]
    pub fn is_point(&self, step: &Step) -> bool {
        match step {
            Step::Fence { .. } | Step::Death => self.lines.is_some(),
            Step::Outage(_) => true,
            Step::Disk { step, .. } => {
                matches!(step, DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. })
            }
            _ => false,
        }
    }

    /// Takes in one step. Returns whether it was a flush or fence without effect.
    pub fn step(&mut self, id: StepId, step: &Step) -> Option<Waste> {
        match step {
            Step::Disk { step, site } => {
                let is_muted = |mute: Mute| mute.what == Muted::Sync && mute.site == key(site);
                self.disk.step(id, step, self.mute.is_some_and(is_muted));
                return None;
            }
            Step::Outage(held) => self.disk.lose(held),
            _ => {}
        }
        let lines = self.lines.as_mut();
        lines.and_then(|lines| lines.step(id, step))
    }

    /// Whether a step changes what a crash can leave.
    #[must_use]
    pub fn is_change(&self, step: &Step) -> bool {
        match step {
            Step::Store { .. } => self.lines.is_some(),
            Step::Disk { .. } => true,
            _ => false,
        }
    }

    /// What a crash at this moment decides: lines by place, and then files.
    pub fn units(&self, random: &mut StdRng) -> Vec<Unit> {
        let lines = self.lines.as_ref();
        let mut units = lines.map_or_else(Vec::new, |lines| lines.units(random));
        units.extend(self.disk.units());
        units
    }

    /// The hash of the image of a pick. Equal images have equal hashes, however they came about.
    #[must_use]
    pub fn hash(&self, units: &[Unit], pick: &[usize]) -> u64 {
        let ((units, pick), (of_files, picked)) = apart(units, pick);
        let lines = self.lines.as_ref();
        let memory = lines.map_or(0, |lines| lines.hash(units, pick));
        memory ^ self.disk.hash(of_files, picked)
    }

    /// The hash of the certain bytes of a line.
    #[must_use]
    pub fn place_hash(&self, place: u64) -> u64 {
        self.lines().map_or(0, |lines| lines.line_hash(place))
    }

    /// The image of a pick.
    #[must_use]
    pub fn image(&self, units: &[Unit], pick: &[usize]) -> Image {
        let ((units, pick), (of_files, picked)) = apart(units, pick);
        let memory = self.lines.as_ref().map(|lines| {
            let mut bytes = lines.base().to_vec();
            for (unit, &choice) in units.iter().zip(pick) {
                let at = (unit.place * LINE) as usize;
                bytes[at..at + LINE as usize].copy_from_slice(&unit.choices[choice].bytes);
            }
            bytes
        });
        Image {
            memory,
            files: self.disk.image(of_files, picked),
        }
    }

    /// Whether a crash now may leave something else than without the mutation. Not known for files: `true`.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        let is_sync = self.mute.is_some_and(|mute| mute.what == Muted::Sync);
        is_sync || self.lines().is_none_or(Lines::is_changed)
    }

    /// The memory, if there is one.
    #[must_use]
    pub fn lines(&self) -> Option<&Lines> {
        self.lines.as_deref()
    }

    /// The disk, which may be empty.
    #[must_use]
    pub fn disk(&self) -> &Sectors {
        &self.disk
    }
}

/// Some units, and a choice for each.
type Picked<'a> = (&'a [Unit], &'a [usize]);

/// The units of the memory, and those of files.
fn apart<'a>(units: &'a [Unit], pick: &'a [usize]) -> (Picked<'a>, Picked<'a>) {
    let lines = units.partition_point(|unit| unit.place < FILES);
    let (of_memory, of_files) = units.split_at(lines);
    let (in_memory, in_files) = pick.split_at(lines.min(pick.len()));
    ((of_memory, in_memory), (of_files, in_files))
}
