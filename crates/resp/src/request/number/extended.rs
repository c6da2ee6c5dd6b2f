//! The float of INCRBYFLOAT: x87 extended precision (64-bit significand, 15-bit exponent), as Redis has it on
//! most machines.
//!
//! Parsing, adding and printing round exactly as the C library and the processor do (to nearest, ties to
//! even). So a counter of fractions has the same digits as in Redis. All computation is on integers, so the
//! result does not depend on the machine.
//!
//! A finite number is `significand * 2^exponent`; the significand's top bit is set unless the number is zero
//! or subnormal (exponent at its minimum).

use super::natural::Natural;

/// Exponent of the lowest bit of the smallest numbers.
const EXPONENT_MIN: i32 = -16_445;
/// Exponent of the lowest bit of the largest numbers.
const EXPONENT_MAX: i32 = 16_320;
/// Longest text accepted as a number.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;
/// Decimal places to print, before trailing zeros are dropped.
const PLACES: usize = 17;
/// 10 to the power of `PLACES`.
const PLACES_UNIT: u128 = 100_000_000_000_000_000;
/// Larger decimal exponents always overflow, smaller ones than its negative always vanish.
const DECIMAL_EXPONENT_MAX: i64 = 5_000;

/// A finite or infinite number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extended {
    negative: bool,
    magnitude: Magnitude,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Magnitude {
    Infinite,
    Finite { significand: u64, exponent: i32 },
}

impl Extended {
    /// The number of an absent value.
    pub(crate) const ZERO: Extended = Extended {
        negative: false,
        magnitude: Magnitude::Finite {
            significand: 0,
            exponent: EXPONENT_MIN,
        },
    };

    /// Parses decimal or hexadecimal text as C's `strtold` does; `None` where Redis reports an invalid float:
    /// not a number, or out of range.
    pub(crate) fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let magnitude =
            if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
                Magnitude::Infinite
            } else if let [b'0', b'x' | b'X', digits @ ..] = text {
                Digits::parse(digits, 16, b'p')?.hexadecimal()?
            } else {
                Digits::parse(text, 10, b'e')?.decimal()?
            };
        Some(Extended {
            negative,
            magnitude,
        })
    }

    /// The sum, or `None` if it is not finite.
    pub(crate) fn add(self, other: Extended) -> Option<Extended> {
        let (
            Magnitude::Finite {
                significand: a,
                exponent: a_exponent,
            },
            Magnitude::Finite {
                significand: b,
                exponent: b_exponent,
            },
        ) = (self.magnitude, other.magnitude)
        else {
            return None;
        };
        if a_exponent < b_exponent || (a_exponent == b_exponent && a < b) {
            return other.add(self);
        }
        // Guard bits below the larger number, so that bits lost from the smaller one cannot change the
        // rounding of the sum; a lost set bit sets the lowest bit.
        const SPARE: u32 = 62;
        let large = u128::from(a) << SPARE;
        let distance = a_exponent.abs_diff(b_exponent);
        let small = shift_keeping_lowest(u128::from(b) << SPARE, distance);
        let sum = if self.negative == other.negative {
            large + small
        } else {
            large - small
        };
        let magnitude = round(sum, a_exponent - SPARE as i32)?;
        let zero = matches!(magnitude, Magnitude::Finite { significand: 0, .. });
        let negative = if zero {
            self.negative && other.negative
        } else {
            self.negative
        };
        Some(Extended {
            negative,
            magnitude,
        })
    }

    /// Appends the number with up to 17 decimal places. Infinity is never printed: no sum is infinite.
    pub(crate) fn print(self, out: &mut Vec<u8>) {
        let Magnitude::Finite {
            significand,
            exponent,
        } = self.magnitude
        else {
            return;
        };
        let start = out.len();
        if self.negative {
            out.push(b'-');
        }
        match usize::try_from(exponent) {
            Ok(shift) => Natural::from_u64(significand)
                .shifted_left(shift)
                .print(out),
            Err(_) => print_fraction(significand, exponent.unsigned_abs(), out),
        }
        if out.get(start..) == Some(b"-0") {
            out.remove(start);
        }
    }
}

