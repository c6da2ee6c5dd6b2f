//! The manifest: which segments the log has, in order, in the form of a Redis multi-part AOF.
//!
//! ```text
//! #everdram <generation><sum>
//! file everdram.aof.3.incr.aof seq 3 type i
//! ```
//!
//! Each change writes a new file beside it, syncs that, renames it, and syncs the directory. The *generation*
//! counts the changes. The pool knows the generation up to which it has seen them, so that an older copy of
//! the log, or of the pool, is noticed.

use super::NUMBER_END;
use super::digits::{get, put};
use everdram_pm::Secret;

/// The manifest's name; with `~` while it is written.
pub(super) const NAME: &str = "everdram.aof.manifest";
pub(super) const NEXT: &str = "everdram.aof.manifest~";
const MARK: &str = "#everdram ";
const DIGITS: usize = 11;
const SALT: u64 = 0x66;

/// The name of a segment.
pub(super) fn segment_name(number: u64) -> String {
    format!("everdram.aof.{number}.incr.aof")
}

/// The number in the name of a segment.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("everdram.aof.")?;
    let number: u64 = digits.strip_suffix(".incr.aof")?.parse().ok()?;
    // Of a name, which anybody may have given a file, not so far that the next number could not be read.
    (number < NUMBER_END / 2).then_some(number)
}

/// See the module text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) generation: u64,
    /// Numbers of segments, ascending.
    pub(super) segments: Vec<u64>,
}

impl Manifest {
    fn lines(&self) -> String {
        let line = |number: &u64| format!("file {} seq {number} type i\n", segment_name(*number));
        self.segments.iter().map(line).collect()
    }

    fn sum(&self, secret: &Secret) -> u64 {
        secret.sum_words([SALT, self.generation, secret.sum(self.lines().as_bytes())])
    }

    pub(super) fn to_bytes(&self, secret: &Secret) -> Vec<u8> {
        let mut digits = [0; 2 * DIGITS];
        put(&mut digits[..DIGITS], self.generation);
        put(&mut digits[DIGITS..], self.sum(secret));
        let mut bytes = MARK.as_bytes().to_vec();
        bytes.extend_from_slice(&digits);
        bytes.push(b'\n');
        bytes.extend_from_slice(self.lines().as_bytes());
        bytes
    }

    /// The manifest in these bytes, if this pool wrote them.
    pub(super) fn parse(bytes: &[u8], secret: &Secret) -> Option<Manifest> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        let digits = lines.next()?.strip_prefix(MARK)?.as_bytes();
        let (generation, sum) = digits.split_at_checked(DIGITS)?;
        let number = |line: &str| {
            let mut words = line.split(' ');
            let number = (words.next(), words.nth(1), words.next());
            match number {
                (Some("file"), Some("seq"), Some(number)) => number.parse().ok(),
                _ => None,
            }
        };
        let manifest = Manifest {
            generation: get(generation)?,
            segments: lines.map(number).collect::<Option<_>>()?,
        };
        // What is written again is what was read, to the byte.
        let is_whole = get(sum)? == manifest.sum(secret) && manifest.to_bytes(secret) == bytes;
        let is_counted = manifest.generation < NUMBER_END
            && manifest.segments.iter().all(|&number| number < NUMBER_END);
        let is_sound =
            is_whole && is_counted && manifest.segments.is_sorted_by(|one, next| one < next);
        (is_sound && !manifest.segments.is_empty()).then_some(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_nobody_reaches_are_refused() {
        let secret = Secret::expand(&[5; 32]);
        let reads = |generation, segment| {
            let segments = vec![segment];
            let manifest = Manifest {
                generation,
                segments,
            };
            Manifest::parse(&manifest.to_bytes(&secret), &secret).is_some()
        };
        assert!(reads(1, 1) && !reads(NUMBER_END, 1) && !reads(1, NUMBER_END));
        assert_eq!(segment_number(&segment_name(7)), Some(7));
        assert_eq!(segment_number(&segment_name(NUMBER_END - 1)), None);
    }

    #[test]
    fn a_manifest_reads_back_and_every_flip_is_noticed() {
        let secret = Secret::expand(&[5; 32]);
        let manifest = Manifest {
            generation: 12,
            segments: vec![3, 4, 9],
        };
        let bytes = manifest.to_bytes(&secret);
        assert_eq!(Manifest::parse(&bytes, &secret), Some(manifest));
        assert_eq!(Manifest::parse(&bytes, &Secret::expand(&[6; 32])), None);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::parse(&bad, &secret), None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(Manifest::parse(&bytes[..cut], &secret), None, "{cut} bytes");
        }
    }
}
