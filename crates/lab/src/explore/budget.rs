//! Shares a limited number of images among the crash points of a trace.
//!
//! Most mistakes take a coincidence of calls and then show in many images, so many runs are worth more than
//! many images of one. Each point gets one image, so that no moment is left out. The rest goes to some of the
//! points, a few images each, and more often to points near background work of the store.

use crate::run::trace::{DiskStep, Step, StepId};
use rand::RngExt;
use rand::rngs::StdRng;

/// The images of a point that gets more than one.
const TOGETHER: f64 = 8.0;
/// Background work counts for a point within so many steps.
const NEAR: StepId = 12;
/// The weight of a point near background work.
const OWN: u64 = 3;

/// The images of a trace that are left.
pub(crate) struct Budget {
    images: u64,
    /// The weight of the points to come.
    weight: u64,
    own: Vec<StepId>,
    each: u64,
}

impl Budget {
    /// A budget of `images` for a trace from a step on, with `each` for every point at least. `own` are the
    /// steps of background work, in order.
    pub(crate) fn new(
        images: u64,
        (trace, from): (&[Step], StepId),
        own: &[StepId],
        each: u64,
    ) -> Budget {
        let mut budget = Budget {
            images,
            weight: 0,
            own: own.to_vec(),
            each,
        };
        let steps = trace.iter().enumerate().skip(from as usize);
        budget.weight = steps
            .filter(|(_, step)| may_be_point(step))
            .map(|(id, _)| budget.weight_of(id as StepId))
            .sum();
        budget
    }

    fn weight_of(&self, id: StepId) -> u64 {
        let next = self.own.partition_point(|&own| own + NEAR < id);
        match self.own.get(next) {
            Some(&own) if own <= id + NEAR => OWN,
            _ => 1,
        }
    }

    /// Goes past a step.
    pub(crate) fn pass(&mut self, id: StepId, step: &Step) {
        if may_be_point(step) {
            self.weight = self.weight.saturating_sub(self.weight_of(id));
        }
    }

    /// The number of images for the point before this step.
    pub(crate) fn share(&self, id: StepId, random: &mut StdRng) -> u64 {
        let weight = self.weight_of(id);
        let share = self.images as f64 * weight as f64 / self.weight.max(weight) as f64;
        let more = share - self.each as f64;
        match more {
            more if more >= TOGETHER => share as u64,
            more if more > 0.0 && random.random_bool(more / TOGETHER) => TOGETHER as u64,
            _ => self.each,
        }
    }

    /// Takes images off the budget.
    pub(crate) fn spend(&mut self, images: u64) {
        self.images = self.images.saturating_sub(images);
    }
}

fn may_be_point(step: &Step) -> bool {
    match step {
        Step::Fence { .. } | Step::Invoke(_) | Step::Clock(_) | Step::Death | Step::Outage(_) => {
            true
        }
        Step::Disk { step, .. } => {
            matches!(step, DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. })
        }
        _ => false,
    }
}
