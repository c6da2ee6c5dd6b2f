//! The workspace's place, its build directory, and the `cargo` that builds it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The directory where cargo puts its output.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target)
}

/// The `cargo` that runs this program, at the root. The fuzzing targets are a workspace of their own. They
/// share the build directory, so that both use the same dependencies.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target());
    command
}

/// The `cargo` that understands `+nightly`: rustup's, not the one of a toolchain.
pub(crate) fn rustup_cargo() -> Command {
    let mut command = Command::new("cargo");
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target())
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}
