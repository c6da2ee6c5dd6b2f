//! `everdram bench figure` as a script sees it: rows that read back and whose figures fit each other, a
//! picture, a page, exit codes.

mod bullet;
mod dstore;
mod ndhedis;
mod rdmp;
mod small;
mod viper;

use everdram_bench::row;
use small::bench;

#[test]
fn rows_can_be_had_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--records 1k --seconds 0.02 --rounds 1 --threads 1 --writes 2 --systems +wrc --log-bytes 64KiB --json";
    let arguments: Vec<&str> = line.split(' ').collect();
    let output = bench("bullet-5", dir.path(), dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0));
    let rows = row::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let [row] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    assert_eq!((row.subject.as_str(), row.number("writes")), ("+wrc", 2.0));
}

#[test]
fn what_cannot_be_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = bench("bullet-5", dir.path(), dir.path(), arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = run(&["--systems", "redis"]);
    assert!(code == Some(2) && error.contains("+wrc"), "{error}");
    assert_eq!(run(&["--threads", "0"]).0, Some(2));
    let output = bench(
        "dstore-8",
        dir.path(),
        dir.path(),
        &["--systems", "rocksdb"],
    );
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && error.contains("--features rivals"),
        "{error}"
    );
    let (code, error) = run(&["--records", "1G"]);
    assert!(code == Some(1) && error.contains("MiB are free"), "{error}");
}
