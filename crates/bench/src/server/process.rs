//! A server as a child process, in a directory of its own, on a free port; gone with its directory when
//! dropped.

use super::affinity::Pinned;
use crate::fixture::Place;
use crate::recovery::ChildGuard;
use crate::subject::Error;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to answer first, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// How a server is started: in a directory of its own, with these arguments and `--port`.
#[derive(Clone, Debug)]
pub(super) struct Starter {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Where the directory is made.
    pub(super) place: PathBuf,
}

/// A server that answers.
pub(super) struct Process {
    child: ChildGuard,
    pub(super) port: u16,
    dir: Place,
}

impl Process {
    /// Starts a server on `core` and waits until it answers PING.
    pub(super) fn start(starter: &Starter, core: Option<usize>) -> Result<Process, Error> {
        let dir = Place::within(&starter.place)?;
        let port = free_port()?;
        let log = File::create(dir.path().join("log"))?;
        // The child takes the core from this thread: all of its threads have it from the start.
        let pinned = Pinned::to(core)?;
        let child = Command::new(&starter.program)
            .args(&starter.arguments)
            .args(["--port", &port.to_string()])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", starter.program.display()))?;
        drop(pinned);
        let mut process = Process {
            child: ChildGuard(child),
            port,
            dir,
        };
        process.await_answer()?;
        Ok(process)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.0.id()
    }

    fn await_answer(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        while !answers(self.port) {
            if let Some(status) = self.child.0.try_wait()? {
                anyhow::bail!(
                    "the server ended before it answered ({status}):\n{}",
                    self.log()
                );
            }
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "the server has not answered for {PATIENCE:?}:\n{}",
                self.log()
            );
            thread::sleep(ASK_EVERY);
        }
        Ok(())
    }

    /// The end of what the server wrote.
    fn log(&self) -> String {
        let text = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let tail = text.len().saturating_sub(2000);
        String::from_utf8_lossy(&text[tail..]).into_owned()
    }

    /// Asks the server to end, and waits for it.
    pub(super) fn stop(mut self) -> Result<(), Error> {
        let id = Pid::from_child(&self.child.0);
        // If it has ended by itself, its status says why.
        let _ = kill_process(id, Signal::TERM);
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.0.try_wait()? {
                break status;
            }
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "the server did not end in {PATIENCE:?}"
            );
            thread::sleep(ASK_EVERY);
        };
        anyhow::ensure!(
            status.success(),
            "the server ended with {status}:\n{}",
            self.log()
        );
        Ok(())
    }
}

/// A port that is free at this moment.
fn free_port() -> Result<u16, Error> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

/// Errors are no answer: the listener is not up, or the server ended.
fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply)?;
        Ok(reply == *b"+PONG\r\n")
    };
    ask().unwrap_or(false)
}
