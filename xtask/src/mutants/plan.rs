//! Planted bugs, as `xtask/mutants/*.txt` describes them.
//!
//! ```text
//! # a comment; blank lines divide
//! mutant: index-before-stamp
//! file: crates/kv/src/viper/commit.rs
//! engine: viper
//! loses: what a reader was shown, in one line
//! -        self.stamp(write, ordered);
//! +        if !MUTANT { self.stamp(write, ordered); }
//! ```
//! Lines with `-` must occur in the file exactly once, as whole lines with any indentation. Lines with `+`
//! replace them. `MUTANT` is true there while the mutant is on, so the sound code stays. Another `file:`
//! switches to another file; lines with `+` directly after it go to the end of that file. `engine:`,
//! `medium:` and `profile:` are arguments of `everdram crashtest`. `by: kill` selects killed servers, where
//! the lab cannot decide; `by: teeth` selects the workloads of `crates/lab/examples/teeth.rs`, which must
//! find the bug; `by: test NAME` a test of the library of the engines, where no run of the lab meets what it
//! takes: the test fails with the bug, and passes without it. `excused:` says why it may survive.

use std::path::Path;

/// What looks for a planted bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    /// The ordinary crash lab.
    #[default]
    Lab,
    /// Killed servers.
    Kill,
    /// A workload of its own in the crash lab.
    Teeth,
    /// A test, which the mutant names.
    Test,
}

/// A planted bug.
#[derive(Debug, Default)]
pub(super) struct Mutant {
    pub(super) name: String,
    pub(super) engine: Option<String>,
    pub(super) medium: Option<String>,
    pub(super) profile: Option<String>,
    pub(super) by: By,
    /// The test, by its whole name.
    pub(super) test: String,
    pub(super) excused: Option<String>,
    /// What the bug loses.
    pub(super) loses: String,
    pub(super) changes: Vec<Change>,
}

/// Lines of a file, and their replacement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) file: String,
    /// Without indentation; none: the end of the file.
    pub(super) find: Vec<String>,
    pub(super) replace: Vec<String>,
}

impl Change {
    /// None yet, of a file.
    fn of(file: &str) -> Change {
        Change {
            file: file.into(),
            find: Vec::new(),
            replace: Vec::new(),
        }
    }
}

/// All mutants: first those with workloads of their own, so that one build contains all of them, then the
/// others file by file.
pub(super) fn all(directory: &Path) -> Result<Vec<Mutant>, String> {
    let listed = std::fs::read_dir(directory);
    let listed = listed.map_err(|error| format!("{}: {error}", directory.display()))?;
    let files = listed.flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .collect();
    files.sort();
    let mut mutants: Vec<Mutant> = Vec::new();
    for path in files {
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|error| at(&error))?;
        for mutant in parse(&text).map_err(|error| at(&error))? {
            if mutants.iter().any(|other| other.name == mutant.name) {
                return Err(at(&format!("`{}`: there is another one", mutant.name)));
            }
            mutants.push(mutant);
        }
    }
    mutants.sort_by_key(|mutant| mutant.by != By::Teeth);
    Ok(mutants)
}

