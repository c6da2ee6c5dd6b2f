//! Flipped bytes: an error or a tail cut off, never a wrong image.

use super::{Bench, DATA};
use crate::checksum::Secret;
use crate::error::Error;
use crate::log::frame::{Header, entry_header};
use crate::log::run::LOOKS;

/// As many batches as a segment of the tests has blocks.
const BATCHES: u64 = 4;

/// Writes a small log, each batch synced before the next; returns the files' bytes.
fn write_log(bench: &Bench) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let open = bench.open().unwrap();
    let mut group = open.log.group();
    for value in 1..=BATCHES {
        open.line(&mut group, DATA + value * 64, value);
        open.word(&mut group, DATA, value);
        open.log.wait(group.close()).unwrap();
    }
    drop(group);
    drop(open);
    bench.faults.crash(0).unwrap();
    std::fs::read_dir(bench.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect()
}

/// The number of batches that the image shows; it must show exactly those.
fn batches(open: &super::Open) -> u64 {
    let shown = open.region.load_word(DATA);
    for value in 1..=BATCHES {
        let expected = if value <= shown { value } else { 0 };
        assert_eq!(
            open.region.load_word(DATA + value * 64),
            expected,
            "batch {value} of {shown}"
        );
    }
    shown
}

#[test]
fn each_flipped_byte_is_an_error_or_cuts_the_last_batch() {
    let bench = Bench::new(64 << 10);
    let files = write_log(&bench);
    let (path, sound) = files
        .iter()
        .find(|(path, _)| path.ends_with("log-000000"))
        .unwrap();
    let (mut errors, mut cut, mut harmless) = (0, 0, 0);
    let used = (0..sound.len()).filter(|at| at % 4096 < 320);
    for at in used {
        for (path, bytes) in &files {
            std::fs::write(path, bytes).unwrap();
        }
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(path, &bytes).unwrap();
        match bench.open() {
            Err(Error::Corrupt {
                path: named,
                offset,
                ..
            }) => {
                assert_eq!(&named, path);
                assert_eq!(offset, at as u64 / 4096 * 4096, "flipped {at}");
                assert_eq!(
                    std::fs::read(path).unwrap(),
                    bytes,
                    "a damaged log was changed"
                );
                errors += 1;
            }
            Err(other) => panic!("flipped {at}: {other}"),
            Ok(open) => match batches(&open) {
                BATCHES => harmless += 1,
                shown => {
                    assert_eq!(shown, BATCHES - 1, "flipped {at}");
                    cut += 1;
                }
            },
        }
    }
    println!("{errors} errors, {cut} cut, {harmless} harmless");
    assert!(errors > 500 && cut > 100 && harmless > 100);
}

/// A frame with one line of `value` for image offset `at`, and its checksum.
fn frame(lsn: u64, chain: u64, at: u64, value: u64) -> (Vec<u8>, u64) {
    frame_of(1, lsn, chain, at, value)
}

/// As [`frame`], of incarnation `incarnation`.
fn frame_of(incarnation: u64, lsn: u64, chain: u64, at: u64, value: u64) -> (Vec<u8>, u64) {
    let mut bytes = vec![0; 64];
    bytes.extend(entry_header(at, 64));
    bytes.extend(value.to_le_bytes());
    bytes.extend([0; 56]);
    let header = Header {
        lsn,
        body_bytes: 80,
        durable: 0,
        incarnation,
        chain,
    };
    let sum = header.seal(&mut bytes, &Secret::expand(&[7; 32]));
    (bytes, sum)
}

/// The image after recovery of a log with one frame at position 0 and this one at 4096.
fn recovered_with(second: impl Fn(u64) -> Vec<u8>) -> Result<[u64; 2], Error> {
    let bench = Bench::new(64 << 10);
    let (mut bytes, sum) = frame(0, 0, DATA, 1);
    bytes.resize(4096, 0);
    bytes.extend(second(sum));
    std::fs::write(bench.path().join("log-000000"), bytes).unwrap();
    let open = bench.open()?;
    Ok([
        open.region.load_word(DATA),
        open.region.load_word(DATA + 64),
    ])
}

#[test]
fn only_a_frame_that_continues_the_chain_is_applied() {
    assert_eq!(
        recovered_with(|sum| frame(4096, sum, DATA + 64, 2).0).unwrap(),
        [1, 2]
    );
    assert_eq!(
        recovered_with(|sum| frame(4096, sum ^ 1, DATA + 64, 2).0).unwrap(),
        [1, 0]
    );
    assert_eq!(
        recovered_with(|sum| frame(8192, sum, DATA + 64, 2).0).unwrap(),
        [1, 0]
    );
}

