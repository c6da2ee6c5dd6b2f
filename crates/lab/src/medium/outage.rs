//! Power that fails in the middle of a run: some of what was open then is there, and the next process goes on
//! with that.
//!
//! Crash points of a run show what one failure leaves. What recovery has to make of *that*, so that a second
//! one finds it in order, shows only where somebody went on in between.

use super::image::Image;
use super::model::Model;
use crate::explore;
use crate::explore::{Effort, Pick};
use crate::plan::profile;
use crate::run::trace::{StepId, Trace};
use std::ops::ControlFlow;

/// Of what an outage can leave, these are counted: nothing, everything, everything up to each step, each
/// choice of each line or sector with nothing else and with everything else.
const EFFORT: Effort = Effort {
    exhaustive: 64,
    singles: true,
    random: 4,
    pairs: 0,
};

/// What places held that an outage decided: their number, and their contents.
pub type Held = Vec<(u64, Box<[u8]>)>;

/// An outage at the end of `trace`, from `start` on: what it decided, and what is left. `kept` says which of
/// what it can leave it leaves; beyond the last one they begin again.
#[must_use]
pub fn outage(start: &Image, trace: &Trace, capacity: u64, kept: u32) -> (Held, Image) {
    let mut model = Model::new(start, capacity, None);
    for (id, step) in trace.iter().enumerate() {
        model.step(id as StepId, step);
    }
    let mut random = profile::random(0, 6);
    let units = model.units(&mut random);
    let mut picks: Vec<Pick> = Vec::new();
    let _ = explore::explore(&units, &EFFORT, &mut random, &mut |pick| {
        picks.push(pick.clone());
        ControlFlow::Continue(())
    });
    let pick = &picks[kept as usize % picks.len()];
    let held = units.iter().zip(pick);
    let held = held.map(|(unit, &choice)| (unit.place, unit.choices[choice].bytes.clone()));
    (held.collect(), model.image(&units, pick))
}
