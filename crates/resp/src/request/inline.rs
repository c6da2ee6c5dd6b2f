//! The words of an inline request, with Redis' quotes and escapes.

/// Splits a line into words and unquotes them in place: a word never gets longer than its source. `None`:
/// unbalanced quotes.
pub(crate) fn split_words(line: &mut [u8], offset: u32, spans: &mut Vec<(u32, u32)>) -> Option<()> {
    let mut read = 0;
    let mut write = 0;
    while let Some(&byte) = line.get(read) {
        if is_space(byte) {
            read += 1;
            continue;
        }
        let start = write;
        (read, write) = word(line, read, write)?;
        // A line has at most the query limit's bytes, which u32 can address.
        spans.push((offset + start as u32, offset + write as u32));
    }
    Some(())
}

/// Unquotes one word from `read` to `write`; returns both positions after it.
fn word(line: &mut [u8], mut read: usize, mut write: usize) -> Option<(usize, usize)> {
    while let Some(&byte) = line.get(read) {
        match byte {
            _ if is_space(byte) => break,
            b'"' | b'\'' => {
                (read, write) = quoted(line, read + 1, write, byte)?;
                // A closing quote must end the word.
                if line.get(read).is_some_and(|&next| !is_space(next)) {
                    return None;
                }
            }
            _ => {
                put(line, &mut write, byte);
                read += 1;
            }
        }
    }
    Some((read, write))
}

fn quoted(line: &mut [u8], mut read: usize, mut write: usize, quote: u8) -> Option<(usize, usize)> {
    loop {
        let byte = *line.get(read)?;
        read += 1;
        if byte == quote {
            return Some((read, write));
        }
        let next = line.get(read).copied();
        let plain = match (quote, byte, next) {
            (b'"', b'\\', Some(b'x')) => match hexadecimal(line, read + 1) {
                Some(value) => {
                    read += 3;
                    value
                }
                None => {
                    read += 1;
                    b'x'
                }
            },
            (b'"', b'\\', Some(escaped)) => {
                read += 1;
                unescape(escaped)
            }
            (b'\'', b'\\', Some(b'\'')) => {
                read += 1;
                b'\''
            }
            _ => byte,
        };
        put(line, &mut write, plain);
    }
}

fn put(line: &mut [u8], write: &mut usize, byte: u8) {
    if let Some(place) = line.get_mut(*write) {
        *place = byte;
    }
    *write += 1;
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn hexadecimal(line: &[u8], at: usize) -> Option<u8> {
    let digit = |index: usize| {
        line.get(index)
            .and_then(|&byte| char::from(byte).to_digit(16))
    };
    u8::try_from(digit(at)? * 16 + digit(at + 1)?).ok()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0)
}
