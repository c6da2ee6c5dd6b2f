//! Patterns of KEYS, SCAN MATCH and CONFIG GET: `*`, `?`, `[a-z]`, `[^a]`, `\x`, over bytes.
//!
//! The matcher walks pattern and text with two positions and one fallback: the last `*`. It needs no stack
//! and no memory. Its steps are bounded, so that a pattern of many stars over a long key cannot block a
//! thread; beyond the bound nothing matches.

/// Most steps of one match; enough for any pattern of 1,000 bytes over any text of 4,000.
const STEPS_MAX: u32 = 4_000_000;

/// Whether all of `text` matches `pattern`.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // The pattern after the last star, and the text that this star does not cover yet.
    let mut fallback: Option<(&[u8], &[u8])> = None;
    for _ in 0..STEPS_MAX {
        if let Some((b'*', behind)) = pattern.split_first() {
            if behind.is_empty() {
                return true;
            }
            fallback = Some((behind, text));
            pattern = behind;
            continue;
        }
        let step = match text.split_first() {
            None => return pattern.is_empty(),
            Some((&byte, rest)) => match_byte(pattern, byte).map(|behind| (behind, rest)),
        };
        if let Some(both) = step {
            (pattern, text) = both;
            continue;
        }
        // The star covers one byte more, and the pattern after it starts over.
        let Some((behind, uncovered)) = fallback else {
            return false;
        };
        let Some((_, rest)) = uncovered.split_first() else {
            return false;
        };
        fallback = Some((behind, rest));
        (pattern, text) = (behind, rest);
    }
    false
}

/// Matches one byte against the first element of `pattern`, which is not a star; returns the pattern after
/// that element.
fn match_byte(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (matched, behind) = match pattern {
        [] => return None,
        [b'?', behind @ ..] => (true, behind),
        [b'[', class @ ..] => match_class(class, byte),
        [b'\\', escaped, behind @ ..] => (*escaped == byte, behind),
        [literal, behind @ ..] => (*literal == byte, behind),
    };
    matched.then_some(behind)
}

/// Matches `byte` against the class at the start of `class`, after its `[`; returns the pattern after its
/// `]`. A class without an end extends to the end of the pattern.
fn match_class(class: &[u8], byte: u8) -> (bool, &[u8]) {
    let (negated, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut matched = false;
    loop {
        rest = match rest {
            [] => return (matched != negated, rest),
            [b']', behind @ ..] => return (matched != negated, behind),
            [b'\\', escaped, behind @ ..] => {
                matched |= *escaped == byte;
                behind
            }
            [from, b'-', to, behind @ ..] => {
                matched |= (*from.min(to)..=*from.max(to)).contains(&byte);
                behind
            }
            [literal, behind @ ..] => {
                matched |= *literal == byte;
                behind
            }
        };
    }
}

/// The bytes with which every text begins that the pattern matches.
pub(crate) fn prefix(pattern: &[u8]) -> &[u8] {
    let special = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
    let end = pattern.iter().position(special);
    &pattern[..end.unwrap_or(pattern.len())]
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        let cases: &[(&str, &str, bool)] = &[
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("***", "abc", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("*a*b*", "xxaxxbxx", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h[a-b", "hb", true),
            ("h[a-b", "hc", false),
            ("[]", "a", false),
            ("[^]", "a", true),
            ("[a-]", "-", false),
            ("[\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("[", "a", false),
            ("a[", "a", false),
        ];
        for &(pattern, text, expected) in cases {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "pattern {pattern:?} on {text:?}"
            );
        }
        assert!(
            matches(b"\xff*\0", b"\xffabc\0"),
            "patterns are bytes, not text"
        );
    }

    #[test]
    fn hostile_pattern_ends() {
        let pattern = b"*a".repeat(30_000);
        let text = [b"a".repeat(60_000), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &text));
    }
}
