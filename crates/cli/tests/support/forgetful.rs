//! A server that keeps nothing: whoever judges servers must find it out.

use everdram_cli::killing::process::Launch;
use std::path::Path;
use std::process::Command;

/// The same server with a memory of its own process only: each start makes a new pool in place of the old
/// one. The program that does so is put into `directory`.
pub(crate) fn forgetful(launch: Launch, directory: &Path) -> Launch {
    let script = directory.join("forgetful");
    let (pool, program) = (launch.pool.display(), launch.program.display());
    let text = format!("#!/bin/sh\nrm -rf '{pool}'\nexec '{program}' \"$@\"");
    // A shell writes it. If this process did, a child that another thread forks could keep the file open
    // for writing, and such a file cannot be run.
    let write = r#"printf '%s\n' "$2" >"$1" && chmod +x "$1""#;
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", write, "sh"]).arg(&script).arg(text);
    assert!(shell.status().unwrap().success());
    Launch {
        program: script,
        ..launch
    }
}
