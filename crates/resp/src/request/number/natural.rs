//! Natural numbers of any size, with the operations that parsing and printing floats need: little-endian
//! 32-bit limbs without leading zeros, so the empty list is zero.
//!
//! Sizes are bounded by the caller: a float has at most some 33,000 bits before the point.

use std::cmp::Ordering;

/// 10 to this power is the largest power of ten in a limb.
const LIMB_DIGITS: u32 = 9;
const LIMB_TEN: u32 = 1_000_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Natural(Vec<u32>);

impl Natural {
    /// From decimal digits (values 0 to 9), most significant first.
    pub(super) fn from_digits(digits: impl Iterator<Item = u8>) -> Self {
        let mut number = Natural::default();
        let (mut pending, mut factor) = (0_u32, 1_u32);
        for digit in digits {
            pending = pending * 10 + u32::from(digit);
            factor *= 10;
            if factor == LIMB_TEN {
                number.multiply_add(factor, pending);
                (pending, factor) = (0, 1);
            }
        }
        number.multiply_add(factor, pending);
        number
    }

    pub(super) fn from_u64(number: u64) -> Self {
        Natural(vec![number as u32, (number >> 32) as u32]).trimmed()
    }

    /// Bits without leading zeros; 0 for zero.
    pub(super) fn bits(&self) -> usize {
        self.0
            .last()
            .map_or(0, |top| self.0.len() * 32 - top.leading_zeros() as usize)
    }

    fn trimmed(mut self) -> Self {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    pub(super) fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for limb in &mut self.0 {
            let product = u64::from(*limb) * u64::from(factor) + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry != 0 {
            self.0.push(carry as u32);
        }
    }

    pub(super) fn times_power_of_ten(mut self, power: u32) -> Self {
        for _ in 0..power / LIMB_DIGITS {
            self.multiply_add(LIMB_TEN, 0);
        }
        self.multiply_add(10_u32.pow(power % LIMB_DIGITS), 0);
        self
    }

    pub(super) fn shifted_left(&self, bits: usize) -> Self {
        let (limbs, bits) = (bits / 32, bits % 32);
        let mut out = vec![0; limbs];
        let mut carry = 0_u64;
        for limb in &self.0 {
            let wide = (u64::from(*limb) << bits) | carry;
            out.push(wide as u32);
            carry = wide >> 32;
        }
        out.push(carry as u32);
        Natural(out).trimmed()
    }

    /// The number without its lowest `bits` bits, truncated to 128 bits, and whether a lost bit was set.
    pub(super) fn shifted_right(&self, bits: usize) -> (u128, bool) {
        let (limbs, bits) = (bits / 32, bits % 32);
        let lost_limbs = self.0.iter().take(limbs).any(|limb| *limb != 0);
        let mut number = 0_u128;
        for (index, limb) in self.0.iter().skip(limbs).take(4).enumerate() {
            number |= u128::from(*limb) << (32 * index);
        }
        let lost_bits = number & ((1 << bits) - 1) != 0;
        (number >> bits, lost_limbs || lost_bits)
    }

    fn subtract(&mut self, other: &Natural) {
        let mut borrow = 0_u64;
        for (index, limb) in self.0.iter_mut().enumerate() {
            let take = u64::from(other.0.get(index).copied().unwrap_or(0)) + borrow;
            let (rest, under) = u64::from(*limb).overflowing_sub(take);
            *limb = rest as u32;
            borrow = u64::from(under);
        }
        *self = Natural(std::mem::take(&mut self.0)).trimmed();
    }

    /// Quotient, and whether there is a remainder. The quotient must have at most 127 bits.
    pub(super) fn divided_by(mut self, divisor: &Natural) -> (u128, bool) {
        let mut quotient = 0_u128;
        let steps = (self.bits() + 1).saturating_sub(divisor.bits());
        for shift in (0..steps).rev() {
            let part = divisor.shifted_left(shift);
            quotient <<= 1;
            if self.cmp(&part) != Ordering::Less {
                self.subtract(&part);
                quotient |= 1;
            }
        }
        (quotient, !self.0.is_empty())
    }

    /// Appends the decimal digits to `out`.
    pub(super) fn print(mut self, out: &mut Vec<u8>) {
        let mut groups = Vec::new();
        while !self.0.is_empty() {
            let mut remainder = 0_u64;
            for limb in self.0.iter_mut().rev() {
                let wide = (remainder << 32) | u64::from(*limb);
                *limb = (wide / u64::from(LIMB_TEN)) as u32;
                remainder = wide % u64::from(LIMB_TEN);
            }
            groups.push(remainder);
            self = self.trimmed();
        }
        let leading = groups.pop().unwrap_or(0);
        out.extend_from_slice(leading.to_string().as_bytes());
        for group in groups.iter().rev() {
            out.extend_from_slice(format!("{group:09}").as_bytes());
        }
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn natural(text: &str) -> Natural {
        Natural::from_digits(text.bytes().map(|byte| byte - b'0'))
    }

    fn printed(number: Natural) -> String {
        let mut out = Vec::new();
        number.print(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn digits_come_back() {
        for text in [
            "0",
            "1",
            "4294967295",
            "4294967296",
            "340282366920938463463374607431768211456",
        ] {
            assert_eq!(printed(natural(text)), text);
        }
        assert_eq!(
            printed(natural("12").times_power_of_ten(20)),
            format!("12{}", "0".repeat(20))
        );
    }

    #[test]
    fn shifts_and_divisions_are_exact() {
        let number = Natural::from_u64(0xdead_beef_1234_5678);
        let wide = number.shifted_left(77);
        assert_eq!(wide.bits(), 64 + 77);
        assert_eq!(wide.shifted_right(77), (0xdead_beef_1234_5678, false));
        assert_eq!(wide.shifted_right(90), (0xdead_beef_1234_5678 >> 13, true));
        assert_eq!(
            natural("1000000000000000000000").divided_by(&natural("7")),
            (142_857_142_857_142_857_142, true)
        );
        assert_eq!(natural("91").divided_by(&natural("7")), (13, false));
        assert_eq!(natural("6").divided_by(&natural("7")), (0, true));
    }
}
