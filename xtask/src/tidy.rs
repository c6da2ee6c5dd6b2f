//! Rules of the repository that the compiler does not check.
//!
//! * A source file opens with a `//!` header and has at most [`LINES_MAX`] lines.
//! * A folder has at most [`FILES_MAX`] source files.
//! * Comments have at most [`COLUMNS_MAX`] columns, except pictures, tables and links.
//! * Documents and comments name source files that exist.
//! * No marks of unfinished work.
//! * Files of a crate do not import each other in circles (`circles.rs`).
//! * Each dependency of the workspace has its reason in a comment above it.

use crate::cargo::root;
use crate::circles;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LINES_MAX: usize = 900;
const FILES_MAX: usize = 20;
const COLUMNS_MAX: usize = 110;
/// In pieces, so that this file does not match itself.
const MARKS: [&str; 4] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("unimplement", "ed!"),
];

/// Prints every violation of a rule.
pub(crate) fn run() -> ExitCode {
    let findings = check();
    findings.iter().for_each(|finding| println!("{finding}"));
    if findings.is_empty() {
        println!("tidy");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The violations, as `file:line: what`.
pub(crate) fn check() -> Vec<String> {
    let root = root();
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let mut findings = Vec::new();
    check_folders(&root, &files, &mut findings);
    let sources: Vec<String> = files
        .iter()
        .filter(|file| file.extension().is_some_and(|end| end == "rs"))
        .map(|file| format!("/{}", file.display()))
        .collect();
    let mut texts = Vec::new();
    for file in files {
        let name = file
            .strip_prefix(&root)
            .unwrap_or(&file)
            .display()
            .to_string();
        match std::fs::read_to_string(&file) {
            Ok(text) if name.ends_with(".rs") => {
                check_source(&name, &text, &mut findings);
                check_names(&name, &text, &sources, &mut findings);
                texts.push((name, text));
            }
            Ok(text) if name.ends_with(".md") => {
                check_marks(&name, &text, &mut findings);
                check_names(&name, &text, &sources, &mut findings);
            }
            Ok(text) if name == "Cargo.toml" => check_reasons(&name, &text, &mut findings),
            Ok(_) => {}
            Err(error) => findings.push(format!("{name}:1: {error}")),
        }
    }
    circles::check(&texts, &mut findings);
    findings
}

fn collect(directory: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && name != "target" && name != ".git" {
            collect(&path, into);
        } else if kind.is_file()
            && path
                .extension()
                .is_some_and(|end| end == "rs" || end == "md" || end == "toml")
        {
            into.push(path);
        }
    }
}

/// A folder stands for one idea. One with too many files has several.
fn check_folders(root: &Path, files: &[PathBuf], findings: &mut Vec<String>) {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|end| end == "rs"))
    {
        let folder = file
            .parent()
            .and_then(|folder| folder.strip_prefix(root).ok());
        *folders
            .entry(folder.map_or(String::new(), |folder| folder.display().to_string()))
            .or_default() += 1;
    }
    for (folder, count) in folders {
        if count > FILES_MAX {
            findings.push(format!("{folder}:1: {count} source files; a folder of more than {FILES_MAX} is more than one idea"));
        }
    }
}

/// Judges the names of source files that documents and comments quote. A file that moves leaves them behind.
fn check_names(name: &str, text: &str, sources: &[String], findings: &mut Vec<String>) {
    let is_document = name.ends_with(".md");
    for (index, line) in text.lines().enumerate() {
        if !is_document && !line.trim_start().starts_with("//") {
            continue;
        }
        let quoted = line.split('`').skip(1).step_by(2);
        for file in quoted.filter(|word| word.ends_with(".rs") && !word.contains(' ')) {
            let end = format!("/{}", file.trim_start_matches("../"));
            if !sources.iter().any(|source| source.ends_with(&end)) {
                findings.push(format!("{name}:{}: there is no `{file}`", index + 1));
            }
        }
    }
}

fn check_source(name: &str, text: &str, findings: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > LINES_MAX {
        findings.push(format!(
            "{name}:{lines}: {lines} lines; split files before they pass {LINES_MAX}"
        ));
    }
    if !text.starts_with("//!") {
        findings.push(format!(
            "{name}:1: no `//!` header that says what the file is for"
        ));
    }
    check_columns(name, text, findings);
    check_marks(name, text, findings);
}

