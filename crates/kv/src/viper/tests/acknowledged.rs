//! Acknowledged writes survive: regressions that lost them where two features met, or that made a caller wait
//! forever. C1 to C9 are the numbers of the bugs; `everdram-pm` tests C5 and C9, too.

use crate::engine::backend::Backend;
use crate::engine::kind::EngineKind;
use crate::engine::{Engine, EngineSession, Recovered, open};
use crate::error::Error;
use crate::options::{Clock, Options};
use crate::viper::compaction::Step;
use crate::viper::compaction::picker::Goal;
use crate::viper::layout::{Geometry, Kind};
use crate::viper::session::ViperSession;
use crate::viper::{Viper, deferred_marks};
use everdram_pm::lab::{self, Actor, Event, Perform, Source, Tap};
use everdram_pm::{Medium, MediumChoice, Pool, Region};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Bytes up to which a pool may grow.
const BYTES_MAX: u64 = 8 << 20;

fn options() -> Options {
    Options {
        initial_bytes: 1 << 20,
        chunk_bytes: 1 << 20,
        max_bytes: BYTES_MAX,
        reclaim_background: false,
        checkpoint_bytes: 0,
        ..Options::default()
    }
}

/// Memory that outlives the engines over it.
fn heap() -> Arc<Pool> {
    let geometry = Geometry::new(4096, 6, None).unwrap();
    Pool::heap(BYTES_MAX, EngineKind::Viper.number(), geometry.to_words())
}

fn over(pool: &Arc<Pool>, options: &Options) -> Result<Arc<Viper>, Error> {
    Viper::over(Arc::clone(pool), Path::new("heap"), options)
}

fn session(viper: &Arc<Viper>) -> ViperSession {
    ViperSession::new(Arc::clone(viper)).unwrap()
}

fn put_many(session: &mut ViperSession, keys: u32, value: &[u8]) {
    for number in 0..keys {
        session.put(&number.to_le_bytes(), value, 0).unwrap();
    }
}

fn get(viper: &Arc<Viper>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let found = session(viper).get_durable(key, &mut value).unwrap();
    found.map(|_| value)
}

fn compact(viper: &Viper) {
    viper.compactor().step(viper, Goal::Threshold, 64).unwrap();
}

/// A pool of files in a directory of its own.
struct Files {
    dir: TempDir,
    path: PathBuf,
}

impl Files {
    fn new() -> Files {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("pool");
        Files { dir, path }
    }

    fn options() -> Options {
        Options {
            medium: MediumChoice::Only(Medium::File),
            ..options()
        }
    }

    fn open(path: &Path) -> Result<Arc<Viper>, Error> {
        let pool = open::pool(path, &Files::options())?;
        Viper::over(pool, path, &Files::options())
    }

    /// Copies the present files: the next process finds them if this one is killed.
    fn copy(&self, name: &str) -> PathBuf {
        copy(&self.path, &self.dir.path().join(name))
    }
}

fn copy(from: &Path, to: &Path) -> PathBuf {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    to.into()
}

/// C1, on files. The older record of a key lay in a block that was open at a checkpoint of the index, and its
/// mark in the cache. The newer record lay in a full block, and the checkpoint knew only that one.
fn removed_after_a_checkpoint_over_an_open_block(checkpoint: bool, alone: bool) {
    let files = Files::new();
    let viper = Files::open(&files.path).unwrap();
    let (mut slow, mut fast) = (session(&viper), session(&viper));
    match alone {
        // The old record is in the open block for large records of the same session.
        true => fast.put(b"key", &[b'L'; 10_000], 0).unwrap(),
        false => slow.put(b"key", b"old value", 0).unwrap(),
    }
    for session in [&mut slow, &mut fast] {
        session.commit_pending().unwrap();
    }
    fast.put(b"key", b"newer value", 0).unwrap();
    put_many(&mut fast, 200, &[1; 256]);
    fast.commit_pending().unwrap();
    if checkpoint {
        crate::viper::checkpoint::write(&viper).unwrap();
    }
    assert!(fast.delete(b"key").unwrap());
    let ticket = fast.commit().unwrap();
    fast.wait(ticket).unwrap();
    let killed = Files::open(&files.copy("killed")).unwrap();
    assert_eq!(get(&killed, b"key"), None, "before verification");
    killed.verify().unwrap();
    assert_eq!(get(&killed, b"key"), None, "after verification");
    assert_eq!(killed.len(), 200);
}

