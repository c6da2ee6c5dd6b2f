//! A real server process: started, waited for, killed without warning, started again.
//!
//! The child holds one end of our pipe and closes in order if we vanish, so a demo never leaves a server.

use crate::client::Client;
use anyhow::Context;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How a server process is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The `everdram` program.
    pub program: PathBuf,
    /// The pool.
    pub pool: PathBuf,
    /// Where the server's standard error goes.
    pub log: PathBuf,
    /// More arguments of `serve`.
    pub arguments: Vec<String>,
}

/// A running server. Dropping it kills it.
pub struct Process {
    child: Child,
    /// Closing it asks the server to end.
    stdin: Option<ChildStdin>,
    /// TCP port on 127.0.0.1.
    pub port: u16,
    /// What the server said when it was ready.
    pub ready: Value,
    /// From starting the process to its first reply.
    pub to_first_reply: Duration,
}

impl Launch {
    fn spawn(&self) -> anyhow::Result<Child> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let mut command = Command::new(&self.program);
        // The run must not depend on settings that somebody keeps in the environment.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"EVERDRAM_") {
                command.env_remove(name);
            }
        }
        command
            .args([
                "serve",
                "--json",
                "--until-stdin-closes",
                "--bind",
                "127.0.0.1",
                "--port",
                "0",
                "--pool",
            ])
            .arg(&self.pool)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))
    }

    /// Starts a server and waits for its first reply.
    ///
    /// # Errors
    /// If it does not come up; with what it wrote to its log.
    pub fn start(&self) -> anyhow::Result<Process> {
        let begun = Instant::now();
        let mut child = self.spawn()?;
        let stdin = child.stdin.take();
        let mut line = String::new();
        let read = match child.stdout.take() {
            Some(stdout) => BufReader::new(stdout).read_line(&mut line),
            None => Ok(0),
        };
        let mut process = Process {
            child,
            stdin,
            port: 0,
            ready: Value::Null,
            to_first_reply: Duration::ZERO,
        };
        read?;
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            process.child.wait()?;
            anyhow::bail!(
                "the server did not start. Its log ends:\n{}",
                tail(&self.log)
            );
        };
        let port = ready
            .get("port")
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok());
        process.port = port.context("the server named no port")?;
        process.ready = ready;
        Client::connect(("127.0.0.1", process.port))?.call(&[b"PING"])?;
        process.to_first_reply = begun.elapsed();
        Ok(process)
    }

    /// Starts a server and kills it after `delay`, wherever it is by then: most likely in recovery. Says
    /// whether it had become ready.
    ///
    /// # Errors
    /// If the process cannot be started or killed.
    pub fn start_and_kill(&self, delay: Duration) -> anyhow::Result<bool> {
        let mut child = self.spawn()?;
        std::thread::sleep(delay);
        child.kill()?;
        child.wait()?;
        let mut said = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut said)?;
        }
        Ok(said.ends_with('\n'))
    }
}

impl Process {
    /// SIGKILL, without warning.
    ///
    /// # Errors
    /// If the process had ended by itself.
    pub fn kill(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("the server ended by itself before it was killed: {status}");
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// A number that the server reported when it was ready.
    #[must_use]
    pub fn reported(&self, name: &str) -> u64 {
        self.ready.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Asks the server to end in order and waits until it has.
    ///
    /// # Errors
    /// If it ends with another exit code than 0.
    pub fn close(mut self) -> anyhow::Result<()> {
        drop(self.stdin.take());
        let status = self.child.wait()?;
        anyhow::ensure!(
            status.success(),
            "the server was asked to close and ended with {status}"
        );
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(20)..)
        .unwrap_or_default()
        .join("\n")
}
