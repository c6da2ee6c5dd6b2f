//! Plans: a seed in, the same run out.

use everdram::EngineKind;
use everdram_lab::call::Call;
use everdram_lab::image::Medium;
use everdram_lab::plan::{Fault, Plan};
use everdram_lab::profile::Profile;
use everdram_lab::world::CLOCK_START;
use std::collections::HashSet;
use std::mem::discriminant;

/// What a plan is, without the order in which its values are looked up.
fn said(plan: &Plan) -> String {
    let mut calls = plan.calls.clone();
    let values: Vec<Vec<u8>> = calls
        .iter_mut()
        .flat_map(|(_, call)| call.values_mut())
        .map(|value| plan.values.bytes(*value).to_vec())
        .collect();
    format!("{:?} {:?} {values:?}", plan.fault, plan.calls)
}

#[test]
fn the_same_seed_is_the_same_plan() {
    for medium in Medium::ALL {
        for profile in Profile::ALL {
            let drawn = |seed| said(&Plan::draw(EngineKind::Viper, medium, profile, seed, 80));
            assert_eq!(drawn(5), drawn(5));
            assert_ne!(drawn(5), drawn(6));
        }
    }
}

#[test]
fn media_differ_in_their_faults_alone() {
    let mut faults = Vec::new();
    for seed in 0..60 {
        let [pmem, file] = Medium::ALL
            .map(|medium| Plan::draw(EngineKind::Viper, medium, Profile::Variable, seed, 20));
        assert_eq!(pmem.calls, file.calls);
        // Memory does not fail, and has room; but processes die everywhere.
        assert!(matches!(
            pmem.fault,
            Fault::None | Fault::Kill(_) | Fault::Outage(..)
        ));
        faults.extend([(Medium::Pmem, pmem.fault), (Medium::File, file.fault)]);
    }
    let kinds = faults
        .iter()
        .map(|(medium, fault)| (*medium, discriminant(fault)));
    let kinds: HashSet<_> = kinds.collect();
    for fault in [Fault::None, Fault::Sync(0), Fault::Kill(0), Fault::Room(0)] {
        let kind = (Medium::File, discriminant(&fault));
        assert!(kinds.contains(&kind), "{fault:?} is never drawn");
    }
    let outage = (Medium::Pmem, discriminant(&Fault::Outage(0, 0)));
    assert!(kinds.contains(&outage), "an outage is never drawn");
}

type IsCall = fn(&Call) -> bool;

/// What a profile is there for has to be in its plans.
#[test]
fn profiles_draw_what_they_are_for() {
    let drawn = |profile, is: IsCall| {
        let plan = Plan::draw(EngineKind::Viper, Medium::Pmem, profile, 1, 400);
        for (session, _) in &plan.calls {
            assert!((*session as usize) < profile.sessions());
        }
        plan.calls.iter().any(|(_, call)| is(call))
    };
    for profile in Profile::ALL {
        assert!(drawn(profile, |call| matches!(call, Call::Put(..))));
        assert!(drawn(profile, |call| matches!(call, Call::Get(_))));
        assert!(drawn(profile, |call| matches!(call, Call::Delete(_))));
        assert!(drawn(profile, |call| matches!(call, Call::Swap(..))));
        let kills = drawn(profile, |call| matches!(call, Call::Kill | Call::Reopen));
        assert_eq!(kills, profile != Profile::Threads, "{profile}");
    }
    let expires = |call: &Call| matches!(call, Call::Put(_, _, at) if *at > CLOCK_START);
    let telling: [(Profile, IsCall); 8] = [
        (Profile::Fixed, |call| matches!(call, Call::Add(..))),
        (Profile::Fixed, |call| matches!(call, Call::Pipeline(_))),
        (Profile::Batch, |call| matches!(call, Call::Batch(_))),
        (Profile::Batch, |call| matches!(call, Call::Clear)),
        (Profile::Expiry, expires),
        (Profile::Expiry, |call| matches!(call, Call::Advance(_))),
        (Profile::Reclamation, |call| matches!(call, Call::Reclaim)),
        (Profile::Threads, |call| matches!(call, Call::Batch(_))),
    ];
    for (profile, is) in telling {
        assert!(drawn(profile, is), "{profile}");
    }
}

#[test]
fn keys_of_a_profile_differ() {
    for profile in Profile::ALL {
        let mut keys: Vec<_> = (0..profile.keys() as u8)
            .map(|key| profile.key(key))
            .collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), profile.keys(), "{profile}");
    }
}