#[test]
fn a_removed_key_stays_removed_after_a_checkpoint_over_an_open_block() {
    removed_after_a_checkpoint_over_an_open_block(true, false);
}

#[test]
fn a_removed_key_stays_removed_after_a_checkpoint_over_an_open_block_of_one_session() {
    removed_after_a_checkpoint_over_an_open_block(true, true);
}

#[test]
fn control_open_block_without_index_checkpoint() {
    removed_after_a_checkpoint_over_an_open_block(false, false);
}

/// C2. At the checkpoint, an emptied block waited for a reader. The checkpoint knew the copy of a record, but
/// not the original, which had no mark.
fn removed_after_a_checkpoint_over_an_emptied_block(checkpoint: bool) {
    let pool = heap();
    let viper = over(&pool, &options()).unwrap();
    let mut user = session(&viper);
    user.put(b"key", b"value", 0).unwrap();
    for _ in 0..100 {
        user.put(b"other", &[7; 400], 0).unwrap();
    }
    user.commit_pending().unwrap();
    let reader = viper.epochs.register().unwrap();
    let pin = reader.pin();
    compact(&viper);
    assert!(viper.compaction.retired.has_blocks(), "nothing was emptied");
    // The block with the copy becomes full.
    let mut next = session(&viper);
    put_many(&mut next, 200, &[1; 400]);
    next.commit_pending().unwrap();
    assert!(user.delete(b"key").unwrap());
    user.commit_pending().unwrap();
    if checkpoint {
        crate::viper::checkpoint::write(&viper).unwrap();
    }
    // Killed.
    std::mem::forget(pin);
    std::mem::forget((user, next, viper));
    let viper = over(&pool, &options()).unwrap();
    assert_eq!(get(&viper, b"key"), None, "before verification");
    viper.verify().unwrap();
    assert_eq!(get(&viper, b"key"), None, "after verification");
    assert_eq!(viper.len(), 201);
}

#[test]
fn a_removed_key_stays_removed_after_a_checkpoint_over_an_emptied_block() {
    removed_after_a_checkpoint_over_an_emptied_block(true);
}

#[test]
fn control_without_index_checkpoint() {
    removed_after_a_checkpoint_over_an_emptied_block(false);
}

/// C3. One thread had taken the notes of marks and not fenced them. Another found none, and dropped the
/// tombstone before that fence.
fn removed_while_marks_are_being_fenced(pause: bool) {
    let files = Files::new();
    let viper = Files::open(&files.path).unwrap();
    let mut user = session(&viper);
    // The first record of the key lies among live ones, the second among garbage.
    user.put(b"key", b"old value", 0).unwrap();
    put_many(&mut user, 100, &[1; 256]);
    user.put(b"key", b"newer value", 0).unwrap();
    for _ in 0..150 {
        user.put(b"other", &[2; 256], 0).unwrap();
    }
    user.commit_pending().unwrap();
    assert!(user.delete(b"key").unwrap());
    user.commit_pending().unwrap();
    viper.sync().unwrap();
    let crashed = files.dir.path().join("crashed");
    let compact_and_crash = {
        let (viper, path, crashed) = (Arc::clone(&viper), files.path.clone(), crashed.clone());
        move || {
            compact(&viper);
            viper.sync().unwrap();
            copy(&path, &crashed);
        }
    };
    match pause {
        true => {
            deferred_marks::test_hook::set(Box::new(compact_and_crash));
            viper.fence_all_marks(&mut session(&viper));
            assert!(!deferred_marks::test_hook::is_set(), "no marks were fenced");
        }
        false => compact_and_crash(),
    }
    assert_ne!(viper.stats().blocks_reclaimed, 0, "nothing was dropped");
    assert_eq!(get(&Files::open(&crashed).unwrap(), b"key"), None);
}

