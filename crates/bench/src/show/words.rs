//! Text of tables and pages: numbers with their units, and what is escaped.

/// With everything that means something to HTML made harmless.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

/// Three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// `6.12 M/s`, `12.3 k/s`, `450 /s`.
pub(crate) fn rate(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M/s", digits(value / 1e6)),
        value if value >= 1e3 => format!("{} k/s", digits(value / 1e3)),
        value => format!("{} /s", digits(value)),
    }
}

/// `840 ns`, `12.3 µs`, `4.56 ms`, `1.20 s`, from nanoseconds.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{} ns", digits(ns)),
        ns if ns < 1e6 => format!("{} µs", digits(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", digits(ns / 1e6)),
        ns => format!("{} s", digits(ns / 1e9)),
    }
}

/// `16.2 B`, `2.10 KiB`.
pub(crate) fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = count;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", digits(value), UNITS[unit])
}

/// `82 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A sentence in lines of so many letters, if its words are not longer; from the second one on they begin
/// with `indent`.
pub(crate) fn lines(sentence: &str, letters: usize, indent: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let count = lines.len();
        let line = &mut lines[count - 1];
        if line.trim().is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= letters {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (text, expected) in [
            (rate(6.123e6), "6.12 M/s"),
            (rate(12_345.0), "12.3 k/s"),
            (rate(450.0), "450 /s"),
            (time(840.0), "840 ns"),
            (time(12_340.0), "12.3 µs"),
            (time(1.2e9), "1.20 s"),
            (bytes(16.23), "16.2 B"),
            (bytes(2150.0), "2.10 KiB"),
            (percent(0.823), "82 %"),
            (count(1_234_567), "1,234,567"),
        ] {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn nothing_of_html_survives() {
        assert_eq!(
            escaped("<b a=\"1\">'&</b>"),
            "&lt;b a=&quot;1&quot;&gt;&#39;&amp;&lt;/b&gt;"
        );
    }
}
