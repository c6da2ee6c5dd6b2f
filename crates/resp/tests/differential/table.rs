//! Tables of commands: one per line, words separated by spaces. `"..."` holds a word with `\xHH`, `\r`, `\n`,
//! `\"`, `\\`; `word*n` in braces, as in `{x*45}`, repeats a word; `2>` at the beginning sends the line on a
//! second connection; `#` starts a comment line.

pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) connection: usize,
    pub(crate) command: Vec<Vec<u8>>,
}

pub(crate) fn parse(text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (connection, line) = line.strip_prefix("2>").map_or((0, line), |rest| (1, rest));
        let number = index + 1;
        let command = words(line)
            .unwrap_or_else(|| panic!("line {number} of the table is not well-formed: {line}"));
        lines.push(Line {
            number,
            connection,
            command,
        });
    }
    lines
}

fn words(line: &str) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start().as_bytes();
    while !rest.is_empty() {
        let (word, behind) = match rest {
            [b'"', quoted @ ..] => quoted_word(quoted)?,
            [b'{', repeated @ ..] => repeated_word(repeated)?,
            _ => {
                let end = rest
                    .iter()
                    .position(|byte| *byte == b' ')
                    .unwrap_or(rest.len());
                (rest[..end].to_vec(), &rest[end..])
            }
        };
        words.push(word);
        rest = behind.trim_ascii_start();
    }
    Some(words)
}

fn quoted_word(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        rest = match rest {
            [b'"', behind @ ..] => return Some((word, behind)),
            [b'\\', b'x', high, low, behind @ ..] => {
                let digits = [*high, *low];
                word.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                behind
            }
            [b'\\', escaped, behind @ ..] => {
                word.push(match escaped {
                    b'r' => b'\r',
                    b'n' => b'\n',
                    other => *other,
                });
                behind
            }
            [byte, behind @ ..] => {
                word.push(*byte);
                behind
            }
            [] => return None,
        };
    }
}

fn repeated_word(rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let end = rest.iter().position(|byte| *byte == b'}')?;
    let (word, count) = std::str::from_utf8(&rest[..end]).ok()?.split_once('*')?;
    Some((
        word.repeat(count.parse().ok()?).into_bytes(),
        &rest[end + 1..],
    ))
}
