//! LZF, with which RDB files compress strings: literals, and copies of what stands up to 8 KiB before.

/// Most bytes that three bytes of input can stand for: the longest copy.
const EXPANSION_MAX: u64 = 264 / 3;

/// Whether `packed` bytes can become `bytes` bytes.
pub(crate) fn can_become(packed: u64, bytes: u64) -> bool {
    bytes <= packed.saturating_mul(EXPANSION_MAX)
}

/// Unpacks `packed` behind what `into` holds. `None`: it is not exactly `bytes` bytes that LZF packed.
pub(crate) fn unpack(packed: &[u8], bytes: usize, into: &mut Vec<u8>) -> Option<()> {
    let start = into.len();
    let end = start.checked_add(bytes)?;
    let mut rest = packed.iter();
    while let Some(&control) = rest.next() {
        let control = usize::from(control);
        if control < 32 {
            let (literal, behind) = rest.as_slice().split_at_checked(control + 1)?;
            into.extend_from_slice(literal);
            rest = behind.iter();
        } else {
            let mut length = control >> 5;
            if length == 7 {
                length += usize::from(*rest.next()?);
            }
            let back = (control & 31) << 8 | usize::from(*rest.next()?);
            let from = into
                .len()
                .checked_sub(back + 1)
                .filter(|from| *from >= start)?;
            // The copy may overlap what it makes.
            for at in from..from + length + 2 {
                into.push(*into.get(at)?);
            }
        }
        if into.len() > end {
            return None;
        }
    }
    (into.len() == end).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies() {
        let unpacked = |packed: &[u8], bytes| {
            let mut into = b"before".to_vec();
            unpack(packed, bytes, &mut into).map(|()| into.split_off(6))
        };
        assert_eq!(unpacked(b"\x02abc", 3).unwrap(), b"abc");
        assert_eq!(unpacked(b"\x00a\x20\x00", 4).unwrap(), b"aaaa");
        assert_eq!(
            unpacked(b"\x01ab\xe0\x01\x01", 12).unwrap(),
            b"abababababab"
        );
        let wrong: [(&[u8], usize); 6] = [
            (b"\x02abc", 4),
            (b"\x02abc", 2),
            (b"\x05abc", 3),
            (b"\x00a\x20\x01", 4),
            (b"\x00a\xe0", 4),
            (b"\x00a\x20", 4),
        ];
        for (packed, bytes) in wrong {
            assert_eq!(unpacked(packed, bytes), None, "{packed:?}");
        }
        assert!(can_become(3, 264) && !can_become(3, 265));
    }
}
