//! Numbers in arguments and values: 64-bit integers in Redis' syntax, and its floats.
//!
//! Redis accepts one spelling of each integer: no sign but `-`, no leading zeros, no spaces. A value is
//! a number only in that spelling, so that writing the number back gives the same bytes.

mod extended;
mod natural;

pub(crate) use self::extended::Extended;

/// Bytes of the longest integer, `-9223372036854775808`.
pub(crate) const INTEGER_BYTES_MAX: usize = 20;

/// Parses a signed integer.
pub(crate) fn parse_i64(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        b"0" => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.len() >= INTEGER_BYTES_MAX || !matches!(digits.first(), Some(b'1'..=b'9')) {
        return None;
    }
    let mut magnitude: u64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    if negative {
        0_i64.checked_sub_unsigned(magnitude)
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// Parses a scan cursor: unsigned, and as lenient as C's `strtoul` is.
pub(crate) fn parse_cursor(bytes: &[u8]) -> Option<u64> {
    let (negative, digits) = match bytes {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut cursor: u64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        cursor = cursor.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(if negative {
        cursor.wrapping_neg()
    } else {
        cursor
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_spelling() {
        let good = [i64::MIN, -10, -1, 0, 1, 10, 1_000_000_007, i64::MAX];
        for number in good {
            assert_eq!(parse_i64(number.to_string().as_bytes()), Some(number));
        }
        let bad: [&[u8]; 14] = [
            b"",
            b"-",
            b"+1",
            b"01",
            b"-0",
            b"00",
            b" 1",
            b"1 ",
            b"1.0",
            b"0x1",
            b"1\0",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"18446744073709551616",
        ];
        for text in bad {
            assert_eq!(parse_i64(text), None, "{text:?}");
        }
    }

    #[test]
    fn cursors_are_lenient() {
        assert_eq!(parse_cursor(b""), Some(0));
        assert_eq!(parse_cursor(b"007"), Some(7));
        assert_eq!(parse_cursor(b"+7"), Some(7));
        assert_eq!(parse_cursor(b"-1"), Some(u64::MAX));
        assert_eq!(parse_cursor(b"18446744073709551615"), Some(u64::MAX));
        for text in [
            &b"18446744073709551616"[..],
            b"+",
            b"-",
            b" 1",
            b"1 ",
            b"0x1",
            b"x",
        ] {
            assert_eq!(parse_cursor(text), None, "{text:?}");
        }
    }
}
