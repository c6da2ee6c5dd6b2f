//! The kill loop on real persistent memory: `EVERDRAM_TEST_PMEM` names a directory on a DAX file system, or a
//! devdax device, whose pool is erased.
//!
//! `EVERDRAM_KILLS` sets the number of kills (20), `EVERDRAM_SEED` repeats a run's choices. `cargo xtask vm`
//! runs this in a machine with emulated NVDIMMs.

#[path = "support/kill_loop.rs"]
mod kill_loop;

use kill_loop::{from_environment, launch, must_be_sound, seed};
use std::path::PathBuf;

#[test]
fn kills_on_persistent_memory_lose_nothing() {
    let Some(place) = std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from) else {
        println!("skipped: EVERDRAM_TEST_PMEM names no persistent memory");
        return;
    };
    let seed = seed("pmem");
    let (directory, pool) = if place.is_dir() {
        let directory = tempfile::tempdir_in(place).unwrap();
        let pool = directory.path().join("pool");
        (directory, pool)
    } else {
        everdram_pm::erase(&place).unwrap();
        (tempfile::tempdir().unwrap(), place)
    };
    let kills = from_environment("EVERDRAM_KILLS").unwrap_or(20);
    let launch = launch(&directory, pool, &["--medium", "pmem"]);
    must_be_sound(directory, launch, kills.try_into().unwrap(), seed);
}
