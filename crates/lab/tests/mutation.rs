//! The mutation score: no flush, fence or sync can be left out without the lab noticing.
//!
//! Takes minutes, so it runs with optimization and the feature `thorough` only: `cargo xtask lab`. That takes
//! one engine on one medium each day, in turn; `EVERDRAM_MUTATION=all` takes all of them.
#![cfg(feature = "thorough")]

use everdram::EngineKind;
use everdram_lab::image::Medium;
use everdram_lab::mutation::{Mutant, Mutation};
use std::path::Path;
use std::time::SystemTime;

/// What makes nothing safer and stays all the same, by file: the sync of a segment's zeros, so that the first
/// syncs of what is written there later do not pay for the file system's metadata. And what no run has come
/// to since the log is empty after each opening: that leftovers of the log are wiped for good before the next
/// batch is written over them. `log/tests/damage.rs` has tests of the wiping.
const OF_FILES: [&str; 2] = [
    "pm/src/log/segment.rs",
    "pm/src/log/recover.rs: self.write(leftover.file, offset, &[0; NAME])?;",
];

/// What makes nothing safer on memory: a checkpoint of the index is believed by its sums alone, and lost it
/// costs time only (`checkpoint/`, and `chain.rs` for the fence behind its pieces). Marks that compaction
/// without room leaves on originals (`relocate.rs`) are listed, and flushed and fenced once more by whoever
/// frees a block after that.
///
/// And what no run comes to since a checkpoint covers whatever was written before it, and a run written by
/// hand is missing for: the marks of a session that leaves (`session.rs`), and those that verification puts
/// on what has lost (`verify.rs`).
const OF_MEMORY: [&str; 7] = [
    "kv/src/viper/checkpoint/mod.rs",
    "kv/src/viper/chain.rs",
    "kv/src/viper/compaction/relocate.rs: session.mark(old)?;",
    "kv/src/viper/compaction/relocate.rs: let _ordered = session.settle_and_fence();",
    "kv/src/viper/session.rs: self.fence_marks();",
    "kv/src/viper/checkpoint/verify.rs: session.mark(&old)?;",
    "kv/src/viper/checkpoint/verify.rs: let _ordered = self.session.settle_and_fence();",
];

/// What nobody misses in Bullet: the record of a transaction that a power loss tore is ended for good. It
/// would be in force if a second power loss tore the next one so that it has just what the first one lacks,
/// and all that the lab could tell by would be what lies unused; `heap/tests.rs` has a test of it,
/// `two_torn_records_do_not_make_one`.
const OF_BULLET: [&str; 1] = ["kv/src/heap/txn.rs: found.keep_stored(dirty);"];

/// Bullet syncs nothing itself: what it has on files is noticed with Viper, but for what this file names.
const LOG_OF_FILES: [&str; 1] = ["pm/src/log/"];

/// What DStore has on files beside that. Growth of the data file is synced for speed: the sync of a value
/// that lies there covers the length. And the file's name is synced once more with that of the log's first
/// segment, which comes before anything is written.
const OF_DSTORE_ON_FILES: [&str; 3] = [
    "pm/src/log/",
    "kv/src/dstore/room.rs",
    "pm/src/blocks/pairing.rs: (None, Some(directory)) => directory.sync()?,",
];

/// The same of growth; and what is there so that older copies of the data file do not fit, which no crash
/// makes: `crates/pm/src/blocks/tests.rs` and `hole_d11_` do.
///
/// The end of a log that recovery clears is noticed with Bullet.
const OF_DSTORE: [&str; 3] = [
    "kv/src/crl/recover.rs: found.keep_stored(dirty);",
    "kv/src/dstore/room.rs",
    "pm/src/blocks/pairing.rs: tokens.set(token, token)",
];

