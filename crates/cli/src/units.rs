//! Bytes, times and counts for people, with their units; and sizes parsed from text.

use std::time::Duration;

/// `1.5 MiB`, `312 B`.
#[must_use]
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// `840 ns`, `12.3 us`, `4.56 ms`, `1.23 s`.
#[must_use]
pub(crate) fn time(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos() as f64;
    match nanoseconds {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// `1,234,567`.
#[must_use]
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number in units of which `of` knows the sizes; `None` for any other text.
fn parse(text: &str, of: impl FnOnce(&str) -> Option<u64>) -> Option<u64> {
    let trimmed = text.trim();
    let is_other = |letter: char| !letter.is_ascii_digit();
    let (digits, unit) = trimmed.split_at(trimmed.find(is_other).unwrap_or(trimmed.len()));
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(of(unit.trim())?)
}

/// A size such as `4096`, `64KiB`, `64 MiB`, `1GB` (powers of 1024 either way), for the command line.
///
/// # Errors
/// Says what a size looks like.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let of = |unit: &str| match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kb" | "kib" => Some(1 << 10),
        "m" | "mb" | "mib" => Some(1 << 20),
        "g" | "gb" | "gib" => Some(1 << 30),
        "t" | "tb" | "tib" => Some(1 << 40),
        _ => None,
    };
    parse(text, of).ok_or_else(|| {
        format!("size `{text}`: a number with an optional unit, such as 64MiB or 4096")
    })
}

/// A count such as `5M`, `200k`, `1G` or `4096` (powers of 1000), for the command line.
///
/// # Errors
/// Says what a count looks like.
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    let of = |unit: &str| match unit {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "m" | "M" => Some(1_000_000),
        "g" | "G" => Some(1_000_000_000),
        _ => None,
    };
    parse(text, of).ok_or_else(|| {
        format!("count `{text}`: a number with an optional k, M or G, such as 5M or 4096")
    })
}

/// A time such as `500ms`, `60s`, `30m`, `2h`, for the command line.
///
/// # Errors
/// Says what a time looks like.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let of_ms = |unit: &str| match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let time = parse(text, of_ms).map(Duration::from_millis);
    time.ok_or_else(|| {
        format!("time `{text}`: a number with a unit, such as 500ms, 60s, 30m or 2h")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("64KiB", Some(64 << 10)),
            ("64 mb", Some(64 << 20)),
            ("2G", Some(2 << 30)),
            ("1TiB", Some(1 << 40)),
            ("", None),
            ("MiB", None),
            ("-1", None),
            ("1.5G", None),
            ("99999999TiB", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn counts_read_back() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("200k", Some(200_000)),
            ("5M", Some(5_000_000)),
            ("1 g", Some(1_000_000_000)),
            ("5MB", None),
            ("", None),
            ("M", None),
            ("99999999999G", None),
        ] {
            assert_eq!(parse_count(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn times_read_back() {
        for (text, expected_ms) in [
            ("500ms", Some(500)),
            ("60s", Some(60_000)),
            ("30 m", Some(1_800_000)),
            ("2h", Some(7_200_000)),
            ("60", None),
            ("60S", None),
            ("s", None),
            ("-1s", None),
            ("99999999999999999999s", None),
            ("9999999999999999999h", None),
        ] {
            let expected = expected_ms.map(Duration::from_millis);
            assert_eq!(parse_time(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn numbers_carry_their_units() {
        assert_eq!(bytes(312), "312 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
        assert_eq!(time(Duration::from_nanos(840)), "840 ns");
        assert_eq!(time(Duration::from_micros(4560)), "4.56 ms");
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
