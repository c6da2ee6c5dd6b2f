//! Forged pools of the engine `bullet`, by a forger who knows the pool's secret: everything verifies, and
//! nothing is sound. None may make the engine panic, loop, or lose a key without an error.

use super::support::bullet::Looked;
use super::*;
use everdram_pm::ROOT_AT;

/// A pool to be forged: closed and fully applied, or killed.
struct Forger {
    looked: Looked,
    image: Frozen,
    model: Contents,
    bed: Bed,
}

impl Forger {
    fn of(fill: fn(&Bed) -> (Frozen, Contents)) -> Forger {
        let bed = Bed::emulated().of(EngineKind::Bullet);
        let (image, model) = fill(&bed);
        let looked = Looked::at(&bed.path(), bed.medium());
        Forger {
            looked,
            image,
            model,
            bed,
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.image.image_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn set(&mut self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }

    fn sum(&self, bytes: &[u8], at: u64, salt: u64) -> u64 {
        let secret = self.looked.pool.secret();
        secret.sum_words([secret.sum(bytes), at, salt])
    }

    /// Changes a word of both ledgers.
    fn ledger(&mut self, word: usize, value: u64) {
        for at in [ROOT_AT + 512, ROOT_AT + 2048] {
            let mut bytes = self.looked.bytes(at, 56 + 8 * self.looked.logs());
            bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
            let check = self.sum(&bytes[8..], at, 0x6c);
            bytes[..8].copy_from_slice(&check.to_le_bytes());
            self.write(at, &bytes);
        }
    }

    /// Appends an entry to log 0, of the pool's epoch and `more`.
    fn entry(&mut self, position: u64, operations: &[Vec<u8>], more_epochs: u64) -> u64 {
        let at = self.looked.place(0, position);
        let mut bytes = vec![0; 32];
        operations
            .iter()
            .for_each(|operation| bytes.extend(operation));
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        let epoch = (self.looked.pool.incarnation() << 32 | 1000) + more_epochs;
        let lines = bytes.len() as u64 / 64;
        let sizes = lines | (operations.len() as u64) << 32;
        for (place, word) in [(8, epoch), (16, sizes), (24, position)] {
            bytes[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        let check = self.looked.entry_check(at, position, &bytes);
        bytes[..8].copy_from_slice(&check.to_le_bytes());
        self.write(at, &bytes);
        position + bytes.len() as u64
    }

    /// Appends entries of an operation each.
    fn log(&mut self, operations: &[Vec<u8>]) {
        let (_, mut position) = self.looked.entries(0);
        for operation in operations {
            position = self.entry(position, std::slice::from_ref(operation), 0);
        }
    }

    /// Writes a record in force into area 0.
    fn record(&mut self, ahead: u64, place: u64) {
        let area = self.looked.area(0);
        let number = self.looked.word(area) % (1 << 48) + ahead;
        let body: Vec<u8> = [number, 1, place, 0]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        let check = self.sum(&body, area, 0x74);
        self.set(area + 64, check);
        self.write(area + 72, &body);
    }

    /// Changes the link of a bucket, and its check.
    fn link(&mut self, bucket: u64, link: u64) {
        const MASK: u64 = (1 << 48) - 64;
        let mut bytes = self.looked.bytes(bucket, 56);
        bytes.extend(link.to_le_bytes());
        bytes.extend((bucket ^ 0x62).to_le_bytes());
        let check = self.looked.pool.secret().sum(&bytes);
        self.set(bucket + 56, link | check & !MASK);
    }

    fn outcome(self) -> Result<&'static str, String> {
        let Forger {
            looked,
            image,
            model,
            bed,
        } = self;
        drop(looked);
        image.lay(&bed.path());
        outcome(&bed, &model)
    }
}

fn operation(version: u64, opcode: u64, key: &[u8], payload: &[u8]) -> Vec<u8> {
    let lengths = key.len() as u64 | (payload.len() as u64) << 32;
    let words = [version | opcode << 48, 0, 0, lengths];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    for part in [key, payload] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

fn is_refused(forge: impl Fn(&mut Forger)) {
    for fill in [filled as fn(&Bed) -> _, super::bullet::killed] {
        let mut forger = Forger::of(fill);
        forge(&mut forger);
        assert_eq!(forger.outcome(), Ok("refused"));
    }
}

#[test]
fn a_ledger_that_cannot_be_is_refused() {
    for (word, value) in [
        (2, 1 << 60),
        (2, u64::MAX),
        (3, 1 << 40),
        (4, 1 << 47),
        (4, u64::MAX),
        (5, u64::MAX),
        (6, u64::MAX),
        (7, 1),
        (8, 63),
        (8, u64::MAX - 63),
        (9, 1 << 60),
    ] {
        is_refused(|forger| forger.ledger(word, value));
    }
}

#[test]
fn a_table_that_is_gone_is_no_new_pool() {
    is_refused(|forger| forger.write(ROOT_AT, &[0; 32]));
    is_refused(|forger| forger.write(ROOT_AT, &[0; 4096]));
    is_refused(|forger| {
        forger.write(ROOT_AT + 512, &[0; 4096 - 512]);
    });
    is_refused(|forger| forger.set(forger.looked.area(0), 0));
}

#[test]
fn a_transaction_that_cannot_be_is_refused() {
    for (ahead, place) in [
        (1, 0),
        (1, 4096),
        (1, 1 << 50),
        (1, ROOT_AT + 3),
        (2, ROOT_AT),
    ] {
        is_refused(|forger| forger.record(ahead, place));
    }
}

#[test]
fn log_records_that_cannot_be_are_refused() {
    let key = b"key-1".as_slice();
    for forged in [
        vec![operation(1 << 47, 1, key, b"value")],
        vec![operation((1 << 47) - 2, 1, key, b"value")],
        vec![operation(1 << 40, 4, key, &[0xff; 16])],
        vec![operation(1 << 40, 5, key, &[8, 0, 0, 0, 0, 0, 0, 0])],
        vec![operation(1 << 40, 3, b"nobody", b"suffix")],
        vec![operation(1 << 40, 2, key, b"value")],
        vec![operation(1 << 40, 6, b"", &[0; 8])],
        vec![operation(1 << 40, 8, b"", b"")],
        vec![operation(1 << 40, 99, key, b"value")],
        // More than a log can make of a value.
        (0..10)
            .map(|nth| operation((1 << 40) + nth, 3, key, &[7; 7_000]))
            .collect(),
    ] {
        let mut forger = Forger::of(filled);
        forger.log(&forged);
        assert_eq!(forger.outcome(), Ok("refused"), "{:?}", &forged[0][..32]);
    }
    let mut forger = Forger::of(filled);
    let (_, position) = forger.looked.entries(0);
    forger.entry(position, &[operation(1 << 40, 1, key, b"value")], 5 << 32);
    assert_eq!(forger.outcome(), Ok("refused"), "an epoch of the future");
}

/// An overflow record in an overflow record: a chain of them could be as deep as the pool is large. And a
/// value in an overflow record that is too large for a node of the front.
#[test]
fn parcels_that_cannot_be_count_as_none() {
    for forged in [
        operation(1 << 40, 7, b"", &[0; 24]),
        operation(1 << 40, 1, b"key-1", &vec![7; 70_000]),
    ] {
        let mut forger = Forger::of(filled);
        // The last chunk has free lines at its end; the forgery only needs to lie in the pool.
        let bytes = (8 + forged.len()) as u64;
        let extent = *forger.looked.pool.extents(2).last().unwrap();
        let at = (extent.at + extent.bytes - bytes) / 64 * 64;
        let check = forger.sum(&forged, at, 0x70);
        forger.set(at, check);
        forger.write(at + 8, &forged);
        let named: Vec<u8> = [at, bytes, check]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        forger.log(&[operation(1 << 40, 7, b"", &named)]);
        let outcome = forger.outcome();
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

/// Removed keys.
#[test]
fn a_clear_of_countless_keys_overflows_nothing() {
    let mut forger = Forger::of(filled);
    let keys = (i64::MIN as u64).to_le_bytes();
    forger.log(&[operation(0, 8, b"", &keys), operation(0, 8, b"", &keys)]);
    let outcome = forger.outcome();
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// Chains that are cyclic, or continue in something else, for each bucket with objects.
#[test]
fn a_chain_that_leads_astray_is_met_by_whoever_follows_it() {
    for astray in [
        |_: &Looked, bucket: u64| bucket,
        |looked: &Looked, _: u64| looked.word(ROOT_AT) / 64 * 64,
        |looked: &Looked, _: u64| looked.pool.extents(2)[0].at,
        |looked: &Looked, _: u64| looked.pool.extents(2)[0].at + 64 * 64 - 64,
        |_: &Looked, _: u64| (1 << 48) - 64,
        |_: &Looked, _: u64| ROOT_AT,
    ] {
        for fill in [filled as fn(&Bed) -> _, super::bullet::killed] {
            let mut forger = Forger::of(fill);
            for range in forger.looked.map().buckets {
                let bucket = range.start as u64;
                forger.link(bucket, astray(&forger.looked, bucket));
            }
            let outcome = forger.outcome();
            assert!(outcome.is_ok(), "{outcome:?}");
        }
    }
}
