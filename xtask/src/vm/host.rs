//! What the test machine needs from this one: programs, and a folder for its files.

use crate::cargo::target;
use crate::child;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Required programs, and their Debian packages.
const NEEDED: [(&str, &str); 7] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("ndctl", "ndctl"),
    ("busybox", "busybox-static"),
    ("mkfs.ext4", "e2fsprogs"),
    ("depmod", "kmod"),
    ("setpriv", "util-linux"),
    ("ldd", "libc-bin"),
];

/// Limit of a command that [`output_of`] runs; the longest downloads a kernel.
const COMMAND_MAX: Duration = Duration::from_secs(300);

/// Why this machine cannot run a test machine, and what to do about it; `None` if it can.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Some("the test machine is an x86-64 Linux, and so must this one be".into());
    }
    let packages: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !has(program))
        .map(|(_, package)| *package)
        .collect();
    if packages.is_empty() {
        return None;
    }
    Some(format!(
        "missing; apt-get install --no-install-recommends {}",
        packages.join(" ")
    ))
}

/// Whether a program is installed.
pub(crate) fn has(program: &str) -> bool {
    find(program).is_ok()
}

/// The place of a program. Also searches the folders for administrators, which a user's path may lack.
pub(crate) fn find(program: &str) -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(administrators)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| format!("{program} is not installed"))
}

/// The folder below cargo's target directory where the kernel, the archives and the NVDIMMs are kept.
pub(crate) fn cache() -> Result<PathBuf, String> {
    let cache = target().join("vm");
    fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    Ok(cache)
}

/// Makes sure that no other run uses the cache until the returned file is closed.
pub(crate) fn alone() -> Result<File, String> {
    let path = cache()?.join("lock");
    let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(error) => Err(format!(
            "{}: {error}; another run is under way",
            path.display()
        )),
    }
}

/// Reads a file, with its path in the error.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("reading {}: {error}", path.display()))
}

/// Writes a file, with its path in the error.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("writing {}: {error}", path.display()))
}

/// Runs a command to its end and returns its output. An error contains the command's error output.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let output = child::output(command, COMMAND_MAX).map_err(|error| format!("{shown} {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = complaint.lines().rev().take(5).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(format!(
        "{shown} failed ({}): {}",
        output.status,
        last.join("\n")
    ))
}
