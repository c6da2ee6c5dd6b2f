//! What the paper says of its figures, and bars set for this engine: as data.
//!
//! A claim compares curves with another curve at one share of writes, or says something of the curves
//! themselves. Its bounds are wider than the paper's figures: another machine is to show the same picture,
//! not the same numbers.

use super::Figure;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Millions of requests a second.
    Throughput,
    /// Nanoseconds of a request.
    Latency,
    /// Nanoseconds of a get, on average of those that had a core.
    Get,
    /// Nanoseconds of a put, likewise.
    Put,
    /// Workers that glean, on average. Compared by difference: there may be none.
    Gleaners,
    /// Throughput of the slowest moment, as a share of the mean.
    Least,
}

/// Something the paper says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) figure: Figure,
    /// Where it says so.
    pub(super) source: &'static str,
    pub(super) says: &'static str,
    pub(super) what: What,
    pub(super) writes_percent: f64,
    /// Curves that it is about.
    pub(super) of: &'static [&'static str],
    /// The curve that they are compared with; none = it is about what they are themselves.
    pub(super) against: Option<&'static str>,
    pub(super) bounds: (f64, f64),
}

/// No upper bound.
const ANY: f64 = f64::INFINITY;

const fn claim(
    figure: Figure,
    source: &'static str,
    says: &'static str,
    (what, writes_percent): (What, f64),
    of: &'static [&'static str],
    against: &'static str,
    bounds: (f64, f64),
) -> Claim {
    Claim {
        figure,
        source,
        says,
        what,
        writes_percent,
        of,
        against: Some(against),
        bounds,
    }
}

use Figure::{Bullet5, Bullet6, Bullet7, Bullet8, Bullet9};
use What::{Get, Gleaners, Latency, Least, Put, Throughput};

const LADDER: &[&str] = &["static", "+lfr", "+opt", "+dyn", "+wrc"];
const HALVES: &[&str] = &["static", "+lfr", "+opt"];
const DYNAMIC: &[&str] = &["+dyn", "+wrc"];
const TRANSACTIONS: &[&str] = &["static", "+lfr"];
const LOGGING: &[&str] = &["+opt", "+dyn", "+wrc"];

