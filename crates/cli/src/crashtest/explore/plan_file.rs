//! The file that a plan is saved to.
//!
//! No other plan is ever overwritten: if its name is taken, a file gets a number. What is in it is replaced
//! whole or not at all, so that a process that is ended meanwhile leaves one plan or the other.

use anyhow::Context;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Plans of one name that a directory may hold.
const NUMBERS: u32 = 1000;

/// A plan that was saved.
#[derive(Debug)]
pub(super) struct PlanFile {
    directory: PathBuf,
    stem: String,
    path: PathBuf,
}

impl PlanFile {
    /// Saves a plan as `STEM.plan` or, if that is another one, `STEM-2.plan` and so on.
    pub(super) fn create(directory: &Path, stem: &str, text: &str) -> anyhow::Result<PlanFile> {
        for path in names(directory, stem) {
            match write_new(&path, text) {
                Ok(()) => {}
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("saving {}", path.display()));
                }
                Err(_) if holds(&path, text) => {}
                Err(_) => continue,
            }
            return Ok(PlanFile {
                directory: directory.to_owned(),
                stem: stem.to_owned(),
                path,
            });
        }
        anyhow::bail!(
            "saving {}: there are {NUMBERS} plans of that name; remove some",
            directory.join(stem).display()
        )
    }

    /// Saves another plan in its place. If one of the files before it holds that already, then that one is
    /// it.
    pub(super) fn replace(&mut self, text: &str) -> anyhow::Result<()> {
        let saving = || format!("saving {}", self.path.display());
        let mut before = names(&self.directory, &self.stem).take_while(|path| *path != self.path);
        if let Some(same) = before.find(|path| holds(path, text)) {
            std::fs::remove_file(&self.path)
                .with_context(|| format!("removing {}", self.path.display()))?;
            self.path = same;
            return Ok(());
        }
        let part = self.path.with_extension("plan.part");
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, &self.path))
            .inspect_err(|_| drop(std::fs::remove_file(&part)))
            .with_context(saving)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn names(directory: &Path, stem: &str) -> impl Iterator<Item = PathBuf> {
    (1..=NUMBERS).map(move |number| match number {
        1 => directory.join(format!("{stem}.plan")),
        _ => directory.join(format!("{stem}-{number}.plan")),
    })
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
        .inspect_err(|_| drop(std::fs::remove_file(path)))
}

fn holds(path: &Path, text: &str) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(directory: &Path) -> Vec<(String, String)> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    fn file(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn another_plan_stays_and_the_same_one_is_kept_once() {
        let directory = tempfile::tempdir().unwrap();
        let save = |long: &str, short: &str| {
            let mut saved = PlanFile::create(directory.path(), "crash", long).unwrap();
            saved.replace(short).unwrap();
            assert_eq!(std::fs::read_to_string(saved.path()).unwrap(), short);
        };
        save("one, long", "one");
        assert_eq!(files(directory.path()), [file("crash.plan", "one")]);
        save("two, long", "two");
        let both = [file("crash-2.plan", "two"), file("crash.plan", "one")];
        assert_eq!(files(directory.path()), both);
        save("one, long", "one");
        save("two, long", "two");
        assert_eq!(files(directory.path()), both);
    }

    #[test]
    fn what_is_there_stays_if_nothing_can_take_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let mut saved = PlanFile::create(directory.path(), "crash", "long").unwrap();
        // In the way of the file that is to be renamed.
        std::fs::create_dir(directory.path().join("crash.plan.part")).unwrap();
        let error = saved.replace("short").unwrap_err();
        assert!(format!("{error:#}").contains("crash.plan"), "{error:#}");
        assert_eq!(std::fs::read_to_string(saved.path()).unwrap(), "long");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = PlanFile::create(Path::new("not-there"), "crash", "text").unwrap_err();
        assert!(format!("{error:#}").starts_with("saving not-there/crash.plan: "));
    }
}
