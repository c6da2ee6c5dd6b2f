//! Replies as a client must be able to read them: RESP2 and RESP3, without remaining bytes, every length as
//! announced.

/// The number of replies in these bytes.
///
/// # Errors
/// The offset of the first byte that belongs to no reply, and what is wrong there.
pub fn count(bytes: &[u8]) -> Result<usize, (usize, &'static str)> {
    let (mut at, mut replies) = (0, 0);
    while at < bytes.len() {
        at = reply(bytes, at, 0)?;
        replies += 1;
    }
    Ok(replies)
}

/// Where the reply at `at` ends.
fn reply(bytes: &[u8], at: usize, depth: usize) -> Result<usize, (usize, &'static str)> {
    let (line, next) = line(bytes, at)?;
    let Some((kind, rest)) = line.split_first() else {
        return Err((at, "an empty line"));
    };
    if depth > 16 {
        return Err((at, "too deep"));
    }
    let number = || number(rest).ok_or((at, "no number"));
    match kind {
        b'+' | b'-' => Ok(next),
        b':' => number().map(|_| next),
        b'_' if rest.is_empty() => Ok(next),
        b'#' if rest == b"t" || rest == b"f" => Ok(next),
        b',' if !rest.is_empty() => Ok(next),
        b'$' | b'=' => match number()? {
            -1 => Ok(next),
            length => {
                let end = next + usize::try_from(length).map_err(|_| (at, "a negative length"))?;
                match bytes.get(end..end + 2) {
                    Some(b"\r\n") => Ok(end + 2),
                    _ => Err((at, "a string that does not end where it says")),
                }
            }
        },
        b'*' | b'~' | b'>' | b'%' => {
            let parts = number()?.max(0) * if *kind == b'%' { 2 } else { 1 };
            (0..parts).try_fold(next, |at, _| reply(bytes, at, depth + 1))
        }
        _ => Err((at, "a kind that is none")),
    }
}

fn line(bytes: &[u8], at: usize) -> Result<(&[u8], usize), (usize, &'static str)> {
    let rest = bytes.get(at..).unwrap_or_default();
    let end = rest
        .iter()
        .position(|&byte| byte == b'\n')
        .ok_or((at, "no end of line"))?;
    match rest[..end].split_last() {
        Some((b'\r', line)) if !line.contains(&b'\r') => Ok((line, at + end + 1)),
        _ => Err((at, "a line that does not end in CR LF")),
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn replies_are_counted_and_judged() {
        assert_eq!(
            count(b"+OK\r\n*2\r\n:1\r\n$1\r\na\r\n%1\r\n_\r\n#t\r\n"),
            Ok(3)
        );
        for bad in [
            &b"+OK"[..],
            b"$3\r\nab\r\n",
            b"*2\r\n:1\r\n",
            b":x\r\n",
            b"?\r\n",
            b"+a\rb\r\n",
        ] {
            assert!(count(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
