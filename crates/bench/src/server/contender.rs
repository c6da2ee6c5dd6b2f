//! The servers that are compared: what each is, what its replies mean, how it is started.

use super::process::Starter;
use crate::subject::Error;
use anyhow::Context;
use everdram::EngineKind;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a reply to a write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: the server keeps its data in DRAM.
    Never,
    /// The write is durable a second later, if the disk keeps up.
    EverySecond,
    /// The write is durable.
    EachWrite,
}

impl Persistence {
    /// When a write is durable.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Persistence::Never => "no",
            Persistence::EverySecond => "a second later",
            Persistence::EachWrite => "each write",
        }
    }
}

/// A server and how it is started.
#[derive(Clone, Debug)]
pub struct Contender {
    /// `everdram`, `redis-server` or `valkey-server`.
    pub name: String,
    /// As it says itself.
    pub version: String,
    /// `emulated`, `file` or `pmem` for everdram; `file` or `dram` for others.
    pub medium: String,
    /// What a reply to a write means.
    pub persistence: Persistence,
    /// everdram: its engine.
    pub engine: Option<EngineKind>,
    pub(super) starter: Starter,
}

/// Where servers make their directories.
#[derive(Clone, Debug)]
pub struct Places {
    /// On tmpfs, for pools of emulated persistent memory.
    pub emulated: PathBuf,
    /// On a disk.
    pub file: PathBuf,
}

impl Contender {
    /// The program `program serve` with a pool of this engine on `medium`, in a directory of its own under
    /// `place`.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn everdram(
        program: &Path,
        medium: &str,
        place: &Path,
        engine: EngineKind,
    ) -> Result<Contender, Error> {
        let arguments = [
            "serve",
            "--until-stdin-closes",
            "--bind",
            "127.0.0.1",
            "--pool",
            "pool",
            "--medium",
            medium,
            "--engine",
            engine.name(),
        ];
        Ok(Contender {
            name: "everdram".to_owned(),
            version: version(program)?,
            medium: medium.to_owned(),
            persistence: Persistence::EachWrite,
            engine: Some(engine),
            starter: Starter {
                program: program.to_owned(),
                arguments: arguments.map(str::to_owned).into(),
                place: place.to_owned(),
            },
        })
    }

    /// Redis or a program with the same options, in a directory of its own under `place`.
    ///
    /// # Errors
    /// The program is not there or cannot be run.
    pub fn redis(
        program: &str,
        persistence: Persistence,
        place: &Path,
    ) -> Result<Contender, Error> {
        let (append_only, sync) = match persistence {
            Persistence::Never => ("no", "no"),
            Persistence::EverySecond => ("yes", "everysec"),
            Persistence::EachWrite => ("yes", "always"),
        };
        let medium = match persistence {
            Persistence::Never => "dram",
            Persistence::EverySecond | Persistence::EachWrite => "file",
        };
        let options = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            append_only,
            "--appendfsync",
            sync,
        ];
        Ok(Contender {
            name: program.to_owned(),
            version: version(Path::new(program))?,
            medium: medium.to_owned(),
            persistence,
            engine: None,
            starter: Starter {
                program: PathBuf::from(program),
                arguments: options.map(str::to_owned).into(),
                place: place.to_owned(),
            },
        })
    }

    /// The same, started with these arguments, too.
    #[must_use]
    pub fn with<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Contender {
        let arguments = arguments.into_iter().map(Into::into);
        self.starter.arguments.extend(arguments);
        self
    }

    /// Where its directory is made.
    pub(super) fn place(&self) -> &Path {
        &self.starter.place
    }

    /// How tables call it: `everdram viper emulated`, `redis-server everysec`.
    #[must_use]
    pub fn label(&self) -> String {
        let kind = match (self.engine, self.persistence) {
            (Some(engine), _) => return format!("{} {engine} {}", self.name, self.medium),
            (_, Persistence::Never) => "none",
            (_, Persistence::EverySecond) => "everysec",
            (_, Persistence::EachWrite) => "always",
        };
        format!("{} {kind}", self.name)
    }
}

/// All contenders of the usual comparison, and why others are left out: everdram with this engine on both
/// kinds of medium, then Redis and Valkey without persistence, with a sync every second and with one before
/// each reply.
///
/// # Errors
/// `everdram` cannot be run.
pub fn known(
    everdram: &Path,
    engine: EngineKind,
    places: &Places,
) -> Result<(Vec<Contender>, Vec<String>), Error> {
    let mut contenders = vec![
        Contender::everdram(everdram, "emulated", &places.emulated, engine)?,
        Contender::everdram(everdram, "file", &places.file, engine)?,
    ];
    let mut left_out = Vec::new();
    for program in ["redis-server", "valkey-server"] {
        let kinds = [
            Persistence::Never,
            Persistence::EverySecond,
            Persistence::EachWrite,
        ];
        let found: Result<Vec<_>, _> = kinds
            .into_iter()
            .map(|kind| Contender::redis(program, kind, &places.file))
            .collect();
        match found {
            Ok(found) => contenders.extend(found),
            Err(error) => left_out.push(format!("{error:#}")),
        }
    }
    Ok((contenders, left_out))
}

/// What the program says of its version: `everdram 0.1.0`, `Redis server v=7.0.15 sha=...`.
fn version(program: &Path) -> Result<String, Error> {
    let shown = program.display();
    let output = match Command::new(program).arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            anyhow::bail!("{shown} is not installed; its package has the same name on most systems")
        }
        output => output.with_context(|| format!("running {shown} --version"))?,
    };
    anyhow::ensure!(
        output.status.success(),
        "{shown} --version: {}",
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).with_context(|| format!("{shown} --version says {text:?}"))
}

fn parse_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    text.split_ascii_whitespace()
        .map(|word| word.strip_prefix("v=").unwrap_or(word))
        .find(is_version)
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            ("everdram 0.1.0 (0123456789ab)\n", Some("0.1.0")),
            (
                "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64",
                Some("7.0.15"),
            ),
            ("nothing", None),
        ] {
            assert_eq!(parse_version(text).as_deref(), version);
        }
    }

    #[test]
    fn a_program_that_is_not_there_says_so() {
        let error =
            Contender::redis("no-such-server", Persistence::Never, Path::new(".")).unwrap_err();
        assert!(error.to_string().contains("not installed"), "{error}");
    }
}
