//! Child processes with a time limit.
//!
//! Each child has a limit, and so has CI as a whole ([`none_after`]). A child leads a process group, and the
//! processes that it starts end with it. A [`Watcher`] kills the group after the limit, and also when this
//! process has ended in any way. Without this, Ctrl-C in a terminal would leave the child running, since it
//! reaches only the program's own group.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// After this long without output, a line says that the child is still running.
const SILENCE: Duration = Duration::from_secs(60);

static END: OnceLock<Instant> = OnceLock::new();

/// No child runs after this moment, whatever its limit.
pub(crate) fn none_after(end: Instant) {
    END.get_or_init(|| end);
}

/// Why a child has no exit status.
#[derive(Debug)]
pub(crate) enum Trouble {
    NotRun(io::Error),
    OutOfTime(Duration),
    /// CI's own time had already ended.
    NoTime,
}

impl fmt::Display for Trouble {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::NotRun(error) => write!(to, "could not be run: {error}"),
            Trouble::OutOfTime(limit) => write!(
                to,
                "was not done after {} s, and was ended with all that it had started",
                limit.as_secs()
            ),
            Trouble::NoTime => write!(to, "was not begun: the time for all of CI was over"),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::NotRun(error)
    }
}

/// Runs a command to its end, and passes on its standard output as it arrives.
pub(crate) fn follow(
    command: &mut Command,
    limit: Option<Duration>,
    take: &mut dyn FnMut(&[u8]),
) -> Result<ExitStatus, Trouble> {
    let limit = bounded(limit)?;
    let (mut child, watcher) = start(command.stdout(Stdio::piped()))?;
    let begun = Instant::now();
    let printed = child.stdout.take().map(pieces_of);
    let mut heard = begun;
    while let Some(printed) = &printed {
        // Checked first: a child that hangs may print forever.
        if let Some(limit) = limit.filter(|limit| begun.elapsed() >= *limit) {
            drop(watcher);
            child.wait()?;
            return Err(Trouble::OutOfTime(limit));
        }
        let left = limit.map_or(SILENCE, |limit| limit.saturating_sub(begun.elapsed()));
        match printed.recv_timeout(left.min(SILENCE)) {
            Ok(piece) => {
                heard = Instant::now();
                take(&piece);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => say_running(begun, heard, limit),
        }
    }
    let status = child.wait()?;
    watcher.leave();
    Ok(status)
}

/// Runs a command without showing its output, to its end or until `take` returns that it has seen enough of
/// the lines on standard output. `None` in the latter case.
pub(crate) fn listen(
    command: &mut Command,
    limit: Duration,
    take: &mut dyn FnMut(&str) -> bool,
) -> Result<Option<ExitStatus>, Trouble> {
    let limit = bounded(Some(limit))?.unwrap_or(limit);
    let (mut child, watcher) = start(command.stdout(Stdio::piped()))?;
    let begun = Instant::now();
    let printed = child.stdout.take().map(pieces_of);
    let (mut lines, mut is_enough) = (Lines::default(), false);
    while let Some(printed) = &printed {
        match printed.recv_timeout(limit.saturating_sub(begun.elapsed())) {
            Ok(piece) => lines.take(&piece, &mut |line| is_enough = take(line) || is_enough),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                drop(watcher);
                child.wait()?;
                return Err(Trouble::OutOfTime(limit));
            }
        }
        if is_enough {
            drop(watcher);
            child.wait()?;
            return Ok(None);
        }
    }
    let status = child.wait()?;
    watcher.leave();
    Ok(Some(status))
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn output(command: &mut Command, limit: Duration) -> Result<Output, Trouble> {
    let limit = bounded(Some(limit))?.unwrap_or(limit);
    let (child, watcher) = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => {
            watcher.leave();
            Ok(output?)
        }
        Err(_) => Err(Trouble::OutOfTime(limit)),
    }
}

/// The limit, but at most what remains of CI's time.
fn bounded(limit: Option<Duration>) -> Result<Option<Duration>, Trouble> {
    let Some(end) = END.get() else {
        return Ok(limit);
    };
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Trouble::NoTime);
    }
    Ok(Some(limit.map_or(left, |limit| limit.min(left))))
}

fn start(command: &mut Command) -> io::Result<(Child, Watcher)> {
    let child = command.stdin(Stdio::null()).process_group(0).spawn()?;
    let watcher = Watcher::of(&child)?;
    Ok((child, watcher))
}

/// Shows the user that the child hangs, and not this program.
fn say_running(begun: Instant, heard: Instant, limit: Option<Duration>) {
    let most = limit.map_or(String::new(), |limit| format!(" of {}", limit.as_secs()));
    let (quiet, all) = (heard.elapsed().as_secs(), begun.elapsed().as_secs());
    println!("\n.. nothing printed for {quiet} s, running for {all} s{most}");
}