#[test]
fn a_removed_key_stays_removed_while_a_checkpoint_is_begun() {
    removed_while_marks_are_being_fenced(true);
}

#[test]
fn a_removed_key_stays_removed_without_checkpoint() {
    removed_while_marks_are_being_fenced(false);
}

/// C4. A record with its key in pieces was moved, then removed or replaced. Its pieces were reused while the
/// block with the original, which has no mark, still waited for a reader.
fn opens_after_a_long_key_was_moved(delete: bool, reading: bool) {
    let pool = heap();
    let viper = over(&pool, &options()).unwrap();
    let mut user = session(&viper);
    let key = vec![b'K'; 40_000];
    user.put(&key, b"value", 0).unwrap();
    for _ in 0..100 {
        user.put(b"other", &[7; 400], 0).unwrap();
    }
    user.put(b"acknowledged", b"must survive", 0).unwrap();
    user.commit_pending().unwrap();
    let reader = viper.epochs.register().unwrap();
    let pin = reading.then(|| reader.pin());
    compact(&viper);
    match delete {
        true => assert!(user.delete(&key).unwrap()),
        false => user.put(&key, b"another value", 0).unwrap(),
    }
    user.commit_pending().unwrap();
    drop(pin);
    // The first step of a round of the background thread.
    viper.compactor().free_passed(&viper).unwrap();
    user.put(b"long", &[9; 100_000], 0).unwrap();
    user.commit_pending().unwrap();
    // Killed before the next step of compaction.
    std::mem::forget((user, viper));
    let viper = over(&pool, &options()).unwrap();
    assert_eq!(
        get(&viper, b"acknowledged").as_deref(),
        Some(&b"must survive"[..])
    );
    let current = (!delete).then(|| b"another value".to_vec());
    assert_eq!(get(&viper, &key), current);
}

#[test]
fn a_pool_opens_after_a_long_key_was_moved_and_removed() {
    opens_after_a_long_key_was_moved(true, true);
}

#[test]
fn a_pool_opens_after_a_long_key_was_moved_and_replaced() {
    opens_after_a_long_key_was_moved(false, true);
}

#[test]
fn control_without_a_reader() {
    opens_after_a_long_key_was_moved(true, false);
}

/// C5. A checkpoint of the redo log copied a page with an unfenced record, and the sync of the image failed.
/// Another process found the record in the page cache and sealed the page over it. Then power failed.
fn around_a_failed_sync_of_the_image(seed: u64) -> (Option<u8>, Option<u8>) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pool");
    std::fs::create_dir(&path).unwrap();
    let faults = everdram_pm::faults::Faults::install(&path);
    faults.lossy();
    let first_byte = |viper: &Arc<Viper>| Some(get(viper, b"key")?[0]);
    {
        let viper = Files::open(&path).unwrap();
        let mut user = session(&viper);
        user.put(b"key", &[b'o'; 37], 0).unwrap();
        user.commit_pending().unwrap();
        viper.sync().unwrap();
        // Submitted: the record is on its way to memory, and not in the redo log.
        user.put(b"key", &[b'n'; 37], 0).unwrap();
        faults.fail_sync_after(0);
        assert!(viper.pool.checkpoint().is_err());
        assert!(user.commit().is_err());
    }
    faults.fail_sync_after(u64::MAX);
    let shown = {
        let viper = Files::open(&path).unwrap();
        let shown = first_byte(&viper);
        viper.sync().unwrap();
        // Killed: the store is not closed.
        std::mem::forget(viper);
        shown
    };
    faults.crash(seed).unwrap();
    let third = copy(&path, &dir.path().join("third"));
    let viper = Files::open(&third).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    (shown, first_byte(&viper))
}

#[test]
fn what_was_shown_after_a_failed_sync_survives() {
    for seed in 0..12 {
        let (shown, after) = around_a_failed_sync_of_the_image(seed);
        assert_eq!(shown, after, "seed {seed}");
    }
}

/// The block of a key's record, to be damaged.
fn block_of(viper: &Arc<Viper>, key: &[u8]) -> u64 {
    let mut user = session(viper);
    let old = user.locate_old(viper.hash(key), key).unwrap().unwrap();
    let number = viper
        .space
        .blocks
        .number(old.location.get() * crate::viper::read::UNIT);
    viper.space.blocks.at(number)
}

