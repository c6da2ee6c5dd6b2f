//! The process after a crash: it recovers the image and, if asked to, uses the store a little. All of it is
//! recorded, so that this process can crash, too.
//!
//! An omission of recovery often matters only later. A record that it should have marked dead comes back when
//! the newer record is compacted away and power fails again. What the process does depends on the image
//! alone, so it can be repeated.

use crate::judge::{Defect, catching_panics};
use crate::medium::image::Image;
use crate::medium::model::Model;
use crate::plan::call::{Call, Key, ValueId, Values};
use crate::plan::mix::Mix;
use crate::plan::profile;
use crate::plan::{Fault, Manner, Plan};
use crate::run::process::{Environment, Process};
use crate::run::recorder::{Record, Recorder};
use crate::run::trace::{Step, StepId};
use crate::run::{drive, observers};
use rand::RngExt;
use rand::seq::SliceRandom;
use std::sync::Arc;

/// Random calls after those that every use has.
const FREE_CALLS: usize = 4;

/// Recovers an image, whose values are among `values`, and uses the store if `is_used`.
pub(crate) fn after_crash(
    environment: &Environment,
    image: &Image,
    values: &Values,
    is_used: bool,
) -> Result<Record, Defect> {
    catching_panics(|| {
        let mut values = values.clone();
        let plan = is_used.then(|| plan(environment, image, &mut values));
        let recorder = Arc::new(Recorder::new(values, false, None));
        let process = Process::open(environment, image.clone(), &observers(&recorder))
            .map_err(|error| format!("recovery refused it the second time: {error}"))?;
        match plan {
            Some(plan) => {
                drive(&plan, image, &recorder, process)
                    .map_err(|defect| format!("in use after recovery, {defect}"))?;
            }
            None => recorder.unrecorded(|| drop(process)),
        }
        Ok(recorder.take())
    })
}

/// The step of a trace at which recovery ends and use begins.
pub(crate) fn recovered(trace: &[Step]) -> StepId {
    let first = trace
        .iter()
        .position(|step| matches!(step, Step::Invoke(_)));
    first.unwrap_or(trace.len()) as StepId
}

/// Removes about half of the keys and overwrites a few, so that old records become garbage; reclaims the
/// space; and makes some random calls.
fn plan(environment: &Environment, image: &Image, values: &mut Values) -> Plan {
    let profile = environment.profile;
    let identity = Model::new(image, environment.options.max_bytes, None).hash(&[], &[]);
    let mut random = profile::random(identity, 5);
    let mut keys: Vec<Key> = (0..profile.keys() as Key).collect();
    keys.shuffle(&mut random);
    let mut calls = Vec::new();
    for key in keys {
        match random.random_range(0..8) {
            0..4 => calls.push(Call::Delete(key)),
            4 if !values.is_empty() => {
                let value = random.random_range(0..values.len()) as ValueId;
                calls.push(Call::Put(key, value, 0));
            }
            _ => {}
        }
    }
    calls.push(Call::Reclaim);
    let mix = Mix::plain(profile);
    for _ in 0..FREE_CALLS {
        calls.push(mix.call(&mut random, values, environment.clock.now()));
    }
    calls.push(Call::Reclaim);
    // Kills and reopening would only repeat what this is; and the examiner sets the clock.
    calls.retain(|call| !call.outlives_process() && !matches!(call, Call::Advance(_)));
    let sessions = profile.sessions() as u32;
    let calls = calls.into_iter();
    Plan {
        engine: environment.engine,
        medium: environment.medium,
        profile,
        manner: Manner::Turns,
        seed: identity,
        calls: calls
            .map(|call| (random.random_range(0..sessions), call))
            .collect(),
        values: values.clone(),
        fault: Fault::None,
    }
}
