//! Which pool a door serves.

use std::fmt;
use std::str::FromStr;

/// The uuid of a pool, drawn when the pool was made; as text, 32 hexadecimal digits. `everdram inspect`
/// prints it. A copy of a pool has the same.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub [u8; 16]);

impl fmt::Display for PoolId {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(into, "{byte:02x}"))
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, into)
    }
}

/// A text that is no identity of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pool is named by 32 hexadecimal digits")]
pub struct NoPoolId;

impl FromStr for PoolId {
    type Err = NoPoolId;

    fn from_str(text: &str) -> Result<PoolId, NoPoolId> {
        let is_hex = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        let mut number = number.ok_or(NoPoolId)?;
        let mut bytes = [0; 16];
        for byte in bytes.iter_mut().rev() {
            *byte = (number & 0xff) as u8;
            number >>= 8;
        }
        Ok(PoolId(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_agree() {
        let pool = PoolId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff]);
        let text = "000102030405060708090a0b0c0d0eff";
        assert_eq!(pool.to_string(), text);
        assert_eq!(text.parse(), Ok(pool));
        for bad in ["", "+00102030405060708090a0b0c0d0eff", &text[1..], "zz"] {
            assert_eq!(bad.parse::<PoolId>(), Err(NoPoolId), "{bad}");
        }
    }
}