/// Prints `significand / 2^shift` without trailing zeros.
fn print_fraction(significand: u64, shift: u32, out: &mut Vec<u8>) {
    let scaled = round_shift(u128::from(significand) * PLACES_UNIT, shift);
    let (whole, mut fraction) = (scaled / PLACES_UNIT, scaled % PLACES_UNIT);
    out.extend_from_slice(whole.to_string().as_bytes());
    if fraction == 0 {
        return;
    }
    let mut places = PLACES;
    while fraction % 10 == 0 {
        fraction /= 10;
        places -= 1;
    }
    out.extend_from_slice(format!(".{fraction:0places$}").as_bytes());
}

/// Shifts right; a lost set bit sets the lowest bit.
fn shift_keeping_lowest(number: u128, shift: u32) -> u128 {
    let shifted = number.checked_shr(shift).unwrap_or(0);
    let lost = shifted.checked_shl(shift).unwrap_or(0) != number;
    shifted | u128::from(lost)
}

/// Shifts right, rounding to nearest, ties to even.
fn round_shift(number: u128, shift: u32) -> u128 {
    match shift {
        0 => number,
        1..=127 => {
            let (floor, lost) = (number >> shift, number & ((1 << shift) - 1));
            let half = 1_u128 << (shift - 1);
            floor + u128::from(lost > half || (lost == half && floor & 1 == 1))
        }
        // Our numbers stay far below half of 2^128.
        _ => 0,
    }
}

/// The representable number nearest to `number * 2^exponent`, where a set lowest bit may stand for bits below
/// it; `None` on overflow. `number` has at most 127 bits.
fn round(number: u128, exponent: i32) -> Option<Magnitude> {
    let bits = 128 - number.leading_zeros() as i32;
    if bits == 0 {
        return Some(Extended::ZERO.magnitude);
    }
    let shift = (bits - 64).max(EXPONENT_MIN - exponent);
    let (significand, exponent) = match u32::try_from(shift) {
        Ok(shift) => (round_shift(number, shift), exponent + shift as i32),
        Err(_) => (number << shift.unsigned_abs(), exponent + shift),
    };
    let (significand, exponent) = match u64::try_from(significand) {
        Ok(significand) => (significand, exponent),
        // Rounding carried into a new bit.
        Err(_) => ((significand >> 1) as u64, exponent + 1),
    };
    (exponent <= EXPONENT_MAX).then_some(Magnitude::Finite {
        significand,
        exponent,
    })
}

/// Digits and exponent of a text.
struct Digits {
    /// Digits from the first nonzero one on, without the point.
    digits: Vec<u8>,
    /// The number is `digits` times the radix (times 2 for hexadecimal) to this power.
    exponent: i64,
}

