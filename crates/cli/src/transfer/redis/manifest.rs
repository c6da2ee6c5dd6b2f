//! The manifest of a multi-part AOF (Redis 7): which files there are, in which order they are loaded.
//!
//! One line for each: pairs of words, of which `file`, `seq` and `type` count. `b` is the base, `i` are the
//! increments, `h` are files that a rewrite has replaced. Other pairs and lines with `#` are skipped.

use anyhow::{Context, bail, ensure};
use everdram_resp::replay::words;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest manifest that is read. A line has some 50 bytes.
const BYTES_MAX: u64 = 16 << 20;
const ENDING: &str = ".manifest";
/// Redis writes a manifest under such a name first.
const UNFINISHED: &str = "temp-";

/// The files at `path`, in the order in which they are loaded: a directory with a manifest, a manifest, or a
/// single file.
pub(crate) fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let manifest = match std::fs::metadata(path)?.is_dir() {
        true => find(path)?,
        false if is_manifest(path) => path.to_owned(),
        false => return Ok(vec![path.to_owned()]),
    };
    let bytes = std::fs::metadata(&manifest)?.len();
    ensure!(bytes <= BYTES_MAX, "a manifest of {bytes} bytes");
    let text = std::fs::read(&manifest).with_context(|| format!("file {}", manifest.display()))?;
    let names = parse(&text).with_context(|| format!("file {}", manifest.display()))?;
    let directory = manifest.parent().unwrap_or(Path::new("."));
    Ok(names
        .iter()
        .map(|name| directory.join(OsStr::from_bytes(name)))
        .collect())
}

fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    name.ends_with(ENDING.as_bytes()) && !name.starts_with(UNFINISHED.as_bytes())
}

fn find(directory: &Path) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| is_manifest(path));
    match paths.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "no file *{ENDING} in it: give Redis' appenddirname (usually `appendonlydir` in its working directory), \
             or one file that Redis wrote"
        ),
        [one, other, ..] => bail!(
            "several manifests in it: give one of them, {} or {}",
            one.display(),
            other.display()
        ),
    }
}

/// The names of the files to load: the base, if there is one, then the increments.
fn parse(text: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
    let (mut base, mut increments, mut last) = (None, Vec::new(), 0);
    let lines = text
        .strip_suffix(b"\n")
        .unwrap_or(text)
        .split(|&byte| byte == b'\n');
    for (index, line) in lines
        .enumerate()
        .filter(|(_, line)| !line.starts_with(b"#"))
    {
        let (name, sequence, kind) =
            parse_line(line).with_context(|| format!("line {}", index + 1))?;
        match kind {
            b'b' if base.is_some() => bail!("line {}: a second base", index + 1),
            b'b' => base = Some(name),
            b'i' if sequence <= last => {
                bail!("line {}: sequence {sequence} after {last}", index + 1)
            }
            b'i' => {
                last = sequence;
                increments.push(name);
            }
            _ => {}
        }
    }
    ensure!(
        base.is_some() || !increments.is_empty(),
        "it names no file to load"
    );
    Ok(base.into_iter().chain(increments).collect())
}

fn parse_line(line: &[u8]) -> anyhow::Result<(Vec<u8>, u64, u8)> {
    let (mut name, mut sequence, mut kind) = (None, None, None);
    let words = words(line.trim_ascii_end().to_vec()).context("unbalanced quotes")?;
    ensure!(words.len() % 2 == 0, "a word without its value");
    for pair in words.chunks_exact(2) {
        match pair {
            [word, value] if word == b"file" => name = Some(value.clone()),
            [word, value] if word == b"seq" => sequence = std::str::from_utf8(value)?.parse().ok(),
            [word, value] if word == b"type" => {
                kind = value.first().copied().filter(|_| value.len() == 1)
            }
            _ => {}
        }
    }
    let name = name.context("no `file`")?;
    let is_name = !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| b"/\0".contains(byte));
    ensure!(
        is_name,
        "`{}` is no name of a file in this directory",
        name.escape_ascii()
    );
    let kind = kind
        .filter(|kind| b"bih".contains(kind))
        .context("no `type` of b, i or h")?;
    Ok((name, sequence.context("no `seq`, or no number")?, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let names = parse(text.as_bytes()).map_err(|error| format!("{error:#}"))?;
        Ok(names
            .into_iter()
            .map(|name| String::from_utf8(name).unwrap())
            .collect())
    }

    #[test]
    fn the_base_comes_first_and_history_not_at_all() {
        let text = "# by hand\nfile a.2.incr.aof seq 2 type i startoffset 7\nfile old seq 1 type h\n\
                    file \"a b\\x2e1\" seq 1 type b\r\nfile a.9.incr.aof seq 9 type i\n";
        assert_eq!(
            names(text).unwrap(),
            ["a b.1", "a.2.incr.aof", "a.9.incr.aof"]
        );
        assert_eq!(names("file a seq 1 type i").unwrap(), ["a"]);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, why) in [
            ("", "line 1: no `file`"),
            ("file a seq 1 type b\n\n", "line 2: no `file`"),
            (
                "file a seq 1 type b\nfile b seq 1 type b\n",
                "line 2: a second base",
            ),
            (
                "file a seq 2 type i\nfile b seq 2 type i\n",
                "line 2: sequence 2 after 2",
            ),
            ("file ../a seq 1 type b", "line 1: `../a` is no name"),
            ("file \"\" seq 1 type b", "line 1: `` is no name"),
            ("file a seq x type b", "line 1: no `seq`"),
            ("file a seq 1 type x", "line 1: no `type`"),
            ("file a seq 1 type", "line 1: a word without"),
            ("file \"a seq 1 type b", "line 1: unbalanced"),
            ("file a seq 1 type h", "no file to load"),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