/// C6. The record that a put replaced was damaged, and another call committed the put. That call got the
/// error, and the commit of the put did not.
#[test]
fn a_refused_put_is_not_acknowledged() {
    let viper = over(&heap(), &options()).unwrap();
    let mut user = session(&viper);
    user.put(b"a", b"old", 0).unwrap();
    user.commit_pending().unwrap();
    // Damages the first mark words of all pages.
    let at = block_of(&viper, b"a");
    let mut lane = viper.pool.lane();
    for page in 0..viper.space.geometry.pages {
        for word in 0..viper.space.geometry.pages_of(Kind::Variable).mark_words {
            let mark_at = at + page * viper.space.geometry.page_bytes + 16 + 8 * word;
            let rotten = viper.pool.region().load_word(mark_at) ^ 1 << 60;
            let dirty = lane.store_word(mark_at, rotten);
            let _flushed = lane.flush(dirty);
        }
    }
    user.put(b"a", b"new", 0).unwrap();
    let mut value = Vec::new();
    // A call of another connection on the same event loop.
    assert!(user.get(b"a", &mut value).unwrap().is_some());
    user.commit_pending().unwrap();
    let commit = user.commit();
    assert!(commit.is_ok(), "{commit:?}");
    assert_eq!(get(&viper, b"a").as_deref(), Some(&b"new"[..]));
}

/// As above, where the replaced record cannot be read at all.
#[test]
fn a_put_takes_the_place_of_a_record_that_cannot_be_read() {
    let viper = over(&heap(), &options()).unwrap();
    let mut user = session(&viper);
    user.put(b"a", b"old", 0).unwrap();
    user.commit_pending().unwrap();
    let hash = viper.hash(b"a");
    let old = user.locate_old(hash, b"a").unwrap().unwrap();
    let mut lane = viper.pool.lane();
    let dirty = lane.store_word(old.location.get() * crate::viper::read::UNIT, u64::MAX);
    let _flushed = lane.flush(dirty);
    let mut value = Vec::new();
    assert!(
        user.get(b"a", &mut value).is_err(),
        "damage read as absence"
    );
    user.put(b"a", b"new", 0).unwrap();
    let _ticket = user.commit().unwrap();
    assert_eq!(get(&viper, b"a").as_deref(), Some(&b"new"[..]));
    user.put(b"a", b"newer", 0).unwrap();
    let _ticket = user.commit().unwrap();
    assert_eq!(get(&viper, b"a").as_deref(), Some(&b"newer"[..]));
}

/// C7. A caller that wrote from inside an iteration waited for room. Room comes only when readers leave, and
/// its own iteration was one of them.
#[test]
fn an_iteration_that_writes_comes_to_an_end() {
    let options = Options {
        max_bytes: 2 << 20,
        reclaim_background: true,
        ..options()
    };
    let geometry = Geometry::new(4096, 6, None).unwrap();
    let pool = Pool::heap(2 << 20, EngineKind::Viper.number(), geometry.to_words());
    let viper = over(&pool, &options).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut reader, mut writer) = (session(&viper), session(&viper));
        put_many(&mut writer, 500, &[1; 400]);
        writer.commit_pending().unwrap();
        let mut puts = 0;
        let next = reader.scan(0, 1024, &mut |key, _, _| {
            for _ in 0..20 {
                writer.put(key, &[2; 400], 0).unwrap();
                writer.commit_pending().unwrap();
                puts += 1;
            }
        });
        next.unwrap();
        done.send(puts).unwrap();
    });
    let puts = is_done.recv_timeout(Duration::from_secs(60));
    assert_eq!(puts, Ok(500 * 20));
}