/// A batch was torn such that one of its later frames lay where the next checkpoint would end.
#[test]
fn a_leftover_of_a_torn_batch_never_comes_back() {
    let bench = Bench::new(64 << 10);
    let (mut bytes, sum) = frame(0, 0, DATA, 1);
    bytes.resize(8192, 0);
    bytes.extend(frame(8192, sum ^ 1, DATA + 64, 9).0);
    std::fs::write(bench.path().join("log-000000"), bytes).unwrap();
    let open = bench.open().unwrap();
    let mut group = open.log.group();
    open.line(&mut group, DATA, 2);
    open.log.wait(group.close()).unwrap();
    open.log.checkpoint().unwrap();
    assert_eq!(
        open.log
            .shared
            .checkpoint_lsn
            .load(std::sync::atomic::Ordering::Relaxed),
        8192
    );
    drop(group);
    drop(open);
    let open = bench.open().unwrap();
    assert_eq!(
        [
            open.region.load_word(DATA),
            open.region.load_word(DATA + 64)
        ],
        [2, 0]
    );
}

/// A crash lost a sector of a frame (found by the crash lab). The next process wrote its first batch over
/// that frame, with the same bytes (mostly zeros) in that sector, and lost the first sector of its batch. The
/// frame was then complete, and writes came back that recovery had ruled out.
#[test]
fn what_a_torn_frame_lacks_may_come_later() {
    let (first, sum) = frame(0, 0, DATA, 1);
    let lines = 64 * 12;
    for lsn in [4096, first.len() as u64] {
        let bench = Bench::new(64 << 10);
        let path = bench.path().join("log-000000");
        let mut torn = vec![0; 64];
        torn.extend(entry_header(DATA + 64, lines));
        torn.resize(80 + lines as usize, 5);
        let header = Header {
            lsn,
            body_bytes: 16 + lines,
            durable: 0,
            incarnation: 1,
            chain: sum,
        };
        header.seal(&mut torn, &Secret::expand(&[7; 32]));
        let missing = torn.split_off(512);
        let mut bytes = first.clone();
        bytes.resize(lsn as usize, 0);
        bytes.extend(&torn);
        std::fs::write(&path, bytes).unwrap();
        let shown = || {
            let open = bench.open().unwrap();
            [DATA, DATA + 64].map(|at| open.region.load_word(at))
        };
        assert_eq!(shown(), [1, 0], "torn at {lsn}");
        let mut bytes = std::fs::read(&path).unwrap();
        let from = lsn as usize + 512;
        bytes[from..from + missing.len()].copy_from_slice(&missing);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(shown(), [1, 0], "completed at {lsn}");
    }
}

#[test]
fn an_entry_that_leads_outside_the_image_is_an_error() {
    for at in [0, DATA - 64, 64 << 10, u64::MAX - 63, DATA + 1] {
        let outcome = recovered_with(|sum| frame(4096, sum, at, 2).0);
        assert!(
            matches!(outcome, Err(Error::Corrupt { offset: 4160, .. })),
            "{at}: {outcome:?}"
        );
    }
}

/// An older image beside a newer log, as a careless restore leaves them; found by fuzzing with a forged
/// frame. Recovery applied groups of a later incarnation. The next recovery then silently skipped everything
/// acknowledged afterwards, since a run never continues with an earlier incarnation.
#[test]
fn groups_of_an_incarnation_that_never_was_are_an_error() {
    let outcome = recovered_with(|sum| frame_of(2, 4096, sum, DATA + 64, 2).0);
    assert!(
        matches!(outcome, Err(Error::Corrupt { offset: 4096, .. })),
        "{outcome:?}"
    );
}

/// A frame that verifies and says that the log was durable far beyond it, found by fuzzing: recovery rounded
/// that position up and overflowed.
#[test]
fn a_frame_from_before_its_own_time_is_none() {
    let outcome = recovered_with(|sum| {
        let (mut bytes, _) = frame(4096, sum, DATA + 64, 2);
        let header = Header {
            durable: u64::MAX - 5,
            ..Header::parse_unverified(&bytes).unwrap()
        };
        header.seal(&mut bytes, &Secret::expand(&[7; 32]));
        bytes
    });
    assert_eq!(outcome.unwrap(), [1, 0]);
}

/// A block that was written to the wrong file, found by fuzzing. Recovery took a frame of the first segment
/// from the file of the second. The log continued in that file, and wrote over an acknowledged group.
#[test]
fn a_segment_does_not_lie_in_two_files() {
    let bench = Bench::new(64 << 10);
    let (first, sum) = frame(0, 0, DATA, 1);
    let (second, _) = frame(4096, sum, DATA + 64, 2);
    std::fs::write(bench.path().join("log-000000"), first).unwrap();
    let astray = [vec![0; 4096], second].concat();
    std::fs::write(bench.path().join("log-000001"), astray).unwrap();
    let open = bench.open().unwrap();
    let shown = [DATA, DATA + 64].map(|at| open.region.load_word(at));
    assert_eq!(shown, [1, 0]);
}

