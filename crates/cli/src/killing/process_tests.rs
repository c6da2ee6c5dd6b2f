//! Failures of a server are detected: a server that died does not count as killed, and one that hangs is
//! killed after the limit.
//!
//! The servers are shell scripts. One test runs all of them in sequence. Without this, another thread could
//! start a process while a script is being written, and starting the script would fail ("text file busy").

use super::*;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

/// Limit for a server that hangs; long enough for everything that happens at once.
const LIMIT: Duration = Duration::from_millis(300);
const HANG: &str = "exec sleep 1000";

/// Launches a script in `directory` as the server. Its log already has a line.
fn launch(directory: &Path, script: &str) -> Launch {
    let program = directory.join("server");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let log = directory.join("log");
    std::fs::write(&log, "what went before\n").unwrap();
    Launch {
        program,
        pool: directory.join("pool"),
        log,
        arguments: Vec::new(),
    }
}

/// A script that announces it is ready, with a port that answers one PING. Then it runs `then`.
fn ready(then: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 14]).unwrap();
        stream.write_all(b"+PONG\r\n").unwrap();
    });
    format!("echo '{{\"port\": {port}}}'; {then}")
}

fn must_be_misconduct<T>(ended: anyhow::Result<T>, words: &str) {
    let error = ended.err().expect(words);
    assert!(error.is::<Misconduct>(), "{error:#}");
    let text = format!("{error:#}");
    assert!(text.contains(words), "{text}");
    assert!(text.ends_with("what went before"), "no log: {text}");
}

#[test]
fn servers_that_misbehave_are_convicted() {
    let directory = tempfile::tempdir().unwrap();
    let launch = |script: &str| launch(directory.path(), script);

    let died = launch("exit 3").start();
    must_be_misconduct(died, "did not start (exit status: 3)");
    let hung = launch(HANG).start_within(LIMIT);
    must_be_misconduct(hung, "did not come up in 300ms");
    let mumbled = launch(&format!("echo hello; {HANG}")).start();
    must_be_misconduct(mumbled, "did not start (signal: 9 (SIGKILL))");

    let died = launch(&ready("exit 4")).start().unwrap();
    must_be_misconduct(died.close(), "ended with exit status: 4");
    let hung = launch(&ready(HANG)).start().unwrap();
    must_be_misconduct(hung.close_within(LIMIT), "did not in 300ms");
    let closed = launch(&ready("cat >/dev/null")).start().unwrap();
    closed.close().unwrap();

    let failed = kill_at_the_end_of_output(&launch("exit 1"));
    must_be_misconduct(
        failed,
        "ended by itself before it was killed: exit status: 1",
    );
    kill_at_the_end_of_output(&launch(&format!("exec >/dev/null; {HANG}"))).unwrap();
}

/// A process that has ended is a zombie until its parent waits for it, and kill(2) of a zombie succeeds.
/// Because of this, failed recoveries once counted as kills.
fn kill_at_the_end_of_output(launch: &Launch) -> anyhow::Result<()> {
    let mut child = launch.spawn().unwrap();
    // The kernel closes the output of an ending process when no signal can change its status any more.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_to_end(&mut Vec::new()).unwrap();
    put_down(&mut child, &launch.log)
}
