//! The commit of a source tree, and what changes when that does.
//!
//! Without git, or outside of a checkout of this repository, the commit is unknown, and that is no error.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Of what is no checkout.
pub(crate) const UNKNOWN: &str = "unknown";

/// A file by which a checkout of this repository is told from one of a program that has a copy of it.
const OURS: &str = "crates/cli/build/commit.rs";

/// What git reads from the environment, where a hook or a script of another repository started the build.
const FROM_OUTSIDE: [&str; 3] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"];

/// A source tree.
pub(crate) struct Source {
    /// Its commit; with `-dirty` behind it if what the program is built of is not as in that commit.
    pub(crate) commit: String,
    /// Files and folders that change when the commit does.
    pub(crate) watched: Vec<PathBuf>,
}

/// The source tree with this root.
pub(crate) fn of(root: &Path) -> Source {
    let parts = parts(root);
    let commit = commit(root, &parts);
    let mut watched: Vec<PathBuf> = parts.iter().map(|part| root.join(part)).collect();
    if commit.is_some() {
        // A branch may be packed into another file, and has a log of its moves then as before.
        let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
        for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
            // In a worktree, `.git` is no folder.
            let path = git(root, &["rev-parse", "--git-path", name]);
            watched.extend(path.map(|path| root.join(path)));
        }
    }
    // What is not there would count as changed at each build.
    watched.retain(|path| path.exists());
    Source {
        commit: commit.unwrap_or_else(|| UNKNOWN.into()),
        watched,
    }
}

fn commit(root: &Path, parts: &[String]) -> Option<String> {
    git(root, &["ls-files", "--error-unmatch", OURS])?;
    let mut commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let compared = ["diff", "--quiet", "HEAD", "--"].into_iter();
    let compared: Vec<&str> = compared.chain(parts.iter().map(|part| &**part)).collect();
    if git(root, &compared).is_none() {
        commit.push_str("-dirty");
    }
    Some(commit)
}

/// What the program is built of, below the root. Tests and documents change nothing in it.
fn parts(root: &Path) -> Vec<String> {
    let mut parts = vec!["Cargo.toml".to_owned(), "Cargo.lock".to_owned()];
    let crates = std::fs::read_dir(root.join("crates"));
    for entry in crates.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let below = ["Cargo.toml", "build", "src"];
        parts.extend(below.map(|part| format!("crates/{}/{part}", name.display())));
    }
    parts
}

/// What git says; `None` if it says no, or is not there.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(arguments);
    for name in FROM_OUTSIDE {
        command.env_remove(name);
    }
    let output = command.output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(text).ok()?.trim_end().to_owned())
}