/// C7, too: a reader that stays pinned blocks reclamation. A writer without room gets an error after a while.
#[test]
fn a_reader_that_stays_is_not_waited_for_without_end() {
    let options = Options {
        max_bytes: 2 << 20,
        ..options()
    };
    let geometry = Geometry::new(4096, 6, None).unwrap();
    let pool = Pool::heap(2 << 20, EngineKind::Viper.number(), geometry.to_words());
    let viper = over(&pool, &options).unwrap();
    let reader = viper.epochs.register().unwrap();
    let pin = reader.pin();
    let mut user = session(&viper);
    let refused = (0..100_000_u32).find_map(|_| user.put(b"key", &[7; 400], 0).err());
    assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
    drop(pin);
    user.put(b"key", &[8; 400], 0).unwrap();
    user.commit_pending().unwrap();
}

/// C8. One record with a damaged head kept all expired keys from being removed.
#[test]
fn expired_keys_are_swept_around_damage() {
    let now = Arc::new(AtomicU64::new(1000));
    let clock = Arc::clone(&now);
    let clock: Clock = Arc::new(move || clock.load(Ordering::Relaxed));
    let options = Options {
        clock: Some(clock),
        ..options()
    };
    let viper = over(&heap(), &options).unwrap();
    let mut user = session(&viper);
    user.put(b"live", b"x", 0).unwrap();
    for number in 0..2000_u32 {
        user.put(&number.to_le_bytes(), b"gone soon", 2000).unwrap();
    }
    user.commit_pending().unwrap();
    let place = user
        .locate_old(viper.hash(b"live"), b"live")
        .unwrap()
        .unwrap();
    let mut lane = viper.pool.lane();
    let dirty = lane.store_word(place.location.get() * crate::viper::read::UNIT, u64::MAX);
    let _flushed = lane.flush(dirty);
    now.store(3000, Ordering::Relaxed);
    drop(user);
    let mut cursor = 0;
    for _ in 0..100 {
        // The error about the damage does not matter here.
        let _ = Arc::clone(&viper).tend(&mut cursor);
    }
    assert_eq!(viper.len(), 1);
}

/// Bytes of a small pool in the lab.
const LAB_BYTES: u64 = 256 << 10;

