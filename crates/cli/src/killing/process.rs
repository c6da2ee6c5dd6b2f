//! A real server process: it is started, awaited, killed without warning, and started again.
//!
//! The child holds one end of a pipe and closes in order if this process ends, so no server stays behind. The
//! child has a process group of its own, so that Ctrl-C in a terminal does not reach it. Each of its steps
//! has a limit, [`TIMEOUT`]: a server that hangs has failed, as has one that dies.

use crate::client::{Client, Reply};
use anyhow::Context;
use serde_json::Value;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Limit for a server to start, recovery included, and to close. On the pools of a test each takes about a
/// second; the rest is for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks whether a process has ended.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// The signal of [`Child::kill`].
const SIGKILL: i32 = 9;

/// A server's failure: it did not come up, ended by itself, did not close, or did not answer.
///
/// All other errors come from the machine that runs the test.
#[derive(Debug)]
pub struct Misconduct(String);

impl fmt::Display for Misconduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misconduct {}

/// The error that the server failed as `words` say.
pub(crate) fn misconduct(words: impl fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Misconduct(words.to_string()))
}

/// The same error, with the end of the server's log.
fn misconduct_with_log(words: impl fmt::Display, log: &Path) -> anyhow::Error {
    misconduct(format_args!("{words}. Its log ends:\n{}", tail(log)))
}

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
    /// Closing it makes the server end.
    stdin: Option<ChildStdin>,
    log: PathBuf,
    /// TCP port on 127.0.0.1.
    pub port: u16,
    /// The server's announcement when it was ready.
    pub ready: Value,
    /// Time from the start of the process to its first reply.
    pub to_first_reply: Duration,
}

impl Launch {
    fn spawn(&self) -> anyhow::Result<Child> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let mut command = Command::new(&self.program);
        // The run must not depend on settings in the environment.
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
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))
    }

    /// Starts a server and waits for its first reply.
    ///
    /// # Errors
    /// [`Misconduct`], with the end of the server's log, if the server does not come up within [`TIMEOUT`].
    pub fn start(&self) -> anyhow::Result<Process> {
        self.start_within(TIMEOUT)
    }

    fn start_within(&self, limit: Duration) -> anyhow::Result<Process> {
        let begun = Instant::now();
        let mut child = self.spawn()?;
        let (stdin, line) = (child.stdin.take(), first_line(&mut child));
        // From here on the child is killed on every return.
        let mut process = Process {
            child,
            stdin,
            log: self.log.clone(),
            port: 0,
            ready: Value::Null,
            to_first_reply: Duration::ZERO,
        };
        let Ok(line) = line.recv_timeout(limit) else {
            let words = format!("the server did not come up in {limit:?}");
            return Err(misconduct_with_log(words, &self.log));
        };
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            // Its output has ended or makes no sense. If the child is already about to end, the signal comes
            // too late to change its status.
            process.child.kill()?;
            let words = format!("the server did not start ({})", process.child.wait()?);
            return Err(misconduct_with_log(words, &self.log));
        };
        let port = ready
            .get("port")
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok());
        process.port = port.ok_or_else(|| misconduct("the server named no port"))?;
        process.ready = ready;
        Client::connect(("127.0.0.1", process.port))
            .and_then(|mut client| {
                client.queue(&[b"PING"]);
                client.send()?;
                match client.receive()? {
                    // Who asks for a password serves.
                    Reply::Error(text) if text.starts_with("NOAUTH") => Ok(Reply::Null),
                    reply => reply.accepted(),
                }
            })
            .map_err(|error| {
                let words = format!("the server said it is ready, and PING failed: {error}");
                misconduct_with_log(words, &self.log)
            })?;
        process.to_first_reply = begun.elapsed();
        Ok(process)
    }

    /// Starts a server and kills it after `delay`, most likely during recovery. Returns whether it had become
    /// ready.
    ///
    /// # Errors
    /// [`Misconduct`] if the server had ended by itself: only a kill may interrupt recovery.
    pub fn start_and_kill(&self, delay: Duration) -> anyhow::Result<bool> {
        let mut child = self.spawn()?;
        thread::sleep(delay);
        put_down(&mut child, &self.log)?;
        let mut said = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut said)?;
        }
        Ok(said.ends_with('\n'))
    }
}

/// Receives the first line of the child's output once it arrives, or an empty line at the output's end.
fn first_line(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take();
    thread::spawn(move || {
        let mut line = String::new();
        if let Some(stdout) = stdout {
            // An unreadable line counts as no announcement.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        // The receiver may be gone.
        let _ = sender.send(line);
    });
    receiver
}

/// Sends SIGKILL. The kernel also accepts a signal to a process that has ended, so the exit status must show
/// what ended it.
fn put_down(child: &mut Child, log: &Path) -> anyhow::Result<()> {
    child.kill()?;
    let status = child.wait()?;
    if status.signal() == Some(SIGKILL) {
        return Ok(());
    }
    let words = format!("the server ended by itself before it was killed: {status}");
    Err(misconduct_with_log(words, log))
}

impl Process {
    /// Kills the server with SIGKILL, without warning.
    ///
    /// # Errors
    /// [`Misconduct`] if the process had ended by itself.
    pub fn kill(mut self) -> anyhow::Result<()> {
        put_down(&mut self.child, &self.log)
    }

    /// A number that the server reported when it was ready.
    #[must_use]
    pub fn reported(&self, name: &str) -> u64 {
        self.ready.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Asks the server to end in order, and waits for its end.
    ///
    /// # Errors
    /// [`Misconduct`] if it does not end within [`TIMEOUT`], or with another exit code than 0.
    pub fn close(self) -> anyhow::Result<()> {
        self.close_within(TIMEOUT)
    }

    fn close_within(mut self, limit: Duration) -> anyhow::Result<()> {
        drop(self.stdin.take());
        let words = match self.wait(limit)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => format!("the server was asked to close and ended with {status}"),
            None => format!("the server was asked to close and did not in {limit:?}"),
        };
        Err(misconduct_with_log(words, &self.log))
    }

    /// The exit status, if the process ends within `limit`.
    fn wait(&mut self, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || begun.elapsed() >= limit {
                return Ok(status);
            }
            thread::sleep(ASK_EVERY);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
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

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
