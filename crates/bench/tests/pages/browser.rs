//! Chromium without a window: looks at a page, keeps a screenshot, and says what it found.
//!
//! The page is in a frame of the width that is asked for, since a window of Chromium has at least 500
//! pixels. `look.js`, which runs in it, writes what it finds on the console; what else is there are errors of
//! the page.

use serde::Deserialize;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Names under which it is installed.
const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];
/// A look that takes longer is ended.
const LOOK_MAX: Duration = Duration::from_secs(60);
/// Pixels of a screenshot's height.
const HEIGHT: u32 = 4000;
/// Whatever a page asks for, it is refused, and the console says so.
const ALONE: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
                     style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>";
const LOOK: &str = include_str!("look.js");

/// What the person wants who looks at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub(crate) const ALL: [Scheme; 2] = [Scheme::Light, Scheme::Dark];

    /// Its name in files, and its number in Chromium's settings.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Scheme::Light => ("light", "preferredColorScheme=1"),
            Scheme::Dark => ("dark", "preferredColorScheme=0"),
        }
    }
}

/// What there was to see.
pub(crate) struct Seen {
    /// What is wrong.
    pub(crate) findings: Vec<String>,
    /// Pixels that the page had.
    pub(crate) width: u32,
    pub(crate) scheme: Scheme,
    pub(crate) pictures: usize,
    /// Texts whose contrast was judged.
    pub(crate) texts: usize,
}

/// The last line of `look.js`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Looked {
    width: u32,
    is_dark: bool,
    pictures: usize,
    texts: usize,
}

/// A program that shows pages.
pub(crate) struct Browser(PathBuf);

impl Browser {
    /// The one that is installed.
    pub(crate) fn find() -> Option<Browser> {
        let path = std::env::var_os("PATH")?;
        let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let mut all = NAMES
            .iter()
            .flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
        all.find(|file| file.is_file()).map(Browser)
    }

    /// Looks at a page in a window of this width.
    ///
    /// # Panics
    /// If Chromium does not show it.
    pub(crate) fn look(&self, name: &str, page: &str, width: u32, scheme: Scheme) -> Seen {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("<script>{LOOK}</script></body>");
        let page = page.replace("<head>", &format!("<head>{ALONE}"));
        let page = page.replace("</body>", &script);
        write(dir.path(), "page.html", &page);
        let frame = format!(
            "<!DOCTYPE html><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\">\
             <style>body {{ margin: 0; }} iframe {{ display: block; border: 0; width: {width}px; height: 100vh; }}\
             </style><iframe src=\"page.html\"></iframe>"
        );
        write(dir.path(), "frame.html", &frame);
        let (word, setting) = scheme.words();
        let shots = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
        fs::create_dir_all(&shots).unwrap();
        let shot = shots.join(format!("{name}-{width}-{word}.png"));
        let _was_not_there = fs::remove_file(&shot);
        let mut command = Command::new(&self.0);
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--hide-scrollbars", "--enable-logging=stderr"])
            .arg(format!(
                "--user-data-dir={}",
                dir.path().join("profile").display()
            ))
            .arg(format!("--blink-settings={setting}"))
            .arg(format!("--window-size={width},{HEIGHT}"))
            .arg(format!("--screenshot={}", shot.display()))
            .arg(format!(
                "file://{}",
                dir.path().join("frame.html").display()
            ));
        let said = run(&mut command, &dir.path().join("said"));
        let said = said.unwrap_or_else(|why| panic!("{name}, {width} pixels: {why}"));
        assert!(shot.is_file(), "no screenshot of {name}: {said}");
        let seen = Seen::of(&said);
        seen.unwrap_or_else(|| panic!("{name} was not looked at: {said}"))
    }
}

impl Seen {
    fn of(said: &str) -> Option<Seen> {
        let mut looked: Option<Looked> = None;
        let mut findings = Vec::new();
        for message in said.lines().filter_map(message) {
            match message.strip_prefix("looked: ") {
                Some(text) => looked = serde_json::from_str(text).ok(),
                None => findings.push(message.to_owned()),
            }
        }
        let looked = looked?;
        Some(Seen {
            findings,
            width: looked.width,
            scheme: if looked.is_dark {
                Scheme::Dark
            } else {
                Scheme::Light
            },
            pictures: looked.pictures,
            texts: looked.texts,
        })
    }
}

/// What a line of Chromium's log says that came from the console of a page:
/// `[1:1:1128/072000.533395:INFO:CONSOLE:1] "text", source: file:///... (1)`.
fn message(line: &str) -> Option<&str> {
    let (_, message) = line.split_once(":CONSOLE")?.1.split_once("] \"")?;
    Some(
        message
            .rsplit_once("\", source: ")
            .map_or(message, |(text, _)| text),
    )
}

/// Runs a program to its end, and ends it with all that it started if that takes too long. Returns what it
/// said.
fn run(command: &mut Command, said: &Path) -> Result<String, String> {
    let log = File::create(said).unwrap();
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let mut child = child.spawn().map_err(|error| error.to_string())?;
    let group = rustix::process::Pid::from_child(&child);
    let (ended, has_ended) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let status = child.wait();
        let _nobody_waits = ended.send(status);
    });
    let status = has_ended.recv_timeout(LOOK_MAX);
    if status.is_err() {
        let killed = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        killed.map_err(|error| error.to_string())?;
    }
    waiter.join().unwrap();
    let said = fs::read_to_string(said).unwrap();
    match status {
        Ok(Ok(status)) if status.success() => Ok(said),
        Ok(status) => Err(format!("{status:?}: {said}")),
        Err(_) => Err(format!("it took more than {LOOK_MAX:?}: {said}")),
    }
}

fn write(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).unwrap();
}
