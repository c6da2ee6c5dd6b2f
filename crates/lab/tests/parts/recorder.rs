//! The recorder: what it writes down of memory is the order in which memory saw it.

use everdram::EngineKind;
use everdram_lab::call::Values;
use everdram_lab::image::Medium;
use everdram_lab::process::{Environment, Observers, Process};
use everdram_lab::profile::Profile;
use everdram_lab::recorder::Recorder;
use everdram_lab::trace::Step;
use everdram_pm::DATA_AT;
use everdram_pm::lab::{Event, Source, StoreKind, Tap};
use std::panic::Location;
use std::sync::Mutex;

const THREADS: u32 = 4;
const STORES: u64 = 500;

/// Threads store to one word, and take their time between the store and its being written down.
#[test]
fn stores_are_written_down_in_their_order() {
    let environment = Environment::new(EngineKind::Viper, Profile::Variable, Medium::Pmem);
    let start = environment.create(1).unwrap();
    let process = Process::open(&environment, start, &Observers::default()).unwrap();
    let region = process.pool.region();
    for kind in [StoreKind::Word, StoreKind::Bulk] {
        let recorder = Recorder::new(Values::default(), false, None);
        let happened = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for actor in 0..THREADS {
                let (recorder, happened) = (&recorder, &happened);
                scope.spawn(move || {
                    for number in 0..STORES {
                        let value = (u64::from(actor) << 32 | number).to_le_bytes();
                        let site = Location::caller();
                        let event = Event::Store {
                            at: DATA_AT,
                            bytes: &value,
                            kind,
                        };
                        recorder.event(region, Source { actor, site }, event, &mut || {
                            happened.lock().unwrap().push(value);
                            std::thread::yield_now();
                            true
                        });
                    }
                });
            }
        });
        let written: Vec<_> = recorder
            .take()
            .trace
            .into_iter()
            .map(|step| match step {
                Step::Store { bytes, .. } => bytes.to_vec(),
                other => panic!("{other:?} is no store"),
            })
            .collect();
        assert_eq!(written, *happened.lock().unwrap(), "{kind:?}");
    }
}
