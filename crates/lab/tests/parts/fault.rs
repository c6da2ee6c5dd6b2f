//! What goes wrong with a disk.

use everdram_lab::fault::Faults;
use everdram_pm::lab::{Answer, DiskEvent, Errno, FileId};

fn write(faults: &Faults, file: u32, at: u64, bytes: usize) -> Answer {
    faults.answer(&DiskEvent::Write {
        file: FileId(file),
        at,
        bytes: &vec![1; bytes],
    })
}

const FULL: Answer = Answer::Fail(Errno::NOSPC);

/// What there was room for is there, in whole sectors, and takes the room.
#[test]
fn a_write_that_meets_a_full_disk_leaves_a_prefix() {
    let faults = Faults::default();
    assert_eq!(write(&faults, 0, 0, 1 << 20), Answer::Go);
    faults.room(1700);
    // What is there already needs no room.
    assert_eq!(write(&faults, 0, 512, 4096), Answer::Go);
    assert_eq!(write(&faults, 1, 0, 512), Answer::Go);
    let cut = |bytes| Answer::FailAfter(bytes, Errno::NOSPC);
    assert_eq!(write(&faults, 1, 256, 4096), cut(512 + 768));
    assert_eq!(write(&faults, 2, 0, 200), FULL);
    assert_eq!(write(&faults, 2, 0, 100), Answer::Go);
    assert_eq!(write(&faults, 1, 1536, 4096), FULL);
    assert_eq!(faults.struck(), 3);
}

#[test]
fn room_is_not_allocated_by_halves() {
    let faults = Faults::default();
    faults.room(1000);
    let allocate = |bytes| {
        faults.answer(&DiskEvent::Allocate {
            file: FileId(0),
            at: 0,
            bytes,
        })
    };
    assert_eq!(allocate(1024), FULL);
    assert_eq!(allocate(1000), Answer::Go);
    assert_eq!(allocate(1001), FULL);
}

#[test]
fn one_sync_fails() {
    let faults = Faults::default();
    let sync = || faults.answer(&DiskEvent::SyncDirectory { folder: "" });
    assert_eq!(sync(), Answer::Go);
    faults.fail_sync_after(1);
    let said = [sync(), sync(), sync(), sync()];
    assert_eq!(
        said,
        [Answer::Go, Answer::Fail(Errno::IO), Answer::Go, Answer::Go]
    );
    assert_eq!(faults.struck(), 1);
}
