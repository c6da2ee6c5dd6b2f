//! The landing area at each fence and store: a grant is durable before it is told, an arrival counts once.
//! The tests of `holes/landing.rs` see only what a kill leaves, with all stores; here are crashes that lose
//! them.

use crate::memory::{Memory, Moment};
use crate::place::{Contents, Outcome, Place, one, options as bullet};
use everdram::landing::{Grant, Landing, slot};
use everdram::{EngineKind, Options};
use std::sync::{Arc, Mutex};

/// Both keep everything in memory.
fn each_engine(test: fn(&Options) -> Outcome) -> Outcome {
    let mut viper = Options::default();
    viper.engine = Some(EngineKind::Viper);
    viper.dimms = 1;
    viper.initial_bytes = 64 << 10;
    viper.chunk_bytes = 64 << 10;
    viper.max_bytes = 1 << 20;
    viper.sessions_max = 4;
    viper.checkpoint_bytes = 0;
    for (name, mut options) in [("viper", viper), ("bullet", bullet())] {
        options.landing_bytes = 8 << 10;
        options.max_bytes += 64 << 10;
        test(&options).map_err(|harm| format!("{name}: {harm}"))?;
    }
    Ok(())
}

fn grant(area: &Arc<Landing>, key: &[u8], value: &[u8]) -> Grant {
    let mut granter = area.granter();
    granter.prepare(key, value.len() as u64, 0).unwrap();
    granter.commit().unwrap()[0]
}

/// Plays the client and its NIC. All that is durable is the slot.
fn land(area: &Landing, grant: &Grant, key: &[u8], value: &[u8]) {
    let mut bytes = Vec::new();
    slot::encode(&mut bytes, grant, key, value, 0);
    area.deliver(grant.offset, &bytes).unwrap();
    area.persist(grant.offset, grant.bytes).unwrap();
}

/// What a crash may leave: what is durable; that and any single word besides; all words but one.
fn torn(memory: &Memory) -> Vec<Vec<u8>> {
    let (durable, stored) = (memory.durable(), memory.stored());
    let word = |at: usize| at..at + 8;
    let words: Vec<usize> = (0..durable.len())
        .step_by(8)
        .filter(|&at| durable[word(at)] != stored[word(at)])
        .collect();
    let mut images = vec![durable.clone(), stored.clone()];
    for at in words {
        for (from, to) in [(&stored, &durable), (&durable, &stored)] {
            let mut image = to.clone();
            image[word(at)].copy_from_slice(&from[word(at)]);
            images.push(image);
        }
    }
    images
}

/// Acts, and judges what a crash before each store, or each fence, of that may leave.
fn at_each(
    moment: Moment,
    place: &Place,
    act: impl FnOnce(),
    judge: fn(&Place) -> Outcome,
) -> Outcome {
    let harm = Arc::new(Mutex::new(Ok(())));
    place.memory.watch(
        moment,
        judging(place.options(), &place.memory, &harm, judge),
    );
    act();
    place.memory.unwatch();
    harm.lock().unwrap().clone()
}

fn judging(
    options: &Options,
    memory: &Arc<Memory>,
    harm: &Arc<Mutex<Outcome>>,
    judge: fn(&Place) -> Outcome,
) -> impl FnMut() + Send + 'static {
    let (options, memory, first) = (options.clone(), memory.clone(), harm.clone());
    move || {
        let mut first = first.lock().unwrap();
        for image in torn(&memory) {
            if first.is_ok() {
                let recovered = Place::recover(&options, image);
                *first = recovered
                    .map_err(|error| format!("recovery: {error}"))
                    .and_then(|place| judge(&place));
            }
        }
    }
}

fn has_none(place: &Place) -> Outcome {
    place.holds(&Contents::new())
}

fn has_value(place: &Place) -> Outcome {
    place.holds(&one(b"key", b"value"))
}

fn has_either(place: &Place) -> Outcome {
    has_none(place).or_else(|_| has_value(place))
}

/// R9. The pages held an earlier value of the same key, which was removed; its slot still verifies for its
/// own grant. A crash while the next grant is given must not bring it back, and once that is told, what
/// arrives for it must not be lost.
#[test]
fn a_grant_is_fenced_before_it_is_told() -> Outcome {
    each_engine(|options| {
        let place = Place::new(options);
        let area = place.landing.clone().unwrap();
        let mut user = place.session();
        for moment in [Moment::Store, Moment::Fence, Moment::Store] {
            let first = grant(&area, b"key", b"value");
            land(&area, &first, b"key", b"value");
            user.delete(b"key");
            area.release(first.number).unwrap();
            let mut given = None;
            let act = || given = Some(grant(&area, b"key", b"value"));
            at_each(moment, &place, act, has_none)?;
            let given = given.unwrap();
            assert_eq!(given.offset, first.offset, "the pages are given again");
            land(&area, &given, b"key", b"value");
            has_value(&place.crash()?)?;
            user.delete(b"key");
            has_none(&place.crash()?)?;
            area.release(given.number).unwrap();
        }
        Ok(())
    })
}