/// A stream's output, read by a thread of its own, so that waiting for it can have a limit.
fn pieces_of(mut stream: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        loop {
            match stream.read(&mut piece) {
                Ok(0) => return,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                Err(_) => {}
                Ok(count) => {
                    let read = piece.get(..count).unwrap_or_default();
                    if sender.send(read.to_vec()).is_err() {
                        return;
                    }
                }
            }
        }
    });
    receiver
}

/// A shell that waits for the end of its standard input and then kills a process group. This process holds
/// that input open.
struct Watcher(Child);

impl Watcher {
    /// Call it before the child can have been waited for. Afterwards the child's number may belong to another
    /// process.
    fn of(child: &Child) -> io::Result<Watcher> {
        let order = format!("read -r _; kill -s KILL -- -{}", child.id());
        let mut shell = Command::new("sh");
        shell.args(["-c", &order]).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        shell.process_group(0).spawn().map(Watcher)
    }

    /// Ends without a kill.
    fn leave(mut self) {
        let _gone_already = self.0.kill();
        // Dropping it waits.
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _nothing_to_tell = self.0.wait();
    }
}

/// Cuts output into lines.
#[derive(Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// Takes more bytes, and passes on the complete lines without their ends.
    pub(crate) fn take(&mut self, bytes: &[u8], line: &mut dyn FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.finish(line);
            }
        }
    }

    /// Passes on the last line if it had no end.
    pub(crate) fn finish(&mut self, line: &mut dyn FnMut(&str)) {
        if !self.0.is_empty() {
            line(String::from_utf8_lossy(&self.0).trim_end());
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_is_printed_arrives_with_the_status() {
        let mut heard = Vec::new();
        let status = follow(&mut shell("echo a; exit 3"), None, &mut |bytes| {
            heard.extend_from_slice(bytes);
        });
        assert_eq!((heard, status.unwrap().code()), (b"a\n".into(), Some(3)));
        let output = output(&mut shell("echo b; echo c >&2"), Duration::from_secs(600)).unwrap();
        assert_eq!(
            (output.stdout, output.stderr),
            (b"b\n".into(), b"c\n".into())
        );
    }

    #[test]
    fn a_child_out_of_time_is_ended() {
        let limit = Duration::from_millis(1);
        let followed = follow(&mut shell("sleep 3600"), Some(limit), &mut |_| ());
        assert!(
            matches!(followed, Err(Trouble::OutOfTime(_))),
            "{followed:?}"
        );
        let output = output(&mut shell("sleep 3600"), limit);
        assert!(matches!(output, Err(Trouble::OutOfTime(_))), "{output:?}");
    }

    #[test]
    fn a_child_is_listened_to_until_it_has_said_enough() {
        let hear = |script: &str, limit| {
            let mut heard = Vec::new();
            let ended = listen(&mut shell(script), limit, &mut |line| {
                heard.push(line.to_owned());
                line == "enough"
            });
            (heard.join(" "), ended)
        };
        let long = Duration::from_secs(600);
        let (heard, ended) = hear("echo a; echo enough; sleep 3600", long);
        assert_eq!((heard.as_str(), ended.unwrap()), ("a enough", None));
        let (heard, ended) = hear("echo a; exit 3", long);
        let status = ended.unwrap().and_then(|status| status.code());
        assert_eq!((heard.as_str(), status), ("a", Some(3)));
        let (_, ended) = hear("sleep 3600", Duration::from_millis(1));
        assert!(matches!(ended, Err(Trouble::OutOfTime(_))), "{ended:?}");
    }

    #[test]
    fn what_a_child_has_started_ends_with_it() {
        let mut command = shell("(sleep 60; echo survived) & echo begun; wait; echo survived");
        let (mut child, watcher) = start(command.stdout(Stdio::piped())).unwrap();
        let printed = pieces_of(child.stdout.take().unwrap());
        assert_eq!(printed.recv().unwrap(), b"begun\n");
        drop(watcher);
        // The output ends when every process that could print has ended.
        let after: Vec<u8> = printed.iter().flatten().collect();
        assert_eq!(String::from_utf8_lossy(&after), "");
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let (mut lines, mut heard) = (Lines::default(), Vec::new());
        for piece in ["a", "b\nc\r\n\nd", "e"] {
            lines.take(piece.as_bytes(), &mut |line| heard.push(line.to_owned()));
        }
        lines.finish(&mut |line| heard.push(line.to_owned()));
        assert_eq!(heard, ["ab", "c", "", "de"]);
    }
}
