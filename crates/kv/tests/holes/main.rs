//! The holes of the published design, one test each, by the numbers of `docs/engines.md`. Each opens with the
//! story of how acknowledged data was lost or came back.
//!
//! "Killed" means: the image is copied while the store is open, and the copy is opened elsewhere.

#[path = "../support/mod.rs"]
mod support;

mod bullet;
mod crashes;
mod dstore;
mod landing;
mod races;
mod records;
mod tiered;
mod tiers;

use everdram::Store;
use support::Bed;
use support::contents::Contents;
use support::frozen::{Frozen, changed_words};
use support::history::{Part, part};

const BLOCK: usize = 24_576;

/// A store without compaction in the background.
fn quiet(bed: &Bed) -> Store {
    bed.open_with(|options| options.reclaim_background = false)
}

/// The pool after a kill at this moment, opened in a place of its own.
fn after_kill(bed: &Bed) -> (Bed, Store) {
    opened(&Frozen::take(&bed.path()))
}

fn opened(frozen: &Frozen) -> (Bed, Store) {
    let elsewhere = Bed::emulated();
    frozen.lay(&elsewhere.path());
    let store = quiet(&elsewhere);
    (elsewhere, store)
}

fn map(pairs: &[(&[u8], &[u8])]) -> Contents {
    pairs
        .iter()
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// Restores the marks of dead records from `before`, as if no fence had covered them.
fn without_marks(frozen: &Frozen, before: &Frozen) -> Frozen {
    let mut image = frozen.image().to_vec();
    let mut lost = 0;
    for at in changed_words(before.image(), frozen.image()) {
        if part(BLOCK, at, frozen.image()) == Part::Mark {
            image[at..at + 8].copy_from_slice(&before.image()[at..at + 8]);
            lost += 1;
        }
    }
    assert!(lost > 0, "no mark was set");
    let mut frozen = frozen.clone();
    *frozen.image_mut() = image;
    frozen
}