/// What nobody misses in the tier below on memory, beside the checkpoint of the index, as in Viper. Files
/// that are left over come back, and the next open removes them again (`unlink`). The graves of an unfinished
/// batch are fenced with the marks that follow.
///
/// And what no run comes to: a process that dies within a line of the pool's, while the next one dies, too,
/// before it writes another (`adopt`); a log whose end was cut (`set_len`); the name of a segment that is
/// lost while that of the manifest is not; the pool's note that a new directory has a log. And to two a run
/// comes once or twice, which is too few: the fence of the marks of a session with a full list of them (their
/// flush is noticed), and the marks on records that left a block that stays, of which
/// `viper/below/tests/moving.rs` has a test.
const OF_TIERED: [&str; 12] = [
    "kv/src/viper/checkpoint/mod.rs",
    "kv/src/viper/chain.rs",
    "kv/src/viper/below/line.rs: let mut found = LINES_AT.map(|at| lane.flush_found(at, LINE)).into_iter();",
    "kv/src/viper/below/line.rs: let _ordered = lane.fence(first.and(copy));",
    "kv/src/viper/recovery/mod.rs: let _graves = session.settle_and_fence();",
    "kv/src/aof/open.rs: true => self.shelf.sync().map_err(Error::of_pool),",
    "kv/src/aof/open.rs: .and_then(|()| file.sync())",
    "kv/src/aof/mod.rs: self.shelf.sync()?;",
    "kv/src/viper/below/mod.rs: let shelf = Shelf::open(pool, &place, is_new);",
    "kv/src/viper/write.rs: self.fence_marks();",
    "kv/src/viper/below/evict.rs: session.mark(&old)?;",
    "kv/src/viper/below/evict.rs: let _dead = session.settle_and_fence();",
];

/// What no run misses in a landing area, on memory. The words of one line persist in the order of their
/// stores here, whatever lies between these: the rest of a head or of a grant, and then its first word. And a
/// head that is lost is made again. What recovery makes durable is missed only if two processes end within
/// a line's way from the caches; `kv/tests/moments/landing.rs` has tests of that, and of what hardware does
/// that does not keep that order.
const OF_LANDING: [&str; 4] = [
    "kv/src/landing/layout.rs",
    "kv/src/landing/recover.rs",
    "kv/src/landing/grants.rs: let rest = self.lane.flush(dirty);",
    "kv/src/landing/grants.rs: let ordered = self.lane.fence(bodies);",
];

/// Images after which the search for one mutant ends; `EVERDRAM_MUTATION_IMAGES` says otherwise.
/// `EVERDRAM_MUTANTS`, a file name and a line or a part of these, restricts the search.
const IMAGES: u64 = 100_000;
/// The same for what is excused: whether it is noticed decides nothing.
const EXCUSED_IMAGES: u64 = 4_000;

