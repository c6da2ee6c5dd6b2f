//! A power failure within a run. It leaves some image, and the next process of the run goes on with that.
//!
//! Crash points show what one failure leaves. Some mistakes of recovery show only after a second failure,
//! when a process has worked on what the first one left.

use super::image::Image;
use super::model::Model;
use crate::explore;
use crate::explore::{Effort, Pick};
use crate::plan::profile;
use crate::run::trace::{Held, StepId, Trace};
use std::ops::ControlFlow;

/// The images of an outage to choose from: nothing, everything, everything up to each step, and each choice
/// of each unit with nothing else and with everything else.
const EFFORT: Effort = Effort {
    exhaustive: 64,
    singles: true,
    random: 4,
    pairs: 0,
};

/// An outage at the end of `trace`, which began at `start`: what it decided, and the image. `kept` is the
/// number of the image among the possible ones, modulo their count.
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
