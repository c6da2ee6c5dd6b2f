//! An initial RAM file system: the files a test machine starts with, as one archive.
//!
//! The format is the kernel's `newc` (see `Documentation/driver-api/early-userspace/buffer-format.rst`
//! there): for each file a header of hexadecimal numbers, its name and its bytes, padded to four. Programs
//! bring their shared libraries, at the same paths, so the machine depends on nothing else of this one.

use super::host;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

/// An archive that is being filled.
#[derive(Default)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Image {
    /// A plain file.
    pub(crate) fn file(&mut self, name: &str, bytes: &[u8]) {
        self.entry(name, FILE, bytes);
    }

    /// A script.
    pub(crate) fn script(&mut self, name: &str, text: &str) {
        self.entry(name, PROGRAM, text.as_bytes());
    }

    /// A program at `name`, without its debug information, and the libraries it is linked with.
    pub(crate) fn program(&mut self, name: &str, from: &Path) -> Result<(), String> {
        for library in libraries(from)? {
            let bytes = host::read(&library)?;
            self.entry(&library.to_string_lossy(), PROGRAM, &bytes);
        }
        self.entry(name, PROGRAM, &stripped(from)?);
        Ok(())
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.append("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// Adds a file and the directories above it. An existing name keeps its file.
    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        let name = name.trim_start_matches('/');
        for (slash, _) in name.match_indices('/') {
            let above = name.get(..slash).unwrap_or_default();
            if self.names.insert(above.to_owned()) {
                self.append(above, DIRECTORY, &[]);
            }
        }
        if self.names.insert(name.to_owned()) {
            self.append(name, mode, bytes);
        }
    }

    fn append(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        let inode = self.names.len();
        let (length, name_length) = (bytes.len(), name.len() + 1);
        // Owner, group and time are root and the epoch; one link, no device.
        let numbers = [
            inode,
            mode as usize,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes
                .extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The shared libraries of a program, including the loader; none if it is static.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .map_err(|error| format!("ldd {}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(missing) = text.lines().find(|line| line.contains("not found")) {
        return Err(format!("{}: {}", program.display(), missing.trim()));
    }
    Ok(text.lines().filter_map(library).collect())
}

/// The path in a line of `ldd`, such as `libc.so.6 => /lib/libc.so.6 (0x7f00)` or `/lib64/ld.so (0x7f00)`.
fn library(line: &str) -> Option<PathBuf> {
    let path = line.rsplit("=>").next()?.split_whitespace().next()?;
    path.starts_with('/').then(|| path.into())
}

/// The bytes of a program, without debug information if there is a `strip`.
fn stripped(program: &Path) -> Result<Vec<u8>, String> {
    if !host::has("strip") {
        return host::read(program);
    }
    let small = host::cache()?.join("stripped");
    let mut strip = Command::new("strip");
    strip
        .arg("--strip-debug")
        .arg("-o")
        .arg(&small)
        .arg(program);
    host::output_of(&mut strip)?;
    let bytes = host::read(&small);
    let _removed = fs::remove_file(&small);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_its_directories_before_its_files_and_each_name_once() {
        let mut image = Image::default();
        image.file("/a/b/c", b"12345");
        image.file("/a/b/c", b"other");
        image.script("a/d", "x");
        let bytes = image.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let at = |name: &str| text.find(&format!("{name}\0")).unwrap();
        assert!(at("a") < at("a/b") && at("a/b") < at("a/b/c") && at("a/d") < at("TRAILER!!!"));
        assert_eq!(text.matches("070701").count(), 5);
        assert!(text.contains("12345") && !text.contains("other"));
    }

    #[test]
    fn libraries_are_read_from_ldd() {
        let path = |line| library(line).map(|path| path.display().to_string());
        assert_eq!(
            path("\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)").as_deref(),
            Some("/lib/x/libc.so.6")
        );
        assert_eq!(
            path("\t/lib64/ld.so.2 (0x00007f)").as_deref(),
            Some("/lib64/ld.so.2")
        );
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(path("\tstatically linked"), None);
    }
}
