//! Which commit `--version` and rows name: that of the build, wherever the program runs.
#![forbid(unsafe_code)]

#[path = "../build/commit.rs"]
mod commit;

use commit::UNKNOWN;
use everdram_bench::row;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of a program like this one, which are no checkout.
fn sources() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in [
        "Cargo.toml",
        "crates/cli/build/commit.rs",
        "crates/cli/src/main.rs",
        "crates/cli/tests/commit.rs",
    ] {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "1").unwrap();
    }
    root
}

fn git(root: &Path, line: &str) -> String {
    let mut command = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    command
        .arg("-C")
        .arg(root)
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(line.split(' '));
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {line}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What is watched, as it is now.
fn watched(root: &Path) -> Vec<(PathBuf, Option<String>)> {
    let paths = commit::of(root).watched.into_iter();
    paths
        .map(|path| {
            let text = fs::read_to_string(&path).ok();
            (path, text)
        })
        .collect()
}

#[test]
fn a_build_is_of_a_commit_with_changes_or_without() {
    let tree = sources();
    let root = tree.path();
    let of = |root: &Path| commit::of(root).commit;
    assert_eq!(of(root), UNKNOWN);
    git(root, "init --quiet");
    assert_eq!(of(root), UNKNOWN, "a repository without a commit");
    git(root, "add .");
    git(root, "commit --quiet --message one");
    let one = git(root, "rev-parse HEAD")[..12].to_owned();
    assert_eq!(of(root), one);

    // Only what the program is built of counts.
    fs::write(root.join("crates/cli/tests/commit.rs"), "2").unwrap();
    fs::write(root.join("notes"), "2").unwrap();
    assert_eq!(of(root), one);
    fs::write(root.join("crates/cli/src/main.rs"), "2").unwrap();
    assert_eq!(of(root), format!("{one}-dirty"));
    git(root, "add crates/cli/src");
    assert_eq!(of(root), format!("{one}-dirty"), "staged");

    // A worktree has a commit of its own.
    git(root, "worktree add --quiet --detach there");
    git(root, "commit --quiet --message two");
    let two = git(root, "rev-parse HEAD")[..12].to_owned();
    assert_eq!((of(root), of(&root.join("there"))), (two, one));
}

/// A copy of the sources in a repository of somebody else has no commit of this one.
#[test]
fn another_repository_says_nothing() {
    let tree = sources();
    let root = tree.path();
    git(root, "init --quiet");
    git(root, "add Cargo.toml");
    git(root, "commit --quiet --message one");
    assert_eq!(commit::of(root).commit, UNKNOWN);
    // Once they are ours, the next change of a source finds that out.
    let watched = commit::of(root).watched;
    assert!(watched.contains(&root.join("crates/cli/src")));
    assert!(watched.iter().all(|path| !path.ends_with("HEAD")));
}

/// Else a build would name a commit that was left, or each build would begin with the program's crate.
#[test]
fn what_is_watched_is_there_and_changes_with_the_commit() {
    let tree = sources();
    git(tree.path(), "init --quiet");
    git(tree.path(), "add .");
    git(tree.path(), "commit --quiet --message one");
    git(tree.path(), "worktree add --quiet -b other there");
    for root in [tree.path(), &tree.path().join("there")] {
        for step in [
            "commit --quiet --allow-empty --message two",
            "pack-refs --all",
            "commit --quiet --allow-empty --message three",
            "checkout --quiet --detach HEAD~1",
            "commit --quiet --allow-empty --message four",
        ] {
            let (of, before) = (commit::of(root).commit, watched(root));
            assert!(before.iter().all(|(path, _)| path.exists()), "{before:?}");
            git(root, step);
            let is_same = |(path, text): &(PathBuf, Option<String>)| {
                path.exists() && fs::read_to_string(path).ok() == *text
            };
            let has_moved = of != commit::of(root).commit;
            assert!(!has_moved || !before.iter().all(is_same), "{step}");
        }
        let sources = root.join("crates/cli/src");
        assert!(commit::of(root).watched.contains(&sources));
    }
}

/// Rows once had the commit of the source tree at the time of the run, whatever had been built.
#[test]
fn version_and_rows_name_the_commit_of_the_build() {
    let elsewhere = sources();
    git(elsewhere.path(), "init --quiet");
    git(elsewhere.path(), "add .");
    git(elsewhere.path(), "commit --quiet --message another");
    let run = |line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_everdram"))
            .current_dir(elsewhere.path())
            // There is no git where the program runs.
            .env("PATH", "")
            .args(line.split(' '))
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let built_from = env!("EVERDRAM_COMMIT");
    assert_eq!(everdram_cli::COMMIT, built_from);
    let here = commit::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    assert!(built_from != UNKNOWN || here.commit == UNKNOWN);
    let version = format!("everdram {} ({built_from})\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run("--version"), version);
    let rows = run(
        "bench figure bullet-5 --records 1k --seconds 0.02 --rounds 1 --threads 1 --writes 2 --systems +wrc \
         --log-bytes 64KiB --json --dir . --out .",
    );
    let rows = row::read(&rows).unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.commit == built_from));
}
