//! Numbers in lines of text: a fixed number of digits in base 64, the highest first.

const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

/// Writes a number into all of `into`. Higher digits than fit are lost.
pub(super) fn put(into: &mut [u8], mut number: u64) {
    for digit in into.iter_mut().rev() {
        *digit = DIGITS[(number & 63) as usize];
        number >>= 6;
    }
}

/// The number in `digits`; `None` if they are none, or too many for 64 bits.
pub(super) fn get(digits: &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'A'..=b'Z' => digit - b'A' + 10,
            b'a'..=b'z' => digit - b'a' + 36,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        if number >> 58 != 0 {
            return None;
        }
        number = number << 6 | u64::from(value);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back() {
        let mut digits = [0; 11];
        for number in [0, 1, 63, 64, 4095, 1 << 47, u64::MAX] {
            put(&mut digits, number);
            assert_eq!(get(&digits), Some(number), "{number}");
        }
        assert_eq!(get(b"__________*"), None);
        assert_eq!(get(b"___________"), None, "66 bits");
    }
}