/// From the moment in which it is durable in its slot, an arrival is there after any crash; from the moment
/// in which its removal has returned, it is not.
#[test]
fn an_arrival_counts_until_it_is_removed() -> Outcome {
    each_engine(|options| {
        let place = Place::new(options);
        let area = place.landing.clone().unwrap();
        let mut user = place.session();
        for moment in [Moment::Store, Moment::Fence] {
            let given = grant(&area, b"key", b"value");
            land(&area, &given, b"key", b"value");
            let get = || assert_eq!(user.get(b"key").unwrap().unwrap(), b"value");
            at_each(moment, &place, get, has_value)?;
            at_each(moment, &place, || user.delete(b"key"), has_either)?;
            for image in torn(&place.memory) {
                has_none(&place.crash_to(image)?)?;
            }
            // The removal is the first to see the arrival.
            area.release(given.number).unwrap();
            let given = grant(&area, b"key", b"value");
            land(&area, &given, b"key", b"value");
            at_each(moment, &place, || user.delete(b"key"), has_either)?;
            for image in torn(&place.memory) {
                has_none(&place.crash_to(image)?)?;
            }
            area.release(given.number).unwrap();
        }
        Ok(())
    })
}

/// Two values of a key have arrived. A crash during the recovery that applies them leaves the later one.
#[test]
fn recovery_may_crash() -> Outcome {
    each_engine(|options| {
        let place = Place::new(options);
        let area = place.landing.clone().unwrap();
        for value in [b"other", b"value"] {
            let given = grant(&area, b"key", value);
            land(&area, &given, b"key", value);
        }
        let image = place.memory.durable();
        for moment in [Moment::Store, Moment::Fence] {
            let memory = Arc::new(Memory::new(image.clone(), options.max_bytes as usize));
            let harm = Arc::new(Mutex::new(Ok(())));
            memory.watch(moment, judging(options, &memory, &harm, has_value));
            let recovered = Place::recover_in(options, &image, memory.clone());
            memory.unwatch();
            harm.lock().unwrap().clone()?;
            has_value(&recovered.map_err(|error| error.to_string())?)?;
        }
        Ok(())
    })
}

/// A process is killed while it takes back the word of an arrival that it has applied. The next process finds
/// the word taken back, perhaps in caches only; nothing that it does may be undone by a crash after that.
#[test]
fn what_only_caches_know_to_be_applied_is_made_durable() -> Outcome {
    each_engine(|options| {
        let place = Place::new(options);
        let area = place.landing.clone().unwrap();
        let given = grant(&area, b"key", b"value");
        land(&area, &given, b"key", b"value");
        let found = Arc::new(Mutex::new(Vec::new()));
        let (memory, killed) = (place.memory.clone(), found.clone());
        place.memory.watch(Moment::Fence, move || {
            let images = (memory.stored(), memory.durable());
            killed.lock().unwrap().push(images);
        });
        place.session().get(b"key")?;
        place.memory.unwatch();
        let found = std::mem::take(&mut *found.lock().unwrap());
        assert!(found.len() > 1, "the value and its word have fences");
        for (stored, durable) in found {
            let memory = Memory::found(stored.clone(), durable, options.max_bytes as usize);
            let next = Place::recover_in(options, &stored, Arc::new(memory));
            let next = next.map_err(|error| error.to_string())?;
            next.session().delete(b"key");
            has_none(&next.crash()?)?;
        }
        Ok(())
    })
}

/// What was granted before a kill, and never written, does not meet what the next process grants in its
/// pages: there a client may write what would verify for the earlier grant.
#[test]
fn grants_of_a_killed_process_are_taken_back_durably() -> Outcome {
    each_engine(|options| {
        let place = Place::new(options);
        let area = place.landing.clone().unwrap();
        let [first, second] = [b"one", b"two"].map(|key| grant(&area, key, b"value"));
        assert_eq!((first.number, second.number), (0, 1));
        let next = place.crash()?;
        let area = next.landing.clone().unwrap();
        let mut late = Vec::new();
        slot::encode(&mut late, &second, b"two", b"value", 0);
        let mut value = vec![0; 4096 + 1000];
        let wide = grant(&area, b"key", &value);
        assert!(wide.number == 0 && wide.bytes > 4096, "{wide:?}");
        let mut before = Vec::new();
        slot::encode(&mut before, &wide, b"key", b"", 0);
        let at = (second.offset - wide.offset) as usize - before.len();
        value[at..at + late.len()].copy_from_slice(&late);
        land(&area, &wide, b"key", &value);
        next.crash()?.holds(&one(b"key", &value))
    })
}
