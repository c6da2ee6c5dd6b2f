//! Plans: a seed in, the same run out.

use everdram::EngineKind;
use everdram_lab::call::{Call, Fate};
use everdram_lab::image::Medium;
use everdram_lab::plan::CLOCK_START;
use everdram_lab::plan::{Fault, Plan};
use everdram_lab::profile::Profile;
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
        // Memory does not fail, and has room, if perhaps not a tier below; but processes die everywhere.
        assert!(matches!(
            pmem.fault,
            Fault::None | Fault::Kill(_) | Fault::Outage(..) | Fault::Full(..)
        ));
        faults.extend([(Medium::Pmem, pmem.fault), (Medium::File, file.fault)]);
    }
    let kinds = faults
        .iter()
        .map(|(medium, fault)| (*medium, discriminant(fault)));
    let kinds: HashSet<_> = kinds.collect();
    for fault in [
        Fault::None,
        Fault::Sync(0),
        Fault::Kill(0),
        Fault::Room(0),
        Fault::Full(0, 0),
    ] {
        let kind = (Medium::File, discriminant(&fault));
        assert!(kinds.contains(&kind), "{fault:?} is never drawn");
    }
    for medium in Medium::ALL {
        let outage = (medium, discriminant(&Fault::Outage(0, 0)));
        assert!(kinds.contains(&outage), "an outage is never drawn");
    }
}

type IsCall = fn(&Call) -> bool;

/// What goes wrong is mostly where two features meet, so every call is made in every profile.
#[test]
fn every_profile_draws_every_call() {
    let drawn = |profile, is: IsCall| {
        // A run has a mix of its own, and may never make some calls.
        (0..40).any(|seed| {
            let plan = Plan::draw(EngineKind::Viper, Medium::Pmem, profile, seed, 400);
            for (session, _) in &plan.calls {
                assert!((*session as usize) < plan.sessions());
            }
            plan.calls.iter().any(|(_, call)| is(call))
        })
    };
    let expires = |call: &Call| matches!(call, Call::Put(_, _, at) if *at > CLOCK_START);
    let everywhere: [IsCall; 26] = [
        |call| matches!(call, Call::Put(..)),
        |call| matches!(call, Call::Get(_)),
        |call| matches!(call, Call::Delete(_)),
        |call| matches!(call, Call::Swap(..)),
        |call| matches!(call, Call::Take(_)),
        |call| matches!(call, Call::Append(..)),
        |call| matches!(call, Call::Add(..)),
        |call| matches!(call, Call::Many(_)),
        |call| matches!(call, Call::Probe(_)),
        |call| matches!(call, Call::Scan(_)),
        |call| matches!(call, Call::RandomKey),
        |call| matches!(call, Call::Guarded(..)),
        |call| matches!(call, Call::Exec(_)),
        |call| matches!(call, Call::Batch(_)),
        |call| matches!(call, Call::Pipeline(_)),
        |call| matches!(call, Call::Slow(..)),
        |call| matches!(call, Call::Clear),
        |call| matches!(call, Call::Tend),
        |call| matches!(call, Call::Turn(_)),
        |call| matches!(call, Call::Reclaim),
        |call| matches!(call, Call::Checkpoint),
        |call| matches!(call, Call::Advance(_)),
        |call| matches!(call, Call::Kill),
        |call| matches!(call, Call::Reopen),
        |call| matches!(call, Call::Leave),
        expires,
    ];
    for profile in Profile::ALL {
        for (number, is) in everywhere.into_iter().enumerate() {
            assert!(drawn(profile, is), "call {number} in {profile}");
        }
    }
}

/// Only one profile has a landing area.
#[test]
fn remote_clients_are_drawn_in_their_profile() {
    let kinds: [IsCall; 5] = [
        |call| matches!(call, Call::Remote(.., Fate::Durable)),
        |call| matches!(call, Call::Remote(.., Fate::Told)),
        |call| matches!(call, Call::Remote(.., Fate::Part(_))),
        |call| matches!(call, Call::Late(_)),
        |call| matches!(call, Call::Hangup(_)),
    ];
    for profile in Profile::ALL {
        for (number, is) in kinds.into_iter().enumerate() {
            let is_drawn = (0..20).any(|seed| {
                let plan = Plan::draw(EngineKind::Viper, Medium::Pmem, profile, seed, 200);
                plan.calls.iter().any(|(_, call)| is(call))
            });
            assert_eq!(
                is_drawn,
                profile == Profile::Remote,
                "{number} in {profile}"
            );
        }
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
