//! The comparison of passwords, for doors.

/// Whether `offered` is the password. The time depends only on the length of `offered`: nobody learns from it
/// how much of a guess was right.
#[must_use]
pub fn is_same(password: &[u8], offered: &[u8]) -> bool {
    let mut difference = u8::from(password.len() != offered.len());
    for (index, byte) in offered.iter().enumerate() {
        let expected = password
            .get(index % password.len().max(1))
            .copied()
            .unwrap_or(0);
        difference |= std::hint::black_box(byte ^ expected);
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn only_the_password_is_the_password() {
        assert!(is_same(b"secret", b"secret") && is_same(b"", b""));
        for other in [
            &b""[..],
            b"s",
            b"secre",
            b"secret1",
            b"Secret",
            b"secretsecret",
        ] {
            assert!(!is_same(b"secret", other));
        }
        assert!(!is_same(b"", b"a"));
    }
}
