//! A directory that a stock redis-server (7.0 or later) starts from: a base of commands, an empty increment,
//! and their manifest.
//!
//! Invariant: the manifest appears last, and only when everything it names is on the disk. Without it no
//! redis-server takes the directory for a whole one.

use anyhow::{Context, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The directory, being written.
pub(crate) struct Directory {
    /// Absolute, without links.
    path: PathBuf,
    name: String,
    base: File,
}

impl Directory {
    /// Begins in the directory `path`, which is made if it is missing, and must be empty. `name` is what
    /// Redis calls `appendfilename`.
    pub(crate) fn create(path: &Path, name: &str) -> anyhow::Result<Directory> {
        if !path.exists() {
            std::fs::create_dir(path)?;
        }
        let is_empty = std::fs::read_dir(path)?.next().is_none();
        ensure!(
            is_empty,
            "it is not empty: name a directory that is missing or empty"
        );
        let path = std::fs::canonicalize(path)?;
        ensure!(path.file_name().is_some(), "a directory without a name");
        let base = create(&path.join(format!("{name}.1.base.aof")))?;
        Ok(Directory {
            path,
            name: name.to_owned(),
            base,
        })
    }

    /// The file that takes the commands.
    pub(crate) fn base(&self) -> anyhow::Result<File> {
        Ok(self.base.try_clone()?)
    }

    /// Makes everything durable, the manifest last.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        let Directory { path, name, base } = self;
        base.sync_all()?;
        create(&path.join(format!("{name}.1.incr.aof")))?.sync_all()?;
        let unfinished = path.join(format!("temp-{name}.manifest"));
        let mut manifest = create(&unfinished)?;
        write!(
            manifest,
            "file {name}.1.base.aof seq 1 type b\nfile {name}.1.incr.aof seq 1 type i\n"
        )?;
        manifest.sync_all()?;
        // The names of the files before the name that leads to them.
        File::open(path)?.sync_all()?;
        std::fs::rename(&unfinished, path.join(format!("{name}.manifest")))?;
        File::open(path)?.sync_all()?;
        if let Some(above) = path.parent() {
            File::open(above)?.sync_all()?;
        }
        Ok(())
    }

    /// The command that starts a redis-server with it.
    pub(crate) fn start(&self) -> String {
        let above = self.path.parent().unwrap_or(Path::new("/"));
        let own = self.path.file_name().unwrap_or_default();
        format!(
            "redis-server --dir {} --appenddirname {} --appendfilename {} --appendonly yes",
            quoted(&above.to_string_lossy()),
            quoted(&own.to_string_lossy()),
            self.name
        )
    }
}

/// Checks what Redis would call `appendfilename`.
pub(crate) fn parse_name(name: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    match begins_well && name.len() <= 200 && name.bytes().all(is_plain) {
        true => Ok(name.to_owned()),
        false => {
            Err("1 to 200 of A-Z, a-z, 0-9, `.`, `_`, `-`, a letter or digit first".to_owned())
        }
    }
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create_new(path).with_context(|| format!("file {}", path.display()))
}

/// The text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_words_are_quoted() {
        assert_eq!(
            parse_name("appendonly.aof").as_deref(),
            Ok("appendonly.aof")
        );
        for name in ["", "a/b", ".hidden", "-x", "a b", "a\"b", "\u{e9}"] {
            assert!(parse_name(name).is_err(), "{name}");
        }
        assert_eq!(quoted("/var/lib/a-b"), "/var/lib/a-b");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
    }
}