/// A value that is itself a piece of the log, found by fuzzing. A block of a group began with the bytes of a
/// frame; recovery took it for a leftover and wiped it, so that the next recovery refused the log. If that
/// frame said that more had been durable, the first recovery failed.
#[test]
fn what_a_group_stores_is_no_frame() {
    let bench = Bench::new(64 << 10);
    let later = 3 * bench.segment_bytes;
    for (lsn, durable) in [(4096, 0), (later + 4096, later)] {
        let (mut inner, _) = frame(lsn, 77, DATA + 64, 2);
        let header = Header {
            durable,
            ..Header::parse_unverified(&inner).unwrap()
        };
        header.seal(&mut inner, &Secret::expand(&[7; 32]));
        let lines = 64 * 100;
        let mut outer = vec![0; 64];
        outer.extend(entry_header(DATA, lines));
        outer.resize(4096, 0);
        outer.extend(&inner);
        outer.resize(80 + lines as usize, 5);
        let header = Header {
            lsn: 0,
            body_bytes: 16 + lines,
            durable: 0,
            incarnation: 1,
            chain: 0,
        };
        header.seal(&mut outer, &Secret::expand(&[7; 32]));
        std::fs::write(bench.path().join("log-000000"), outer).unwrap();
        for opening in 0..2 {
            let open = bench.open().unwrap();
            let last = open.region.load_word(DATA + lines - 8);
            assert_eq!(last, u64::from_le_bytes([5; 8]), "opening {opening}");
        }
    }
}

#[test]
fn a_missing_segment_with_acknowledged_groups_is_an_error() {
    let bench = Bench::new(64 << 10);
    let open = bench.open().unwrap();
    let mut group = open.log.group();
    let hold = open.log.shared.checkpointing.lock();
    for value in 1..=12 {
        open.line(&mut group, DATA, value);
        open.log.wait(group.close()).unwrap();
    }
    drop(hold);
    drop(group);
    drop(open);
    bench.faults.crash(0).unwrap();
    let first = bench.path().join("log-000000");
    let kept = std::fs::read(&first).unwrap();
    std::fs::remove_file(&first).unwrap();
    assert!(matches!(bench.open(), Err(Error::Corrupt { .. })));
    std::fs::write(&first, &kept[..5000]).unwrap();
    assert!(matches!(bench.open(), Err(Error::Corrupt { .. })));
    std::fs::write(&first, [&kept[..], &[0]].concat()).unwrap();
    assert!(matches!(bench.open(), Err(Error::Corrupt { .. })));
    std::fs::write(&first, &kept).unwrap();
    assert_eq!(bench.open().unwrap().region.load_word(DATA), 12);
}

/// How often recovery looks at a frame or a file of a log of `batches` batches.
fn looks(batches: u64) -> u64 {
    let bench = Bench::new(64 << 10);
    let mut chain = 0;
    let mut file = Vec::new();
    for batch in 0..batches {
        let (bytes, sum) = frame(batch * 4096, chain, DATA, batch + 1);
        chain = sum;
        file.extend(bytes);
        file.resize(file.len().next_multiple_of(4096), 0);
        if file.len() as u64 == bench.segment_bytes || batch + 1 == batches {
            let name = format!("log-{:06}", batch * 4096 / bench.segment_bytes);
            std::fs::write(bench.path().join(name), std::mem::take(&mut file)).unwrap();
        }
    }
    let before = LOOKS.get();
    let open = bench.open().unwrap();
    assert_eq!(open.region.load_word(DATA), batches);
    LOOKS.get() - before
}

/// Recovery searched each batch among all frames, and each frame's file among all files: a log of 124 000
/// batches took 5.6 s to open, and half as many took a quarter of that.
#[test]
fn opening_is_linear_in_log_batches() {
    for batches in [10, 100, 1000] {
        let looks = looks(batches);
        assert!(
            looks >= batches && looks <= 6 * batches,
            "{looks} looks at {batches} batches"
        );
    }
}

#[test]
fn random_files_are_no_log_and_no_trouble() {
    use rand::{RngExt, SeedableRng};
    for seed in 0..50 {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let bench = Bench::new(64 << 10);
        for number in 0..3 {
            let bytes: Vec<u8> = (0..random.random_range(0..20_000))
                .map(|_| random.random())
                .collect();
            std::fs::write(bench.path().join(format!("log-{number:06}")), bytes).unwrap();
        }
        if let Ok(open) = bench.open() {
            assert_eq!(open.region.load_word(DATA), 0, "seed {seed}");
        }
    }
}