fn check_columns(name: &str, text: &str, findings: &mut Vec<String>) {
    let mut is_picture = false;
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            is_picture = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        let words = comment.trim_start();
        if words.starts_with("```") {
            is_picture = !is_picture;
        }
        let is_kept = is_picture
            || comment.starts_with("     ")
            || ["|", "#", "[`", "+-"]
                .iter()
                .any(|start| words.starts_with(start));
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !is_kept {
            findings.push(format!(
                "{name}:{}: a comment of {columns} columns; {COLUMNS_MAX} are enough",
                index + 1
            ));
        }
    }
}

fn check_marks(name: &str, text: &str, findings: &mut Vec<String>) {
    for (index, line) in text.lines().enumerate() {
        if let Some(mark) = MARKS.iter().find(|mark| line.contains(**mark)) {
            findings.push(format!(
                "{name}:{}: `{mark}`: finish it, or open an issue",
                index + 1
            ));
        }
    }
}

/// A comment explains the dependencies below it, up to the next blank line or comment. Dependencies by `path`
/// need no reason.
fn check_reasons(name: &str, text: &str, findings: &mut Vec<String>) {
    let mut in_dependencies = false;
    let mut has_reason = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            in_dependencies = line == "[workspace.dependencies]";
            has_reason = false;
        } else if line.is_empty() {
            has_reason = false;
        } else if line.starts_with('#') {
            has_reason = true;
        } else if in_dependencies && !has_reason && line.contains('=') && !line.contains("path =") {
            findings.push(format!(
                "{name}:{}: a dependency without its reason above it",
                index + 1
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(check: fn(&str, &str, &mut Vec<String>), text: &str) -> usize {
        let mut findings = Vec::new();
        check("file", text, &mut findings);
        findings.len()
    }

    #[test]
    fn folders_are_judged() {
        let judge = |folder: &str, count: usize| {
            let files: Vec<PathBuf> = (0..count)
                .map(|number| Path::new("/root").join(folder).join(format!("{number}.rs")))
                .collect();
            let mut findings = Vec::new();
            check_folders(Path::new("/root"), &files, &mut findings);
            findings.len()
        };
        assert_eq!(judge("crates/kv/src", FILES_MAX), 0);
        assert_eq!(judge("crates/kv/src", FILES_MAX + 1), 1);
    }

    #[test]
    fn names_of_files_are_judged() {
        let sources = ["/root/crates/kv/src/engine/ghosts.rs".to_owned()];
        let judge = |name: &str, text: &str| {
            let mut findings = Vec::new();
            check_names(name, text, &sources, &mut findings);
            findings.len()
        };
        assert_eq!(judge("a.md", "see `engine/ghosts.rs` and `ghosts.rs`"), 0);
        assert_eq!(judge("a.md", "see `front/ghosts.rs` and `hosts.rs`"), 2);
        assert_eq!(
            judge("a.rs", "let name = \"`gone.rs`\"; // code\n// `gone.rs`\n"),
            1
        );
    }

    #[test]
    fn sources_are_judged() {
        assert_eq!(findings(check_source, "//! A header.\nfn main() {}\n"), 0);
        assert_eq!(findings(check_source, "fn main() {}\n"), 1);
        assert_eq!(
            findings(check_source, &format!("//! x\n{}", "\n".repeat(LINES_MAX))),
            1
        );
        assert_eq!(
            findings(check_source, &format!("//! {}: later\n", MARKS[0])),
            1
        );
        let long = "x".repeat(COLUMNS_MAX);
        assert_eq!(findings(check_source, &format!("//! {long}\n")), 1);
        let picture = format!("//! ```text\n//! {long}\n//! ```\n");
        assert_eq!(findings(check_source, &picture), 0);
        let behind = format!("{picture}//! {long}\n");
        assert_eq!(findings(check_source, &behind), 1, "the picture has ended");
    }

    #[test]
    fn dependencies_need_reasons() {
        let with =
            "[workspace.dependencies]\nours = { path = \"x\" }\n# why\na = \"1\"\nb = \"1\"\n";
        assert_eq!(findings(check_reasons, with), 0);
        let without = "[workspace.dependencies]\n# why\na = \"1\"\n\nb = \"1\"\n";
        assert_eq!(findings(check_reasons, without), 1);
    }
}
