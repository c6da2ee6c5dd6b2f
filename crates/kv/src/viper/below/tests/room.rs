//! Disks that are full.

use super::*;
use crate::viper::below::evict::Batch;

const VALUE: [u8; 600] = [5; 600];
/// Keys that leave together.
const AT_ONCE: u32 = 10;

/// A store whose disk runs full when the test says so, and which moves and cleans when the test says so.
struct Bed {
    directory: TempDir,
    viper: Arc<Viper>,
    user: ViperSession,
    session: ViperSession,
    faults: Arc<Faults>,
    /// Unix milliseconds.
    clock: Arc<AtomicU64>,
    /// When what is put expires; 0: never.
    expires_at_ms: u64,
}

fn short_segments() -> Options {
    let mut options = options();
    options.tiered.segment_bytes = 16 << 10;
    options
}

fn again(path: &Path, clock: &Arc<AtomicU64>) -> Arc<Viper> {
    let options = Options {
        clock: Some({
            let clock = Arc::clone(clock);
            Arc::new(move || clock.load(Ordering::Relaxed))
        }),
        ..short_segments()
    };
    let pool = open::pool(path, &options).unwrap();
    Viper::over(pool, path, &options).unwrap()
}

impl Bed {
    fn new() -> Bed {
        let directory = TempDir::new_in("/dev/shm").unwrap();
        let path = directory.path().join("pool");
        Store::open(&path, &short_segments())
            .unwrap()
            .close()
            .unwrap();
        let faults = Faults::install(&path.join("tier2"));
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let viper = again(&path, &clock);
        Bed {
            user: ViperSession::of_user(Arc::clone(&viper)).unwrap(),
            session: ViperSession::new(Arc::clone(&viper)).unwrap(),
            directory,
            viper,
            faults,
            clock,
            expires_at_ms: 0,
        }
    }

