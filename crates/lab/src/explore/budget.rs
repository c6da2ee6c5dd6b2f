//! How many images each crash point of a trace gets, if there are to be so many of all together.
//!
//! Most of what goes wrong takes a coincidence of calls, and then shows in many images; so many runs are
//! worth more than many images of one. Each point of a run gets an image, so that every moment is looked at;
//! the others go to some points, a few for each, and more often to those where the store was at work by
//! itself.

use crate::run::trace::{DiskStep, Step, StepId};
use rand::RngExt;
use rand::rngs::StdRng;

/// Images of a point that gets more than one.
const TOGETHER: f64 = 8.0;
/// Steps on either side of a point in which the store's own work counts.
const NEAR: StepId = 12;
/// What a point near the store's own work counts.
const OWN: u64 = 3;

/// What is left of the images of a trace.
pub(crate) struct Budget {
    images: u64,
    /// What the points count that are still to come.
    weight: u64,
    own: Vec<StepId>,
    each: u64,
}

impl Budget {
    /// So many images for a trace from a step on; `own`: steps of the store's own work, in order. `each`: of
    /// every point, at least.
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

    /// A step that may have been a point is passed.
    pub(crate) fn pass(&mut self, id: StepId, step: &Step) {
        if may_be_point(step) {
            self.weight = self.weight.saturating_sub(self.weight_of(id));
        }
    }

    /// The images for the point before this step.
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

    /// So many images were looked at.
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