/// The mutants of one file.
fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let (mut mutants, mut file): (Vec<Mutant>, _) = (Vec::new(), String::new());
    // The last line was a `-` line; this `file:` switches to another file.
    let (mut finds, mut begins) = (false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what: &str| Err(format!("line {number}: {what}"));
        let is_first = std::mem::take(&mut begins);
        if let Some(name) = line.strip_prefix("mutant:") {
            mutants.push(Mutant {
                name: name.trim().into(),
                ..Mutant::default()
            });
            file.clear();
        }
        let Some(mutant) = mutants.last_mut() else {
            match line.starts_with('#') || line.trim().is_empty() {
                true => continue,
                false => return wrong("there is no `mutant:` yet"),
            }
        };
        if let Some(found) = line.strip_prefix('-') {
            if !finds {
                mutant.changes.push(Change::of(&file));
            }
            if let Some(change) = mutant.changes.last_mut() {
                change.find.push(found.trim().into());
            }
            finds = true;
            continue;
        }
        finds = false;
        if let Some(replaces) = line.strip_prefix('+') {
            if is_first {
                mutant.changes.push(Change::of(&file));
            }
            match mutant.changes.last_mut() {
                Some(change) => change.replace.push(replaces.into()),
                None => return wrong("`+` without a `-` before it"),
            }
            continue;
        }
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let Some((field, value)) = line.split_once(':') else {
            return wrong("neither a field, nor `-` or `+`");
        };
        let value = value.trim().to_owned();
        match field {
            "mutant" => {}
            "file" => (file, begins) = (value, true),
            "engine" => mutant.engine = Some(value),
            "medium" => mutant.medium = Some(value),
            "profile" => mutant.profile = Some(value),
            "by" if value == "kill" => mutant.by = By::Kill,
            "by" if value == "teeth" => mutant.by = By::Teeth,
            "by" if value.starts_with("test ") => {
                mutant.by = By::Test;
                mutant.test = value.trim_start_matches("test ").to_owned();
            }
            "excused" => mutant.excused = Some(value),
            "loses" => mutant.loses = value,
            _ => return wrong("no such field"),
        }
    }
    mutants.iter().try_for_each(check)?;
    Ok(mutants)
}

/// Refuses an incomplete mutant.
fn check(mutant: &Mutant) -> Result<(), String> {
    let name = &mutant.name;
    let is_kebab = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(is_kebab) {
        return Err(format!("`{name}`: names are small letters and `-`"));
    }
    let switches = |change: &Change| change.replace.iter().any(|line| line.contains("MUTANT"));
    if mutant.loses.is_empty() {
        Err(format!("`{name}`: `loses:` is missing"))
    } else if mutant.changes.iter().any(|change| change.file.is_empty()) {
        Err(format!("`{name}`: `file:` is missing"))
    } else if !mutant.changes.iter().any(switches) {
        Err(format!("`{name}`: nothing in it says MUTANT"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_are_read() {
        let text = "# why\n\nmutant: a-b\nfile: x.rs\nengine: viper\nby: kill\nloses: all\n-  one\n-    two\n+ if MUTANT { one }\n\
                    -three\nfile: y.rs\n-four\n+MUTANT\nfile: y.rs\n+ five\n\nmutant: c\nfile: z.rs\nby: test d::e\nloses: x\nexcused: so\n-f\n+MUTANT\n";
        let mutants = parse(text).unwrap();
        let [first, second] = mutants.as_slice() else {
            panic!("{mutants:?}");
        };
        assert_eq!((first.name.as_str(), first.by), ("a-b", By::Kill));
        assert_eq!(first.engine.as_deref(), Some("viper"));
        let change = |file: &str, find: &[&str], replace: &[&str]| Change {
            file: file.into(),
            find: find.iter().map(|line| (*line).into()).collect(),
            replace: replace.iter().map(|line| (*line).into()).collect(),
        };
        let expected = [
            change("x.rs", &["one", "two"], &[" if MUTANT { one }"]),
            change("x.rs", &["three"], &[]),
            change("y.rs", &["four"], &["MUTANT"]),
            change("y.rs", &[], &[" five"]),
        ];
        assert_eq!(first.changes, expected);
        assert_eq!(second.excused.as_deref(), Some("so"));
        assert_eq!((second.by, &*second.test), (By::Test, "d::e"));
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let whole = "mutant: a\nfile: x\nloses: y\n-z\n+MUTANT\n";
        assert!(parse(whole).is_ok());
        for without in [
            "file: x\n",
            "loses: y\n",
            "-z\n",
            "+MUTANT\n",
            "mutant: a\n",
        ] {
            let text = whole.replace(without, "");
            assert!(parse(&text).is_err(), "{text}");
        }
        assert!(parse(&whole.replace("mutant: a", "mutant: A b")).is_err());
        assert!(parse(&format!("{whole}color: red\n")).is_err());
    }
}