    fn put(&mut self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let key = number.to_le_bytes();
            self.user.put(&key, &VALUE, self.expires_at_ms).unwrap();
        }
        let _ticket = self.user.commit().unwrap();
    }

    /// Has these keys leave the pool.
    fn leave(
        &mut self,
        numbers: std::ops::Range<u32>,
        before_the_end: impl FnOnce(&Faults),
    ) -> Result<(), Error> {
        let viper = Arc::clone(&self.viper);
        let mut batch = viper.below.as_ref().unwrap().batch(&viper.halted, true);
        for number in numbers {
            if let Err(error) = self.append(&mut batch, number) {
                return Err(batch.give_up(&viper, &mut self.session, error));
            }
        }
        before_the_end(&self.faults);
        batch.finish(&viper, &mut self.session).map(drop)
    }

    /// Has keys leave until the disk is full; how many did, from 0 on. More are in the pool.
    fn fill(&mut self) -> u32 {
        let mut end = 0;
        loop {
            self.put(end..end + AT_ONCE);
            match self.leave(end..end + AT_ONCE, |_| {}) {
                Ok(()) => end += AT_ONCE,
                Err(Error::NoSpace(_)) => return end,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Cleans the log as long as that is worth it; bytes of its entries and of stale ones, before and after.
    fn clean(&mut self) -> [(u64, u64); 2] {
        let below = self.viper.below.as_ref().unwrap();
        let of_log = || {
            let (bytes, stale, _) = below.log.use_of();
            (bytes, stale)
        };
        let (worth, now, before) = (below.worth(), self.viper.now_ms(), of_log());
        let session = &mut self.session;
        while below.clean(&self.viper, session, worth, now).unwrap() {}
        [before, of_log()]
    }

    fn append(&mut self, batch: &mut Batch<'_>, number: u32) -> Result<(), Error> {
        batch.make_room(&mut self.session)?;
        let (key, hash) = (number.to_le_bytes(), self.viper.hash(&number.to_le_bytes()));
        let user = &mut self.user;
        let found = look_up(&self.viper, &user.slot, hash, &key, &mut user.scratch)?;
        let (from, _, record) = found.unwrap();
        batch.append(&Victim {
            hash,
            key: &key,
            value: &VALUE,
            expires_at_ms: self.expires_at_ms,
            order: record.stamp.order(),
            from,
            chain: None,
        })
    }
}

fn has(viper: &Arc<Viper>, numbers: impl Iterator<Item = u32>) {
    let mut user = ViperSession::of_user(Arc::clone(viper)).unwrap();
    for number in numbers {
        let mut found = Vec::new();
        let is_there = user.get(&number.to_le_bytes(), &mut found).unwrap();
        assert!(is_there.is_some(), "{number}");
        assert_eq!(found, VALUE);
    }
}

/// A batch had begun segments when the disk was full. To take it back, segments were cut and then sealed, for
/// which there was no room either: the engine took no more writes.
#[test]
fn a_batch_over_segments_is_taken_back_on_a_full_disk() {
    const KEYS: u32 = 100;
    let mut bed = Bed::new();
    bed.put(0..KEYS);
    for is_full in [true, false] {
        let outcome = bed.leave(0..KEYS, |faults| faults.room(is_full.then_some(0)));
        bed.faults.room(None);
        bed.viper.healthy().unwrap();
        match outcome {
            Err(Error::NoSpace(_)) => assert!(is_full),
            outcome => assert!(outcome.is_ok() && !is_full, "{outcome:?}"),
        }
    }
    let killed = bed.directory.path().join("killed");
    copy(&bed.directory.path().join("pool"), &killed);
    let again = over(&killed, Loading::AtOpen);
    assert!(again.below.as_ref().unwrap().log.numbers().len() > 4);
    has(&again, 0..KEYS);
}

/// A crash left segments that do not count, on a disk without a free page. The manifest that says so found no
/// room, and the store did not open.
#[test]
fn a_store_opens_on_a_full_disk_with_segments_that_do_not_count() {
    const KEYS: u32 = 200;
    let mut bed = Bed::new();
    bed.put(0..KEYS);
    bed.leave(0..KEYS / 2, |_| {}).unwrap();
    let viper = Arc::clone(&bed.viper);
    let log = || viper.below.as_ref().unwrap().log.numbers().len();
    let before = log();
    let mut batch = viper.below.as_ref().unwrap().batch(&viper.halted, true);
    for number in KEYS / 2..KEYS {
        bed.append(&mut batch, number).unwrap();
    }
    assert!(log() > before + 2, "no segment began");
    drop(batch);
    drop(viper);
    let Bed {
        directory,
        viper,
        user,
        session,
        faults,
        clock,
        ..
    } = bed;
    drop((user, session, viper));
    faults.disk(Some(faults.used().unwrap()));
    let viper = again(&directory.path().join("pool"), &clock);
    assert_eq!(viper.below.as_ref().unwrap().log.numbers().len(), before);
    has(&viper, 0..KEYS);
}

/// The room of a cleaned segment is on its way back when the disk is full. Who needs it waits for it.
#[test]
fn room_that_is_on_its_way_back_is_waited_for() {
    let mut bed = Bed::new();
    bed.put(0..100);
    let (viper, faults) = (Arc::clone(&bed.viper), Arc::clone(&bed.faults));
    faults.disk(Some(faults.used().unwrap()));
    let (begun, is_begun) = std::sync::mpsc::channel();
    let freeing = std::thread::spawn(move || {
        let below = viper.below.as_ref().unwrap();
        let _freeing = below.freeing.lock();
        begun.send(()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        faults.disk(None);
    });
    is_begun.recv().unwrap();
    bed.leave(0..100, |_| {}).unwrap();
    freeing.join().unwrap();
    has(&bed.viper, 0..100);
}

/// The spare had room for a segment. On a disk that had no page beside it, the manifest that names the new
/// segment found none: nothing could be cleaned, and the disk stayed full.
#[test]
fn a_disk_that_is_full_to_the_last_page_gets_its_room_back() {
    const EACH: u32 = 4;
    for pages in 0..16 {
        let mut bed = Bed::new();
        bed.faults.disk(Some((256 << 10) + (pages << 12)));
        let end = bed.fill();
        // Garbage in all segments.
        for number in (0..end).step_by(EACH as usize) {
            assert!(bed.user.delete(&number.to_le_bytes()).unwrap());
        }
        let _ticket = bed.user.commit().unwrap();
        let [before, after] = bed.clean();
        println!("{pages} pages more: {before:?}, cleaned {after:?}");
        assert!(after.1 * 8 < before.1, "garbage is left");
        bed.leave(end..end + AT_ONCE, |_| {}).unwrap();
        has(
            &bed.viper,
            (0..end + AT_ONCE).filter(|number| !number.is_multiple_of(EACH) || *number >= end),
        );
    }
}

/// Everything in the log of a full disk had expired, and nothing was stale: segments seemed to be kept whole.
#[test]
fn what_expires_makes_room_on_a_full_disk() {
    let mut bed = Bed::new();
    bed.faults.disk(Some(256 << 10));
    bed.expires_at_ms = 2_000_000;
    let end = bed.fill();
    bed.clock.store(10_000_000, Ordering::Relaxed);
    let [before, after] = bed.clean();
    println!("{before:?}, cleaned {after:?}");
    assert!(after.0 * 3 < before.0, "what has expired is kept");
    bed.expires_at_ms = 0;
    bed.put(end..end + 5 * AT_ONCE);
    bed.leave(end..end + 5 * AT_ONCE, |_| {}).unwrap();
    has(&bed.viper, end..end + 5 * AT_ONCE);
}
