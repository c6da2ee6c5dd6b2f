//! The example in C, compiled without a warning, against doors over libfabric's provider `tcp`.
//!
//! Without a C compiler or libfabric nothing is tested, and the tests say so.

mod support;

use everdram::password::Password;
use everdram::{Medium, MediumChoice, Options, Store};
use everdram_fabric::{Door, Settings};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Compiler, library};
use tempfile::TempDir;

/// Servers with a password, and a place for the program.
struct Fixture {
    cc: Compiler,
    doors: Vec<(Store, Door)>,
    directory: TempDir,
}

impl Fixture {
    fn new() -> Option<Fixture> {
        if let Err(reason) = everdram_fabric::version() {
            println!("skipped: {reason}");
            return None;
        }
        let (cc, directory) = (Compiler::find()?, tempfile::tempdir().unwrap());
        let door = |number: u32| {
            let mut options = Options::default();
            options.medium = MediumChoice::Only(Medium::Emulated);
            options.max_bytes = 256 << 20;
            let pool = directory.path().join(format!("pool-{number}"));
            let store = Store::open(pool, &options).unwrap();
            let settings = Settings {
                password: Password::new(Some(b"secret".to_vec())),
                ..Settings::default()
            };
            let door = Door::start(&store, "tcp://127.0.0.1:0", settings).unwrap();
            (store, door)
        };
        Some(Fixture {
            cc,
            doors: (0..3).map(door).collect(),
            directory,
        })
    }

    /// The example, linked in some way.
    fn program(&self, name: &str, link: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hello.c");
        let program = self.directory.path().join(name);
        self.cc.compile(&source, &program, link);
        program
    }

    /// Runs the program with all addresses; what it prints if it ends well.
    fn run(&self, mut command: Command, password: &str) -> Result<String, String> {
        let addresses = self.doors.iter().map(|(_, door)| door.address());
        // A library of libfabric's writes what it knows of a crash to where the program runs.
        let place = self.directory.path();
        command.args(addresses).current_dir(place);
        command.env("EVERDRAM_PASSWORD", password);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        match out.status.success() {
            true => Ok(String::from_utf8(out.stdout).unwrap()),
            false => Err(said),
        }
    }

    /// Everything the example does has happened at the servers.
    fn must_have_run(&self, printed: &str) {
        assert!(printed.ends_with("done\n"), "{printed}");
        assert_eq!(printed.lines().count(), 4);
        // 200 keys of the pipeline, and the empty one.
        let keys: Vec<u64> = self.doors.iter().map(|(store, _)| store.len()).collect();
        assert_eq!(keys.iter().sum::<u64>(), 201, "{keys:?}");
        assert!(keys.iter().all(|&keys| keys > 0), "{keys:?}");
    }
}

#[test]
fn the_example_runs_with_the_shared_library() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let library = library("so");
    let program = fixture.program("shared", &[library.to_str().unwrap()]);
    let printed = fixture.run(Command::new(&program), "secret").unwrap();
    fixture.must_have_run(&printed);
    let refused = fixture.run(Command::new(&program), "wrong").unwrap_err();
    assert!(refused.contains("wrong password (-5)"), "{refused}");
}

/// What a C program needs beside the static library is what Rust's standard library uses.
#[test]
fn the_example_runs_with_the_static_library() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let library = library("a");
    let link = [library.to_str().unwrap(), "-lpthread", "-ldl", "-lm"];
    let program = fixture.program("static", &link);
    let printed = fixture.run(Command::new(&program), "secret").unwrap();
    fixture.must_have_run(&printed);
}

/// No access outside of memory, nothing read before it was written, and nothing that is lost for good.
#[test]
fn valgrind_finds_nothing_in_the_example() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        return println!("skipped: no valgrind: {error}");
    }
    let library = library("so");
    let program = fixture.program("watched", &[library.to_str().unwrap()]);
    // What libfabric does with memory of its own is not ours. Where it accesses none, it may have been ours.
    let foreign = ["Param\n *", "Cond", "Value8", "Leak"]
        .map(|kind| format!("{{\n libfabric\n Memcheck:{kind}\n ...\n obj:*libfabric.so*\n}}\n"));
    let suppressions = fixture.directory.path().join("suppressions");
    std::fs::write(&suppressions, foreign.concat()).unwrap();
    let mut command = Command::new("valgrind");
    command
        .arg(format!("--suppressions={}", suppressions.display()))
        .args(["-q", "--error-exitcode=9", "--leak-check=full"])
        .args([
            "--errors-for-leak-kinds=definite",
            "--child-silent-after-fork=yes",
        ])
        .arg(&program);
    let printed = fixture.run(command, "secret").unwrap();
    fixture.must_have_run(&printed);
}
