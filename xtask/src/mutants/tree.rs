//! A copy of the source tree with mutants in it, all at once, and the programs built from it.
//!
//! Mutants that change the same lines are in different *layers*, each a build of its own; mostly there is one
//! layer. Unchanged files are not written again, so that cargo builds no more than it must.

use super::plan::{By, Mutant};
use crate::cargo::{cargo, root, target};
use crate::child;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Limit for building the program with all its dependencies.
const BUILD_MAX: Duration = Duration::from_secs(3600);
const LIST_MAX: Duration = Duration::from_secs(60);

/// The environment variable that turns a mutant on by its name. Its name does not begin with the project's
/// name, since the program removes such variables from the environment of its servers.
pub(super) const CHOICE: &str = "MUTANT_OF_EVERDRAM";

/// The place of a change: a file and its lines.
type Place = (String, Range<usize>);

/// The mutants in one program, by number.
pub(super) type Layer = Vec<usize>;

/// The directory of all copies.
pub(super) fn directory() -> PathBuf {
    target().join("mutants")
}

/// The program with the mutants of a layer that is asked where they are looked for `by` this.
pub(super) fn program(layer: usize, by: By) -> PathBuf {
    let name = match by {
        By::Lab | By::Kill | By::Test => "everdram",
        By::Teeth => "teeth",
    };
    directory().join(format!("{name}-{layer}"))
}

/// Groups the mutants into layers.
///
/// # Errors
/// A change that does not fit the tree: the mutant, and the reason.
pub(super) fn layers(mutants: &[Mutant]) -> Result<Vec<Layer>, String> {
    let mut layers: Vec<(Layer, Vec<Place>)> = Vec::new();
    let mut texts = BTreeMap::new();
    for (number, mutant) in mutants.iter().enumerate() {
        let places = places(mutant, &mut texts)?;
        let clashes = |taken: &[Place]| {
            let touches = |one: &Place, other: &Place| {
                one.0 == other.0 && one.1.start < other.1.end && other.1.start < one.1.end
            };
            let clash = |place| taken.iter().any(|other| touches(place, other));
            places.iter().any(clash)
        };
        match layers.iter_mut().find(|(_, taken)| !clashes(taken)) {
            Some((layer, taken)) => {
                layer.push(number);
                taken.extend(places);
            }
            None => layers.push((vec![number], places)),
        }
    }
    Ok(layers.into_iter().map(|(layer, _)| layer).collect())
}

/// The places of a mutant's changes.
fn places(mutant: &Mutant, texts: &mut BTreeMap<String, String>) -> Result<Vec<Place>, String> {
    let mut places: Vec<Place> = Vec::new();
    for change in &mutant.changes {
        let wrong = |what: &str| format!("`{}`: {}: {what}", mutant.name, change.file);
        if !texts.contains_key(&change.file) {
            let text = fs::read_to_string(root().join(&change.file));
            let text = text.map_err(|error| wrong(&error.to_string()))?;
            texts.insert(change.file.clone(), text);
        }
        let text = texts.get(&change.file).map_or("", String::as_str);
        let end = text.lines().count();
        let place = match change.find.is_empty() {
            true => Ok(end..end),
            false => find(text, &change.find),
        };
        let place = place.map_err(|count| {
            let first = change.find.first().map_or("", String::as_str);
            wrong(&format!(
                "what begins with `{first}` is there {count} times"
            ))
        })?;
        places.push((change.file.clone(), place));
    }
    Ok(places)
}

/// Finds these lines in a text, with any indentation. An error gives the number of occurrences if it is not
/// one.
fn find(text: &str, lines: &[String]) -> Result<Range<usize>, usize> {
    let all: Vec<&str> = text.lines().map(str::trim).collect();
    let is_here = |at: &usize| {
        all[*at..]
            .iter()
            .zip(lines)
            .all(|(line, wanted)| line == wanted)
    };
    let last = (all.len() + 1).saturating_sub(lines.len());
    let mut found = (0..last).filter(is_here);
    match (found.next(), found.count()) {
        (Some(at), 0) => Ok(at..at + lines.len()),
        (None, _) => Err(0),
        (Some(_), more) => Err(1 + more),
    }
}

