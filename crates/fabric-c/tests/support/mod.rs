//! A C compiler, and this crate as C programs link with it. Not every test file uses all of it.
#![allow(dead_code, reason = "each test file is a crate of its own")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A C compiler.
pub(crate) struct Compiler;

impl Compiler {
    /// `None`, after a line that says so: there is none.
    pub(crate) fn find() -> Option<Compiler> {
        match Command::new("cc").arg("--version").output() {
            Ok(_) => Some(Compiler),
            Err(error) => {
                println!("skipped: no C compiler: {error}");
                None
            }
        }
    }

    /// Compiles a program against the header, without a warning.
    pub(crate) fn compile(&self, source: &Path, program: &Path, more: &[&str]) {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let out = Command::new("cc")
            .args([
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-g",
            ])
            .arg("-I")
            .arg(include)
            .arg("-o")
            .arg(program)
            .arg(source)
            .args(more)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
    }
}

/// The library that Cargo has built beside the tests, by the end of its name.
pub(crate) fn library(end: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let directory = test.parent().unwrap();
    let path = directory.join(format!("libeverdram_fabric_c.{end}"));
    assert!(path.exists(), "Cargo has not built {}", path.display());
    path
}
