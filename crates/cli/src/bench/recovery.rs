//! A store is filled by a process of its own, which is killed: what is opened then is what a crash left.

use super::store::Store;
use crate::Outcome;
use crate::settings::usage;
use anyhow::Context;
use everdram_bench::corpus::Corpus;
use everdram_bench::{Place, Recovery, recovery};
use std::process::Command;

/// Fill a store and wait to be killed; `bench` starts this itself.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: Store,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let store = &arguments.store;
    let opener = store.opener()?;
    if opener.durability() == everdram_bench::Durability::Never {
        return Err(usage(format!(
            "{}: nothing of it survives a crash",
            store.store
        )));
    }
    recovery::fill_and_wait(&*opener, &corpus(store), &store.dir, store.records)?;
    Ok(Outcome::Sound)
}

fn corpus(store: &Store) -> Corpus {
    Corpus::new(store.keys, store.values, store.seed)
}

/// Kills a process that has filled `store`, and times opening it.
///
/// # Errors
/// What the store says, or if a record is lost.
pub(crate) fn measure(store: &Store) -> anyhow::Result<Recovery> {
    let place = Place::within(&store.dir)?;
    let program = std::env::current_exe().context("finding this program, to start it again")?;
    let mut filler = Command::new(program);
    filler.args(["bench", "fill"]);
    filler.args(store.arguments(place.path()));
    let opener = store.opener()?;
    recovery::measure(
        &*opener,
        &corpus(store),
        &mut filler,
        place.path(),
        store.records,
    )
}