/// Builds the programs of a layer that look for mutants `by` these. Hides cargo's warnings about the
/// generated code, unless the build fails.
pub(super) fn build(
    mutants: &[Mutant],
    layer: &Layer,
    number: usize,
    by: &[By],
) -> Result<(), String> {
    let tree = directory().join("tree");
    lay_out(mutants, layer, &tree)?;
    let built = directory().join("target");
    let mut command = cargo();
    command.args(["build", "--quiet", "--profile", "lab"]);
    let mut programs = Vec::new();
    if by.iter().any(|by| matches!(by, By::Lab | By::Kill)) {
        command.args(["-p", "everdram-cli", "--bin", "everdram"]);
        programs.push(("everdram", By::Lab));
    }
    if by.contains(&By::Teeth) {
        command.args(["-p", "everdram-lab", "--example", "teeth"]);
        programs.push(("examples/teeth", By::Teeth));
    }
    if programs.is_empty() {
        // A test is built when it is run.
        return Ok(());
    }
    command.current_dir(&tree).env("CARGO_TARGET_DIR", &built);
    let output = child::output(&mut command, BUILD_MAX);
    let output = output.map_err(|trouble| format!("the build {trouble}"))?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return Err("the tree with mutants does not build".into());
    }
    programs.into_iter().try_for_each(|(name, by)| {
        let (from, to) = (built.join("lab").join(name), program(number, by));
        let copied = fs::copy(&from, &to).map(drop);
        copied.map_err(|error| format!("{}: {error}", to.display()))
    })
}

/// Runs a test of the library of the engines in the tree that was laid out last.
pub(super) fn test(name: &str) -> Command {
    let mut command = cargo();
    command.args("test --package everdram --lib -- --exact".split(' '));
    command.arg(name).current_dir(directory().join("tree"));
    command.env("CARGO_TARGET_DIR", directory().join("target"));
    command
}

/// Copies the tree with the mutants of a layer.
fn lay_out(mutants: &[Mutant], layer: &Layer, tree: &Path) -> Result<(), String> {
    let mutated = mutated(mutants, layer)?;
    let of = |file: &String| file.split_once("/src/").map(|(of, _)| of.to_owned());
    let crates: BTreeSet<String> = mutated.keys().filter_map(of).collect();
    let mut kept = BTreeSet::new();
    for file in sources()? {
        let mut bytes = match mutated.get(&file) {
            Some(text) => text.clone().into_bytes(),
            None => match fs::read(root().join(&file)) {
                Ok(bytes) => bytes,
                // Deleted without telling git.
                Err(_) => continue,
            },
        };
        let of = file.strip_suffix("/src/lib.rs");
        if of.is_some_and(|of| crates.contains(of)) {
            bytes.extend_from_slice(b"\nmod mutant;\n");
        }
        write(&tree.join(&file), &bytes)?;
        kept.insert(tree.join(&file));
    }
    let switch = switch(mutants);
    for of in &crates {
        let module = tree.join(of).join("src/mutant.rs");
        write(&module, switch.as_bytes())?;
        kept.insert(module);
    }
    remove_others(tree, &kept).map_err(|error| format!("{}: {error}", tree.display()))
}

