//! A server as a child process, in a directory of its own, on a free port; gone with its directory when
//! dropped. On which cores it runs, and what it has spent and holds, as the kernel tells in `/proc`.

use crate::fixture::Place;
use crate::process::{Pinned, allowed};
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
const PATIENCE: Duration = Duration::from_secs(300);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// How a server is started: in a directory of its own, with these arguments and `--port`.
#[derive(Clone, Debug)]
pub(crate) struct Starter {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Where the directory is made.
    pub(crate) place: PathBuf,
}

/// A server that answers.
pub(crate) struct Process {
    child: ChildGuard,
    pub(crate) port: u16,
    dir: Place,
}

impl Process {
    /// Starts a server on `core` and waits until it answers PING.
    pub(crate) fn start(starter: &Starter, core: Option<usize>) -> Result<Process, Error> {
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
    pub(crate) fn stop(mut self) -> Result<(), Error> {
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

/// Cores by number; `None` leaves the choice to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Where servers run, all of their threads.
    pub server: Option<usize>,
    /// Where the load generator runs.
    pub client: Option<usize>,
}

impl Pins {
    /// The first core of this process for the load, the second for the servers; no pins on a machine with one
    /// core.
    #[must_use]
    pub fn apart() -> Pins {
        let mut cores = allowed();
        match (cores.next(), cores.next()) {
            (Some(client), Some(server)) => Pins {
                server: Some(server),
                client: Some(client),
            },
            _ => Pins::default(),
        }
    }
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// All pages that it has mapped and that are present: a pool on tmpfs counts.
    pub resident_bytes: u64,
    /// The same, with shared pages divided by those who share them.
    pub proportional_bytes: u64,
    /// Pages of its own that belong to no file: heap, stacks and private changes. This is DRAM on any medium.
    pub anonymous_bytes: u64,
}

impl Memory {
    /// Of a running process.
    pub(super) fn of(process: u32) -> Result<Memory, Error> {
        let path = format!("/proc/{process}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        Memory::parse(&text).with_context(|| format!("{path} is not as expected"))
    }

    fn parse(text: &str) -> Option<Memory> {
        let bytes = |name: &str| {
            let mut words = text
                .lines()
                .find_map(|line| line.strip_prefix(name))?
                .split_ascii_whitespace();
            let kib: u64 = words.next()?.parse().ok()?;
            (words.next() == Some("kB")).then(|| kib * 1024)
        };
        Some(Memory {
            resident_bytes: bytes("Rss:")?,
            proportional_bytes: bytes("Pss:")?,
            anonymous_bytes: bytes("Anonymous:")?,
        })
    }
}

/// Processor time of a process, its threads and the children it has waited for (Redis rewrites its log in
/// one). The kernel counts it in ticks, a hundred a second as a rule: measure for seconds.
pub(super) fn processor_time(process: u32) -> Result<Duration, Error> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = parse_ticks(&text).with_context(|| format!("{path} is not as expected"))?;
    let ticks_a_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_nanos(ticks * 1_000_000_000 / ticks_a_second))
}

/// The name, in parentheses, may hold anything, so fields are counted from its end: the state is the first.
fn parse_ticks(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let times: Vec<u64> = fields
        .skip(11)
        .take(4)
        .map_while(|field| field.parse().ok())
        .collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_user_and_kernel_and_children_add_up() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 300 400 1000 200 30 4 20 0 5 0 99 1 2";
        assert_eq!(parse_ticks(stat), Some(1234));
        assert_eq!(parse_ticks("7 (a) S 1 2"), None);
    }

    #[test]
    fn kinds_of_memory_are_told_apart() {
        let text = "00400000-7ffc [rollup]\nRss:    5 kB\nPss:   4 kB\nPss_Anon:  9 kB\nAnonymous:  3 kB\n";
        let memory = Memory {
            resident_bytes: 5 * 1024,
            proportional_bytes: 4 * 1024,
            anonymous_bytes: 3 * 1024,
        };
        assert_eq!(Memory::parse(text), Some(memory));
        assert_eq!(Memory::parse("Rss: 5 kB\n"), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.anonymous_bytes > 0 && memory.resident_bytes >= memory.anonymous_bytes);
        processor_time(std::process::id()).unwrap();
    }
}
