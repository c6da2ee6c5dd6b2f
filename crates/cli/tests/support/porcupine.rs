//! The first opinion: the Go program in `tools/linearizability`, which asks Porcupine.

use super::history::{self, Operation};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/linearizability");

/// The program, built once; or why it cannot be.
fn program() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(build).clone()
}

fn build() -> Result<PathBuf, String> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("linearizability");
    let mut reason = "no Go toolchain (`go`) is here".to_owned();
    // Where `go` is if it is not on the path: where its own installer puts it.
    for go in ["go", "/usr/local/go/bin/go"] {
        let built = Command::new(go)
            .args(["build", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(TOOL)
            .output();
        match built {
            Ok(output) if output.status.success() => return Ok(program),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                reason = format!("`go build` in tools/linearizability failed: {text}");
            }
            Err(_) => {}
        }
    }
    Err(reason)
}

/// Whether Porcupine finds the history linearizable; `None`, and why, if it cannot be asked. What it said is
/// printed. The history and the picture of a violation are left in `directory`.
pub(crate) fn check(history: &[Operation], directory: &Path, name: &str) -> Option<bool> {
    let program = match program() {
        Ok(program) => program,
        Err(reason) => {
            println!("SKIPPED: Porcupine was not asked about `{name}`: {reason}");
            return None;
        }
    };
    let lines = directory.join(format!("{name}.jsonl"));
    history::write(history, &lines).unwrap();
    let picture = directory.join(format!("{name}.html"));
    let output = Command::new(program)
        .arg("-html")
        .arg(picture)
        .arg(lines)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("porcupine on `{name}`: {}", said.trim().replace('\n', "; "));
    match output.status.code() {
        Some(0) => Some(true),
        Some(1) => Some(false),
        _ => panic!("{said}{}", String::from_utf8_lossy(&output.stderr)),
    }
}