/// Removes what an earlier tree has left: a module that moved would be there twice.
fn remove_others(directory: &Path, kept: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, kept)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") && !kept.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The files that contain mutants of a layer.
fn mutated(mutants: &[Mutant], layer: &Layer) -> Result<BTreeMap<String, String>, String> {
    let mut texts = BTreeMap::new();
    let mut edits: Vec<(Place, String)> = Vec::new();
    for &number in layer {
        let Some(mutant) = mutants.get(number) else {
            continue;
        };
        let is_on = format!("crate::mutant::on({number})");
        let places = places(mutant, &mut texts)?;
        for (place, change) in places.into_iter().zip(&mutant.changes) {
            let text = change.replace.join("\n").replace("MUTANT", &is_on);
            edits.push((place, text));
        }
    }
    // From the last line to the first, so that earlier line numbers stay valid.
    edits.sort_by_key(|((_, lines), _)| std::cmp::Reverse(lines.start));
    for ((file, place), new) in edits {
        let Some(text) = texts.get_mut(&file) else {
            continue;
        };
        let mut lines: Vec<&str> = text.lines().collect();
        lines.splice(place, [new.as_str()]);
        *text = lines.join("\n") + "\n";
    }
    Ok(texts)
}

/// The module that says which mutant is on: at most one, named by the environment.
fn switch(mutants: &[Mutant]) -> String {
    let names: Vec<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    format!(
        "//! Which planted bug is on: at most one, named by {CHOICE}.\n\n\
         const NAMES: [&str; {}] = {names:?};\n\
         static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();\n\n\
         // Whether this one is.\n#[inline]\npub(crate) fn on(number: u32) -> bool {{\n    \
         *CHOSEN.get_or_init(chosen) == number\n}}\n\n\
         #[cold]\nfn chosen() -> u32 {{\n    let Ok(name) = std::env::var({CHOICE:?}) else {{ return u32::MAX }};\n    \
         match NAMES.iter().position(|one| *one == name) {{\n        Some(number) => number as u32,\n        \
         None => {{\n            eprintln!(\"no mutant {{name}}\");\n            std::process::exit(2)\n        }}\n    }}\n}}\n",
        names.len()
    )
}

/// Files that git tracks, or would add.
fn sources() -> Result<Vec<String>, String> {
    let mut command = Command::new("git");
    command.current_dir(root());
    command.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = child::output(&mut command, LIST_MAX);
    let listed = listed.map_err(|trouble| format!("git {trouble}"))?;
    match listed.status.success() {
        true => {}
        false => return Err("git does not list the files of the tree".into()),
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names.lines().map(str::to_owned).collect())
}

/// Writes a file unless it already has these bytes.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = made.and_then(|()| fs::write(path, bytes));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    /// A module had become a folder, and its leftover file broke the build.
    #[test]
    fn what_an_earlier_tree_has_left_is_removed() {
        let tree = target().join("tmp").join("mutants-of-a-test");
        let [kept, moved, text] = ["a/mod.rs", "a.rs", "a.txt"].map(|name| tree.join(name));
        for file in [&kept, &moved, &text] {
            write(file, b"").unwrap();
        }
        remove_others(&tree, &BTreeSet::from([kept.clone()])).unwrap();
        assert!(kept.exists() && text.exists() && !moved.exists());
        fs::remove_dir_all(&tree).unwrap();
    }

    #[test]
    fn lines_are_found_once_or_not_at_all() {
        let text = "a\n    b\nc\n  b\nd\n";
        assert_eq!(find(text, &lines("b\nc")), Ok(1..3));
        assert_eq!(find(text, &lines("d")), Ok(4..5));
        assert_eq!(find(text, &lines("b")), Err(2));
        assert_eq!(find(text, &lines("d\ne")), Err(0));
    }

    /// If this fails, code has changed and a mutant no longer fits. Find where its bug would be now, and
    /// change the mutant.
    #[test]
    fn every_mutant_fits_the_tree() {
        let mutants = plan::all(&root().join("xtask/mutants")).unwrap();
        assert!(mutants.len() >= 65, "{} mutants", mutants.len());
        let layers = layers(&mutants).unwrap();
        assert!(layers.len() <= 3, "{} builds for all of them", layers.len());
    }
}