impl Digits {
    fn parse(text: &[u8], radix: u32, exponent_mark: u8) -> Option<Digits> {
        let (mut digits, mut seen, mut point) = (Vec::new(), false, false);
        let mut behind_point = 0_i64;
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            if let Some(digit) = char::from(byte).to_digit(radix) {
                seen = true;
                behind_point += i64::from(point);
                if digit != 0 || !digits.is_empty() {
                    digits.push(digit as u8);
                }
            } else if byte == b'.' && !point {
                point = true;
            } else {
                break;
            }
            rest = after;
        }
        if !seen {
            return None;
        }
        let written = match rest {
            [] => 0,
            [mark, exponent @ ..] if mark.eq_ignore_ascii_case(&exponent_mark) => {
                parse_exponent(exponent)?
            }
            _ => return None,
        };
        let exponent = written - behind_point * if radix == 16 { 4 } else { 1 };
        Some(Digits { digits, exponent })
    }

    fn decimal(self) -> Option<Magnitude> {
        if self.digits.is_empty() {
            return Some(Extended::ZERO.magnitude);
        }
        let scientific = self.exponent + self.digits.len() as i64;
        if scientific.abs() > DECIMAL_EXPONENT_MAX {
            return None;
        }
        let number = Natural::from_digits(self.digits.into_iter());
        let power = u32::try_from(self.exponent.unsigned_abs()).ok()?;
        let magnitude = if self.exponent >= 0 {
            round_natural(&number.times_power_of_ten(power), 0)?
        } else {
            let divisor = Natural::from_u64(1).times_power_of_ten(power);
            // A quotient of 66 or 67 bits suffices for rounding.
            let excess = 66 + divisor.bits() as i32 - number.bits() as i32;
            let shift = excess.unsigned_abs() as usize;
            let (quotient, remains) = if excess >= 0 {
                number.shifted_left(shift).divided_by(&divisor)
            } else {
                number.divided_by(&divisor.shifted_left(shift))
            };
            round((quotient << 1) | u128::from(remains), -excess - 1)?
        };
        not_vanished(magnitude)
    }

    fn hexadecimal(self) -> Option<Magnitude> {
        if self.digits.is_empty() {
            return Some(Extended::ZERO.magnitude);
        }
        let mut number = Natural::default();
        for digit in &self.digits {
            number.multiply_add(16, u32::from(*digit));
        }
        not_vanished(round_natural(&number, self.exponent)?)
    }
}

/// A nonzero number too small for any other float is out of range.
fn not_vanished(magnitude: Magnitude) -> Option<Magnitude> {
    (!matches!(magnitude, Magnitude::Finite { significand: 0, .. })).then_some(magnitude)
}

/// The representable number nearest to `number * 2^exponent`.
fn round_natural(number: &Natural, exponent: i64) -> Option<Magnitude> {
    let excess = number.bits().saturating_sub(66);
    let (top, lost) = number.shifted_right(excess);
    let exponent = exponent.checked_add(i64::try_from(excess).ok()?)?;
    // Beyond these every number overflows or vanishes.
    let exponent = i32::try_from(exponent.clamp(-40_000, 40_000)).ok()?;
    round((top << 1) | u128::from(lost), exponent - 1)
}

/// The number after `e` or `p`; very large ones are clamped, which changes no result.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0_i64, |value, digit| {
        (value * 10 + i64::from(digit - b'0')).min(1 << 40)
    });
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let (Some(a), Some(b)) = (Extended::parse(a.as_bytes()), Extended::parse(b.as_bytes()))
        else {
            return "invalid".into();
        };
        let Some(sum) = a.add(b) else {
            return "infinite".into();
        };
        let mut out = Vec::new();
        sum.print(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn sums_have_the_digits_of_redis() {
        let cases = [
            ("0", "3", "3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("1", "-1", "0"),
            ("-0", "-0", "0"),
            ("0", "-1.5", "-1.5"),
            ("1e20", "1", "100000000000000000000"),
            ("1e-17", "0", "0.00000000000000001"),
            ("1e-18", "0", "0"),
            ("-1e-18", "0", "0"),
            ("0x10", "0x.8p1", "17"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("18446744073709551616", "3", "18446744073709551620"),
        ];
        for (a, b, expected) in cases {
            assert_eq!(sum(a, b), expected, "{a} + {b}");
        }
    }

    #[test]
    fn range_ends_where_the_type_does() {
        assert_eq!(sum("1.18973149535723176502e+4932", "0").len(), 4933);
        assert_eq!(sum("1.2e4932", "0"), "invalid");
        assert_eq!(sum("1.18e4932", "1.18e4932"), "infinite");
        assert_eq!(sum("inf", "1"), "infinite");
        assert_eq!(sum("4e-4951", "0"), "0");
        assert_eq!(sum("1e-4952", "0"), "invalid");
        assert_eq!(sum("0e999999999999999999999", "1"), "1");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "", "-", ".", "e1", "1e", "1e+", "1.2.3", " 1", "1 ", "nan", "abc", "0x", "1f", "--1",
        ] {
            assert_eq!(Extended::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