/// Runs some work before the next fence.
#[derive(Default)]
struct BeforeFence(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Tap for BeforeFence {
    fn actor(&self) -> Actor {
        0
    }

    fn event(&self, _: &Region, _: Source, event: Event<'_>, perform: Perform<'_>) -> bool {
        if let Event::Fence = event {
            let work = self.0.lock().take();
            if let Some(work) = work {
                work();
            }
        }
        perform()
    }

    fn load(&self, _: &Region, _: u64, _: u64) {}
}

fn over_lab(tap: Arc<BeforeFence>) -> Arc<Viper> {
    let words = Geometry::new(512, 2, None).unwrap().to_words();
    let image = lab::create(lab::Seed(7), EngineKind::Viper.number(), words).unwrap();
    over_image(&image, tap)
}

fn over_image(image: &[u8], tap: Arc<BeforeFence>) -> Arc<Viper> {
    let options = Options {
        initial_bytes: 16 << 10,
        chunk_bytes: 16 << 10,
        max_bytes: LAB_BYTES,
        reclaim_threshold: 0.05,
        reclaim_background: false,
        ..Options::default()
    };
    let pool = lab::open(image, LAB_BYTES, Some(tap)).unwrap();
    Viper::over(pool, Path::new("lab"), &options).unwrap()
}

/// A delete sets its mark before the fence and changes the index after it. Compaction left marked records
/// behind without a look at the index, and freed the block between the two. Readers then followed the entry
/// into the block's next life.
#[test]
fn a_block_is_not_freed_under_a_delete() {
    let tap = Arc::new(BeforeFence::default());
    let viper = over_lab(Arc::clone(&tap));
    let mut user = ViperSession::new(Arc::clone(&viper)).unwrap();
    user.put(b"key", &[1; 100], 0).unwrap();
    for _ in 0..12 {
        user.put(b"other", &[7; 180], 0).unwrap();
    }
    user.commit_pending().unwrap();
    let hash = viper.hash(b"key");
    let place = user.locate_old(hash, b"key").unwrap().unwrap().location;
    let block = viper
        .space
        .blocks
        .number(place.get() * crate::viper::read::UNIT);
    let life = viper.space.blocks.get(block).unwrap().info();
    let compact_all = |viper: &Viper| {
        let mut compactor = viper.compactor();
        while compactor.step(viper, Goal::Threshold, 64).unwrap() == Step::Worked {}
    };
    let meanwhile = Arc::clone(&viper);
    *tap.0.lock() = Some(Box::new(move || {
        compact_all(&meanwhile);
        let taken = meanwhile.space.blocks.get(block).unwrap().info();
        assert_eq!((taken.kind, taken.epoch), (life.kind, life.epoch));
        assert_ne!(taken.state, life.state, "compaction did not take the block");
    }));
    assert!(user.delete(b"key").unwrap());
    user.commit_pending().unwrap();
    assert!(tap.0.lock().is_none(), "the delete had no fence");
    compact_all(&viper);
    assert_eq!(
        viper.space.blocks.get(block).unwrap().info().kind,
        Kind::Free
    );
}

/// A thread that panicked in a commit left its keys locked, and later writers of them waited forever.
#[test]
fn a_panic_in_a_commit_halts_the_store_and_keeps_nobody_waiting() {
    let tap = Arc::new(BeforeFence::default());
    let viper = over_lab(Arc::clone(&tap));
    let mut other = session(&viper);
    other.put(b"key", b"old", 0).unwrap();
    other.commit_pending().unwrap();
    *tap.0.lock() = Some(Box::new(|| panic!("on purpose")));
    let doomed = Arc::clone(&viper);
    let panicked = std::thread::spawn(move || {
        let mut user = session(&doomed);
        user.put(b"key", b"new", 0).unwrap();
        let _ = user.commit_pending();
    });
    assert!(panicked.join().is_err(), "it did not panic");
    assert!(matches!(other.delete(b"key"), Err(Error::Halted(_))));
    assert_eq!(get(&viper, b"key").as_deref(), Some(&b"old"[..]));
    assert!(!viper.stripes.is_locked(viper.stripe(viper.hash(b"key"))));
}

/// A session that a panic left in the middle of a write panics again when it is dropped. If the second panic
/// leaves the drop during the first unwinding, the process aborts.
#[test]
#[cfg(debug_assertions)]
fn a_session_that_cannot_be_finished_is_dropped_without_another_panic() {
    let viper = over_lab(Arc::new(BeforeFence::default()));
    let doomed = Arc::clone(&viper);
    let panicked = std::thread::spawn(move || {
        let mut user = session(&doomed);
        user.put(b"key", b"value", 0).unwrap();
        // The write looks as if another lane had to fence it, so it cannot be published.
        user.pending[0].written = doomed.pool.lane().written();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err(), "it did not panic");
    let put = session(&viper).put(b"key", b"new", 0);
    assert!(matches!(put, Err(Error::Halted(_))), "{put:?}");
}

/// A thread that panicked during verification lost the blocks it had taken. The next thread found nothing
/// left and took them for verified.
#[test]
fn blocks_whose_verification_panicked_are_verified_by_whoever_goes_on() {
    let before = over_lab(Arc::default());
    let mut user = session(&before);
    for number in 0..12_u32 {
        user.put(&number.to_le_bytes(), &[7; 180], 0).unwrap();
    }
    user.commit_pending().unwrap();
    crate::viper::checkpoint::write(&before).unwrap();
    assert!(user.delete(&3_u32.to_le_bytes()).unwrap());
    user.commit_pending().unwrap();
    // Killed.
    let image = before.pool.region().snapshot();
    let tap = Arc::new(BeforeFence::default());
    let viper = over_image(&image, Arc::clone(&tap));
    assert!(
        viper.verification.is_running(),
        "there is nothing to verify"
    );
    *tap.0.lock() = Some(Box::new(|| panic!("on purpose")));
    let doomed = Arc::clone(&viper);
    let panicked = std::thread::spawn(move || doomed.verify());
    assert!(panicked.join().is_err(), "it did not panic");
    assert!(viper.verification.is_running(), "nothing is left to verify");
    viper.verify().unwrap();
    crate::viper::checkpoint::write(&viper).unwrap();
    assert_eq!(get(&viper, &3_u32.to_le_bytes()), None);
    assert_eq!(viper.len(), 11);
}