/// In the order of the paper. Of figure 7 a curve is a phase, of figure 8 a size of logs.
pub(super) const CLAIMS: &[Claim] = &[
    claim(
        Bullet5,
        "5, fig. 5a",
        "0 %: all of Bullet's latencies align with volatile's",
        (Latency, 0.0),
        LADDER,
        "volatile",
        (0.8, 1.2),
    ),
    claim(
        Bullet5,
        "5, fig. 5a",
        "0 %: static assignment gives about half of volatile's throughput",
        (Throughput, 0.0),
        HALVES,
        "volatile",
        (0.35, 0.65),
    ),
    claim(
        Bullet5,
        "5, fig. 5a",
        "0 %: dynamic assignment is comparable to volatile",
        (Throughput, 0.0),
        DYNAMIC,
        "volatile",
        (0.9, ANY),
    ),
    claim(
        Bullet5,
        "5, fig. 5a",
        "0 %: hikv-ht is noticeably better than phash",
        (Throughput, 0.0),
        &["hikv-ht"],
        "phash",
        (1.02, ANY),
    ),
    claim(
        Bullet5,
        "5, fig. 5a",
        "0 %: the tables in persistent memory are slower than volatile",
        (Latency, 0.0),
        &["phash", "hikv-ht"],
        "volatile",
        (1.3, ANY),
    ),
    claim(
        Bullet5,
        "5, fig. 5b",
        "2 %: +dyn drops by 25 % against volatile",
        (Throughput, 2.0),
        &["+dyn"],
        "volatile",
        (0.6, 0.9),
    ),
    claim(
        Bullet5,
        "5, fig. 5b",
        "2 %: write collapsing reduces that to about 5 %",
        (Throughput, 2.0),
        &["+wrc"],
        "volatile",
        (0.9, ANY),
    ),
    claim(
        Bullet5,
        "5, fig. 5b",
        "2 %: +wrc is ahead of +dyn",
        (Throughput, 2.0),
        &["+wrc"],
        "+dyn",
        (1.02, ANY),
    ),
    claim(
        Bullet5,
        "5, fig. 5c",
        "15 %: transactions in the path of a put cost 40 % of latency",
        (Latency, 15.0),
        TRANSACTIONS,
        "volatile",
        (1.2, 1.8),
    ),
    claim(
        Bullet5,
        "5, fig. 5c",
        "15 %: without them it is half of that",
        (Latency, 15.0),
        LOGGING,
        "volatile",
        (1.0, 1.35),
    ),
    claim(
        Bullet5,
        "5, fig. 5c",
        "15 %: latency of phash is about 3 times volatile's",
        (Latency, 15.0),
        &["phash"],
        "volatile",
        (2.0, 4.5),
    ),
    claim(
        Bullet5,
        "5, fig. 5c",
        "15 %: latency of hikv-ht is about 2.5 times volatile's",
        (Latency, 15.0),
        &["hikv-ht"],
        "volatile",
        (1.7, 3.5),
    ),
    claim(
        Bullet5,
        "5, fig. 5c",
        "15 %: throughput of the dynamic versions drops significantly",
        (Throughput, 15.0),
        DYNAMIC,
        "volatile",
        (0.0, 0.9),
    ),
    claim(
        Bullet5,
        "5, fig. 5d",
        "50 %: with transactions latency approaches hikv-ht's",
        (Latency, 50.0),
        TRANSACTIONS,
        "hikv-ht",
        (0.7, 1.4),
    ),
    claim(
        Bullet5,
        "5, fig. 5d",
        "50 %: without them it is lower than hikv-ht's",
        (Latency, 50.0),
        LOGGING,
        "hikv-ht",
        (0.0, 0.9),
    ),
    claim(
        Bullet6,
        "5, fig. 6a",
        "a get of phash takes twice as long as volatile's (450 and 220 ns)",
        (Get, 15.0),
        &["phash"],
        "volatile",
        (1.5, 3.0),
    ),
    claim(
        Bullet6,
        "5, fig. 6a",
        "one of hikv-ht 1.7 times as long (380 ns)",
        (Get, 15.0),
        &["hikv-ht"],
        "volatile",
        (1.3, 2.5),
    ),
    claim(
        Bullet6,
        "5, fig. 6a",
        "one of any Bullet as long as volatile's",
        (Get, 15.0),
        LADDER,
        "volatile",
        (0.8, 1.25),
    ),
    claim(
        Bullet6,
        "5, fig. 6b",
        "a put without a transaction takes 1.3 times as long as volatile's (1 us and 750 ns)",
        (Put, 15.0),
        LOGGING,
        "volatile",
        (1.0, 1.7),
    ),
    claim(
        Bullet6,
        "5, fig. 6b",
        "one with a transaction 3.3 times as long (2.5 us)",
        (Put, 15.0),
        TRANSACTIONS,
        "volatile",
        (2.2, 5.0),
    ),
    claim(
        Bullet6,
        "5, fig. 6b",
        "one of hikv-ht is like one with a transaction",
        (Put, 15.0),
        &["hikv-ht"],
        "static",
        (0.6, 1.5),
    ),
    claim(
        Bullet6,
        "5, fig. 6b",
        "phash is the slowest, 6 to 8 times volatile (5 us)",
        (Put, 15.0),
        &["phash"],
        "volatile",
        (4.0, 10.0),
    ),
    Claim {
        against: None,
        ..claim(
            Bullet7,
            "5, fig. 7",
            "0 % of writes: no gleaner at all",
            (Gleaners, 0.0),
            &["0 %"],
            "",
            (0.0, 0.05),
        )
    },
    claim(
        Bullet7,
        "5, fig. 7",
        "15 %: more gleaners than at 2 %",
        (Gleaners, 15.0),
        &["15 %"],
        "2 %",
        (0.05, ANY),
    ),
    claim(
        Bullet7,
        "5, fig. 7",
        "50 %: more gleaners than at 15 %",
        (Gleaners, 50.0),
        &["50 %"],
        "15 %",
        (0.05, ANY),
    ),
    claim(
        Bullet7,
        "5, fig. 7",
        "0 %: throughput above that of 2 %",
        (Throughput, 0.0),
        &["0 %"],
        "2 %",
        (1.0, ANY),
    ),
    claim(
        Bullet7,
        "5, fig. 7",
        "15 and 50 %: throughput well below that of 2 %",
        (Throughput, 15.0),
        &["15 %", "50 %"],
        "2 %",
        (0.0, 0.9),
    ),
    claim(
        Bullet8,
        "5, fig. 8",
        "2 %: logs of 4 and 16 MiB lose 3 % against 64 MiB",
        (Throughput, 2.0),
        &["4 MiB", "16 MiB"],
        "64 MiB",
        (0.9, 1.05),
    ),
    claim(
        Bullet8,
        "5, fig. 8",
        "2 %: logs of 1 MiB lose 20 %",
        (Throughput, 2.0),
        &["1 MiB"],
        "64 MiB",
        (0.6, 0.9),
    ),
    claim(
        Bullet8,
        "5, fig. 8",
        "15 %: the size does not matter",
        (Throughput, 15.0),
        &["1 MiB", "4 MiB", "16 MiB"],
        "64 MiB",
        (0.9, 1.1),
    ),
    claim(
        Bullet8,
        "5, fig. 8",
        "50 %: the size does not matter",
        (Throughput, 50.0),
        &["1 MiB", "4 MiB", "16 MiB"],
        "64 MiB",
        (0.9, 1.1),
    ),
    claim(
        Bullet9,
        "5, fig. 9",
        "0 %: with as many clients as workers and more, static assignment is much later than volatile",
        (Latency, 0.0),
        HALVES,
        "volatile",
        (1.4, ANY),
    ),
    claim(
        Bullet9,
        "5, fig. 9",
        "0 %: dynamic assignment is not",
        (Latency, 0.0),
        DYNAMIC,
        "volatile",
        (0.0, 1.2),
    ),
    claim(
        Bullet9,
        "5, fig. 9",
        "15 %: gleaners are missing at the clients",
        (Latency, 15.0),
        DYNAMIC,
        "volatile",
        (1.1, ANY),
    ),
    claim(
        Bullet9,
        "5, fig. 9",
        "50 %: and more so",
        (Latency, 50.0),
        DYNAMIC,
        "volatile",
        (1.2, ANY),
    ),
];

