//! The verdict on a recovered store: what is wrong must be called wrong.

use everdram::EngineKind;
use everdram_lab::call::Values;
use everdram_lab::history::{Allowed, State};
use everdram_lab::image::{Image, Medium};
use everdram_lab::judge::{Care, account, check, judge, write};
use everdram_lab::process::{Environment, Observers, Process};
use everdram_lab::profile::Profile;
use everdram_pm::lab::{Answer, DiskEvent, DiskTap, Errno, Site};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const VALUE: &[u8] = b"a value that is found again in memory";

fn environment(profile: Profile, medium: Medium) -> Environment {
    Environment::new(EngineKind::Viper, profile, medium)
}

/// A store of which these keys hold [`VALUE`].
fn store(environment: &Environment, keys: &[u8], observers: &Observers) -> Process {
    let start = environment.create(1).unwrap();
    let process = Process::open(environment, start, observers).unwrap();
    let mut session = process.session().unwrap();
    for &key in keys {
        session
            .put(&environment.profile.key(key), VALUE, 0)
            .unwrap();
        let ticket = session.commit().unwrap();
        session.wait(ticket).unwrap();
    }
    drop(session);
    process
}

fn image(environment: &Environment, keys: &[u8]) -> Image {
    store(environment, keys, &Observers::default()).killed()
}

/// The state in which these keys hold [`VALUE`], value 0.
fn state(environment: &Environment, keys: &[u8]) -> State {
    (0..environment.profile.keys() as u8)
        .map(|key| keys.contains(&key).then_some((0, 0)))
        .collect()
}

fn verdict(environment: &Environment, image: Image, allowed: State) -> Result<State, String> {
    let mut values = Values::default();
    assert_eq!(values.number(VALUE), 0);
    let allowed = Allowed {
        states: [allowed].into(),
        number: 0,
    };
    judge(environment, image, &allowed, &values)
}

#[test]
fn a_sound_store_is_sound() {
    for medium in Medium::ALL {
        for profile in Profile::ALL {
            let environment = environment(profile, medium);
            for keys in [&[][..], &[0], &[0, 1, 2, 3]] {
                let expected = state(&environment, keys);
                let found = verdict(&environment, image(&environment, keys), expected.clone());
                assert_eq!(found, Ok(expected), "{profile} on {medium}");
            }
        }
    }
}

#[test]
fn a_key_that_is_back_or_gone_is_wrong() {
    for medium in Medium::ALL {
        let environment = environment(Profile::Variable, medium);
        let back = verdict(
            &environment,
            image(&environment, &[0, 1]),
            state(&environment, &[1]),
        );
        let back = back.unwrap_err();
        assert!(back.contains("key 0 holds value 0") && back.contains("should hold nothing"));
        let gone = verdict(
            &environment,
            image(&environment, &[1]),
            state(&environment, &[0, 1]),
        );
        assert!(gone.unwrap_err().contains("key 0 holds nothing"));
    }
}

/// Blocks that the pool has and the engine does not know of: what recovery leaves behind that forgets to give
/// them back.
#[test]
fn a_lost_block_is_wrong() {
    for medium in Medium::ALL {
        let environment = environment(Profile::Variable, medium);
        let process = store(&environment, &[1], &Observers::default());
        assert_eq!(account(&process, &state(&environment, &[1])), Ok(()));
        process
            .pool
            .allocate(1, 4096, process.opened.space().block_bytes)
            .unwrap();
        let defect = account(&process, &state(&environment, &[1])).unwrap_err();
        assert!(defect.contains("the others are lost"), "{defect}");
    }
}

#[test]
fn a_wrong_count_of_keys_is_wrong() {
    let environment = environment(Profile::Variable, Medium::Pmem);
    let process = store(&environment, &[1, 2], &Observers::default());
    let defect = account(&process, &state(&environment, &[1])).unwrap_err();
    assert!(defect.contains("counts 2 keys and has 1"), "{defect}");
}

#[test]
fn a_store_that_takes_no_writes_is_wrong() {
    let full = environment(Profile::Variable, Medium::Pmem);
    let process = store(&full, &[], &Observers::default());
    assert_eq!(write(&process), Ok(()));
    let mut session = process.session().unwrap();
    for key in 0u32.. {
        if session.put(&key.to_le_bytes(), &[1; 400], 0).is_err() {
            break;
        }
        let _ = session.commit().unwrap();
    }
    drop(session);
    let defect = write(&process).unwrap_err();
    assert!(defect.contains("no room"), "{defect}");

    let failing = Arc::new(Failing::default());
    let observers = Observers {
        tap: None,
        disk: Some(Arc::clone(&failing) as Arc<dyn DiskTap>),
    };
    let process = store(
        &environment(Profile::Variable, Medium::File),
        &[1],
        &observers,
    );
    failing.0.store(true, Ordering::Relaxed);
    let defect = write(&process).unwrap_err();
    assert!(defect.contains("failed"), "{defect}");
}

/// A disk that fails, from some time on.
#[derive(Default)]
struct Failing(AtomicBool);

impl DiskTap for Failing {
    fn disk(&self, _site: Site, _event: DiskEvent<'_>) -> Answer {
        match self.0.load(Ordering::Relaxed) {
            true => Answer::Fail(Errno::IO),
            false => Answer::Go,
        }
    }
}

/// Damage that a reader of the keys would not meet before the store is checked.
#[test]
fn what_a_check_finds_is_wrong() {
    let environment = environment(Profile::Variable, Medium::Pmem);
    let process = store(&environment, &[1, 2], &Observers::default());
    assert_eq!(check(&process), Ok(()));
    let region = process.pool.region();
    let bytes = region.snapshot();
    let at = bytes.windows(VALUE.len()).position(|part| part == VALUE);
    let word = at.unwrap() as u64 / 8 * 8 + 8;
    region.imprint(word, b"damaged.");
    let defect = check(&process).unwrap_err();
    assert!(defect.contains("a check finds, at byte"), "{defect}");
}

#[test]
fn one_image_in_many_is_checked() {
    let mut random = everdram_lab::profile::random(1, 1);
    let drawn = |_| rand::RngExt::random::<u64>(&mut random);
    let checked = (0..64_000)
        .map(drawn)
        .filter(|&hash| Care::of(hash) == Care::Checked);
    let checked = checked.count();
    assert!((800..1200).contains(&checked), "{checked}");
}
