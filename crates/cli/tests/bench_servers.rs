//! `everdram bench servers` starts this program on both kinds of medium, and every reply is right.
#![forbid(unsafe_code)]

use everdram_bench::{Metric, row};
use std::process::Command;

#[test]
fn everdram_is_measured_on_both_media() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_everdram"))
        .args([
            "bench", "servers", "--only", "everdram", "--no-pin", "--json", "-",
        ])
        .args(["--dir", place, "--emulated-dir", place])
        .args([
            "--keys",
            "300",
            "--value",
            "200,20000",
            "--connections",
            "4",
        ])
        .args(["--pipeline", "3", "--seconds", "0.05", "--repeat", "1"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let rows = row::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
    // Two commands, two sizes, two media.
    assert_eq!(rows.len(), 8, "{errors}");
    for row in &rows {
        assert!(row.is_own() && row.is_durable(), "{row:?}");
        assert!(row.get(Metric::Operations).median >= 12.0, "{row:?}");
    }
    for medium in ["emulated", "file"] {
        let on_medium = rows.iter().filter(|row| row.say("medium") == medium);
        assert_eq!(on_medium.count(), 4);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