/// What this engine is to reach.
pub(super) const BARS: &[Claim] = &[
    claim(
        Bullet5,
        "bar",
        "0 %: throughput of +wrc at least 0.97 of volatile's",
        (Throughput, 0.0),
        &["+wrc"],
        "volatile",
        (0.97, ANY),
    ),
    claim(
        Bullet5,
        "bar",
        "2 %: at least 0.93",
        (Throughput, 2.0),
        &["+wrc"],
        "volatile",
        (0.93, ANY),
    ),
    claim(
        Bullet5,
        "bar",
        "15 %: at least 0.75",
        (Throughput, 15.0),
        &["+wrc"],
        "volatile",
        (0.75, ANY),
    ),
    claim(
        Bullet5,
        "bar",
        "50 %: at least 1.2 times hikv-ht's",
        (Throughput, 50.0),
        &["+wrc"],
        "hikv-ht",
        (1.2, ANY),
    ),
    claim(
        Bullet6,
        "bar",
        "15 %: a put of +wrc at most 1.5 times as long as volatile's",
        (Put, 15.0),
        &["+wrc"],
        "volatile",
        (0.0, 1.5),
    ),
    Claim {
        against: None,
        ..claim(
            Bullet7,
            "bar",
            "100 % (--writes 100): no second below half of the mean",
            (Least, 100.0),
            &["100 %"],
            "",
            (0.5, ANY),
        )
    },
];