/// Where something that is excused is, as a mutant names places: `file`, or `file: line of the source`, of
/// which there is one.
fn place(excuse: &str) -> String {
    let Some((file, text)) = excuse.split_once(": ") else {
        return excuse.into();
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let source = std::fs::read_to_string(path).unwrap();
    let lines: Vec<usize> = (1..)
        .zip(source.lines())
        .filter(|(_, line)| line.trim() == text)
        .map(|(number, _)| number)
        .collect();
    match lines[..] {
        [line] => format!("{file}:{line}"),
        _ => panic!("`{text}` is in {} lines of {file}", lines.len()),
    }
}

/// The engines that have days.
const DAILY: [EngineKind; 3] = [EngineKind::Viper, EngineKind::Bullet, EngineKind::Dstore];

/// Whether it is the day of this engine on this medium, or somebody asked for it.
fn is_due(engine: EngineKind, medium: Medium) -> bool {
    let asked = ["EVERDRAM_MUTATION", "EVERDRAM_MUTANTS"];
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let day = since.map_or(0, |since| since.as_secs() / (24 * 3600)) as usize;
    let media = Medium::ALL.len();
    let todays = (DAILY[day / media % DAILY.len()], Medium::ALL[day % media]);
    asked.iter().any(|name| std::env::var_os(name).is_some()) || todays == (engine, medium)
}

/// `least`: mutants that there are at least. `excused`: those that nobody has to notice, of which there are
/// `most`.
fn score(engine: EngineKind, medium: Medium, least: usize, excused: &[&str], most: usize) {
    let images = std::env::var("EVERDRAM_MUTATION_IMAGES")
        .map_or(IMAGES, |text| text.parse().expect("a number of images"));
    let only = std::env::var("EVERDRAM_MUTANTS").unwrap_or_default();
    // Each day, so that a line that has moved is noticed at once.
    let excused: Vec<String> = excused.iter().map(|excuse| place(excuse)).collect();
    if !is_due(engine, medium) {
        println!("{engine}, {medium}: not today; EVERDRAM_MUTATION=all asks for it");
        return;
    }
    let mutation = Mutation {
        images,
        only: only.clone(),
        excused: (excused.clone(), EXCUSED_IMAGES),
        ..Mutation::new(engine, medium)
    };
    let show = |mutant: &Mutant| match &mutant.caught {
        None => println!(
            "{:?} {}, {} times: survived",
            mutant.mute.what,
            mutant.place(),
            mutant.events
        ),
        Some(caught) => println!(
            "{:?} {}, {} times: {}, {} images: {}",
            mutant.mute.what,
            mutant.place(),
            mutant.events,
            mutation.works[caught.work].name,
            caught.images,
            caught.defect.chars().take(100).collect::<String>()
        ),
    };
    let mutants = mutation.score(&show).unwrap();
    let survivors: Vec<String> = mutants
        .iter()
        .filter(|mutant| mutant.caught.is_none())
        .map(|mutant| format!("{:?} {}", mutant.mute.what, mutant.place()))
        .collect();
    let noticed = mutants.iter().filter(|mutant| mutant.caught.is_some());
    println!(
        "{engine}, {medium}: {} of {} noticed",
        noticed.count(),
        mutants.len()
    );
    assert!(
        mutants.len() >= least || !only.is_empty(),
        "{} mutants",
        mutants.len()
    );
    let is_excused = |survivor: &String| {
        excused
            .iter()
            .any(|place| survivor.contains(place.as_str()))
    };
    assert!(survivors.iter().all(is_excused), "{survivors:?}");
    assert!(survivors.len() <= most, "{survivors:?}");
}

#[test]
fn nothing_can_be_left_out_of_viper_on_pmem() {
    let excused = [&OF_MEMORY[..], &OF_LANDING].concat();
    score(EngineKind::Viper, Medium::Pmem, 35, &excused, 20);
}

#[test]
fn nothing_can_be_left_out_of_viper_on_file() {
    score(EngineKind::Viper, Medium::File, 8, &OF_FILES, 2);
}

#[test]
fn nothing_can_be_left_out_of_bullet_on_pmem() {
    let excused = [&OF_BULLET[..], &OF_LANDING].concat();
    score(EngineKind::Bullet, Medium::Pmem, 32, &excused, 11);
}

#[test]
fn nothing_can_be_left_out_of_bullet_on_file() {
    score(EngineKind::Bullet, Medium::File, 8, &LOG_OF_FILES, 4);
}

#[test]
fn nothing_can_be_left_out_of_dstore_on_pmem() {
    let excused = [&OF_DSTORE[..], &OF_LANDING].concat();
    score(EngineKind::Dstore, Medium::Pmem, 35, &excused, 15);
}

#[test]
fn nothing_can_be_left_out_of_dstore_on_file() {
    score(EngineKind::Dstore, Medium::File, 8, &OF_DSTORE_ON_FILES, 7);
}

/// Only if somebody asks for it: with files below, its runs take twice as long as Viper's.
#[test]
fn nothing_can_be_left_out_of_tiered_on_pmem() {
    let excused = [&OF_TIERED[..], &OF_LANDING].concat();
    score(EngineKind::Tiered, Medium::Pmem, 55, &excused, 24);
}
