//! The commit that the program is built from, for `--version` and for rows of figures: as `EVERDRAM_COMMIT`
//! says, else as the source tree says.
//!
//! It runs again if HEAD moves or a source of the program changes, and then the crate is built anyway, or is
//! at another commit.

mod commit;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-env-changed={NAME}");
    println!("cargo::rerun-if-changed=build");
    let commit = std::env::var(NAME).unwrap_or_else(|_| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let source = commit::of(&root);
        for path in source.watched {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        source.commit
    });
    println!("cargo::rustc-env={NAME}={commit}");
}

const NAME: &str = "EVERDRAM_COMMIT";
