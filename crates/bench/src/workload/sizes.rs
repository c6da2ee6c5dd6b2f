//! How long keys and values are: one length, or many around one.
//!
//! Lengths are drawn once into a table, and a record's place in the table follows from its number: the same
//! record has the same length in every run of a seed, and looking it up costs next to nothing.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal, Normal};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Lengths in a table; a power of two.
const TABLE: usize = 1 << 14;

/// A distribution of lengths in bytes. [`Sizes::OneOf`] is not read from text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// All the same.
    Fixed(usize),
    /// Normal, a fifth of the mean as its deviation: Viper, section 5.3.3.
    Normal {
        /// Bytes in the middle.
        mean: usize,
    },
    /// One of these, evenly; 0 is none.
    OneOf([usize; 4]),
    /// Log-normal, as caches in production have it: most are small, some are hundreds of times as long.
    Skewed {
        /// Half of them have at most this many bytes.
        median: usize,
        /// None has more than this many.
        most: usize,
    },
}

/// Deviation of the logarithm of skewed lengths: the mean is then 1.65 times the median, the 99th percentile
/// ten times.
const SKEW: f64 = 1.0;

impl Sizes {
    /// About how many bytes one has.
    #[must_use]
    pub fn mean(self) -> usize {
        match self {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Normal { mean } => mean,
            Sizes::OneOf(lengths) => {
                let given = lengths.iter().filter(|bytes| **bytes > 0).count();
                lengths.iter().sum::<usize>() / given.max(1)
            }
            Sizes::Skewed { median, .. } => (median as f64 * (SKEW * SKEW / 2.0).exp()) as usize,
        }
    }

    /// A table of lengths, none below `least`.
    #[must_use]
    pub(crate) fn table(self, least: usize, seed: u64) -> Lengths {
        let mut random = SmallRng::seed_from_u64(seed ^ 0x5126_8f1c_93a0_77e5);
        let mut draw = |distribution: &dyn Fn(&mut SmallRng) -> f64, most: usize| {
            (0..TABLE)
                .map(|_| (distribution(&mut random).max(0.0) as usize).clamp(least, most) as u32)
                .collect()
        };
        let lengths = match self {
            Sizes::Fixed(bytes) => vec![bytes.max(least) as u32],
            Sizes::Normal { mean } => match Normal::new(mean as f64, mean as f64 / 5.0) {
                Ok(normal) => draw(&|random| normal.sample(random).round(), mean * 2),
                Err(_) => vec![mean.max(least) as u32],
            },
            Sizes::OneOf(lengths) => {
                let given: Vec<usize> = lengths.into_iter().filter(|bytes| *bytes > 0).collect();
                let most = given.iter().copied().max().unwrap_or(least);
                draw(
                    &|random| {
                        let place = random.random_range(0..given.len().max(1));
                        given.get(place).copied().unwrap_or(least) as f64
                    },
                    most.max(least),
                )
            }
            Sizes::Skewed { median, most } => match LogNormal::new((median as f64).ln(), SKEW) {
                Ok(skewed) => draw(&|random| skewed.sample(random).round(), most.max(least)),
                Err(_) => vec![median.max(least) as u32],
            },
        };
        Lengths(lengths)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Fixed(bytes) => write!(f, "{bytes}"),
            Sizes::Normal { mean } => write!(f, "normal:{mean}"),
            Sizes::OneOf(lengths) => {
                let given = lengths.iter().filter(|bytes| **bytes > 0);
                let given: Vec<String> = given.map(usize::to_string).collect();
                write!(f, "one-of:{}", given.join(":"))
            }
            Sizes::Skewed { median, most } => write!(f, "skewed:{median}:{most}"),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let refuse =
            || format!("sizes `{text}`: a number of bytes, normal:MEAN or skewed:MEDIAN:MOST");
        let number = |part: &str| {
            let number: usize = part.parse().map_err(|_| refuse())?;
            if (1..=16 << 20).contains(&number) {
                Ok(number)
            } else {
                Err(format!("sizes `{text}`: 1 byte to 16 MiB"))
            }
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            [bytes] => Ok(Sizes::Fixed(number(bytes)?)),
            ["normal", mean] => Ok(Sizes::Normal {
                mean: number(mean)?,
            }),
            ["skewed", median, most] => Ok(Sizes::Skewed {
                median: number(median)?,
                most: number(most)?,
            }),
            _ => Err(refuse()),
        }
    }
}

/// Lengths by number.
pub(crate) struct Lengths(Vec<u32>);

impl Lengths {
    /// The length that belongs to `number`.
    #[inline]
    pub(crate) fn of(&self, number: u64) -> usize {
        if let [only] = self.0.as_slice() {
            return *only as usize;
        }
        let place = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        self.0[place & (TABLE - 1)] as usize
    }

    /// The greatest length.
    pub(crate) fn most(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(sizes: Sizes) -> (f64, f64) {
        let lengths = sizes.table(8, 1);
        let all: Vec<f64> = (0..100_000).map(|n| lengths.of(n) as f64).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let squares = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        (mean, (squares / all.len() as f64).sqrt())
    }

    #[test]
    fn lengths_are_distributed_as_their_name_says() {
        assert_eq!(moments(Sizes::Fixed(200)), (200.0, 0.0));
        let (mean, deviation) = moments(Sizes::Normal { mean: 200 });
        assert!((198.0..202.0).contains(&mean), "{mean}");
        assert!((38.0..42.0).contains(&deviation), "{deviation}");
        let sizes = Sizes::Skewed {
            median: 200,
            most: 1 << 20,
        };
        let (mean, deviation) = moments(sizes);
        assert!((300.0..360.0).contains(&mean), "{mean}");
        assert!(deviation > mean, "{deviation}");
        assert!(mean / 1.1 < sizes.mean() as f64 && (sizes.mean() as f64) < mean * 1.1);
        assert!(sizes.table(8, 1).most() > 200 * 20);
    }

    #[test]
    fn one_of_some_lengths_comes_as_often_as_another() {
        let sizes = Sizes::OneOf([64, 1024, 65536, 0]);
        assert_eq!(sizes.mean(), (64 + 1024 + 65536) / 3);
        let lengths = sizes.table(8, 1);
        for wanted in [64, 1024, 65536] {
            let count = (0..9000).filter(|&n| lengths.of(n) == wanted).count();
            assert!((2700..3300).contains(&count), "{wanted}: {count}");
        }
    }

    #[test]
    fn no_length_is_below_the_least_or_above_the_most() {
        let lengths = Sizes::Normal { mean: 10 }.table(8, 3);
        assert!((0..10_000).all(|n| (8..=20).contains(&lengths.of(n))));
        let lengths = Sizes::Skewed {
            median: 200,
            most: 300,
        }
        .table(8, 3);
        assert_eq!(lengths.most(), 300);
        assert_eq!(Sizes::Fixed(1).table(8, 3).of(7), 8);
    }

    #[test]
    fn the_text_of_sizes_reads_back() {
        for text in ["200", "normal:200", "skewed:200:65536"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "0",
            "normal",
            "normal:x",
            "skewed:1",
            "99999999999",
            "uniform:3",
        ] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
