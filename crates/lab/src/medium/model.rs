//! One face for both media: what is certain, what is open, and the images in between.

use super::image::{Files, Image};
use super::lines::{Lines, Mute, Muted, Waste, key};
use super::sectors::Sectors;
use super::unit::Unit;
use crate::run::trace::{DiskStep, Step, StepId};
use everdram_pm::LINE;
use rand::rngs::StdRng;

/// The state of a medium at one moment of a run.
pub enum Model {
    /// Persistent memory.
    Memory(Box<Lines>),
    /// A disk.
    Disk(Box<Sectors>, Option<Mute>),
}

impl Model {
    /// A medium that surely holds `start`; memory may grow to `capacity` bytes.
    #[must_use]
    pub fn new(start: &Image, capacity: u64, mute: Option<Mute>) -> Model {
        match start {
            Image::Memory(bytes) => Model::Memory(Box::new(Lines::new(bytes, capacity, mute))),
            Image::Files(files) => Model::Disk(Box::new(Sectors::new(files)), mute),
        }
    }

    /// Whether images can get fewer at this step: the moment before it has to be looked at.
    #[must_use]
    pub fn is_point(&self, step: &Step) -> bool {
        match self {
            Model::Memory(_) => {
                matches!(step, Step::Fence { .. } | Step::Death | Step::Outage(_))
            }
            Model::Disk(..) => matches!(
                step,
                Step::Outage(_)
                    | Step::Disk {
                        step: DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. },
                        ..
                    }
            ),
        }
    }

    /// Takes in one step; says if it was of no use.
    pub fn step(&mut self, id: StepId, step: &Step) -> Option<Waste> {
        match (self, step) {
            (Model::Memory(lines), step) => lines.step(id, step),
            (Model::Disk(sectors, mute), Step::Disk { step, site }) => {
                let muted =
                    mute.is_some_and(|mute| mute.what == Muted::Sync && mute.site == key(site));
                sectors.step(id, step, muted);
                None
            }
            (Model::Disk(sectors, _), Step::Outage(held)) => {
                sectors.lose(held);
                None
            }
            _ => None,
        }
    }

    /// Whether a step changes what a crash can leave.
    #[must_use]
    pub fn is_change(&self, step: &Step) -> bool {
        match self {
            Model::Memory(_) => matches!(step, Step::Store { .. }),
            Model::Disk(..) => matches!(step, Step::Disk { .. }),
        }
    }

    /// What a crash at this moment leaves open.
    pub fn units(&self, random: &mut StdRng) -> Vec<Unit> {
        match self {
            Model::Memory(lines) => lines.units(random),
            Model::Disk(sectors, _) => sectors.units(),
        }
    }

    /// A hash of the image that a pick makes: equal for equal images, however they came about.
    #[must_use]
    pub fn hash(&self, units: &[Unit], pick: &[usize]) -> u64 {
        match self {
            Model::Memory(lines) => lines.hash(units, pick),
            Model::Disk(sectors, _) => sectors.hash(units, pick),
        }
    }

    /// The hash of what is certain at a place of a memory.
    #[must_use]
    pub fn place_hash(&self, place: u64) -> u64 {
        self.lines().map_or(0, |lines| lines.line_hash(place))
    }

    /// The image that a pick makes.
    #[must_use]
    pub fn image(&self, units: &[Unit], pick: &[usize]) -> Image {
        match self {
            Model::Memory(lines) => {
                let mut bytes = lines.base().to_vec();
                for (unit, &choice) in units.iter().zip(pick) {
                    let at = (unit.place * LINE) as usize;
                    bytes[at..at + LINE as usize].copy_from_slice(&unit.choices[choice].bytes);
                }
                Image::Memory(bytes)
            }
            Model::Disk(sectors, _) => Image::Files(sectors.image(units, pick)),
        }
    }

    /// Whether a crash now may leave something else than if nothing were muted; as far as that can be told.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.lines().is_none_or(Lines::is_changed)
    }

    /// The memory, if it is one.
    #[must_use]
    pub fn lines(&self) -> Option<&Lines> {
        match self {
            Model::Memory(lines) => Some(lines),
            Model::Disk(..) => None,
        }
    }
}

/// The files of an image of a disk.
#[must_use]
pub fn files(image: &Image) -> Option<&Files> {
    match image {
        Image::Files(files) => Some(files),
        Image::Memory(_) => None,
    }
}
