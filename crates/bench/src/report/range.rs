//! A chart of latencies: from the middle call to the slowest of a thousand, on a scale of powers of ten.

use super::chart::{Kind, LEFT, LINE, WIDTH, figure};
use super::words::{escaped, time};
use crate::latency::Latency;

/// One store's latencies, in nanoseconds.
pub(super) struct Range {
    pub(super) label: String,
    pub(super) kind: Kind,
    pub(super) latency: Latency,
}

/// As a figure; nothing without ranges.
pub(super) fn ranges(title: &str, ranges: &[Range]) -> String {
    let values = || {
        ranges
            .iter()
            .flat_map(|range| [range.latency.p50, range.latency.p999])
            .map(|ns| ns.max(1) as f64)
    };
    if ranges.is_empty() {
        return String::new();
    }
    let least = values().fold(f64::MAX, f64::min).log10().floor();
    let most = values().fold(1.0, f64::max).log10().ceil().max(least + 1.0);
    let place = |ns: u64| LEFT + ((ns.max(1) as f64).log10() - least) / (most - least) * WIDTH;
    let bottom = ranges.len() * LINE + 2;
    let mut body = String::new();
    let apart = if most - least > 3.0 { 2 } else { 1 };
    for power in least as u32..=most as u32 {
        let ns = 10u64.pow(power);
        let x = place(ns);
        body.push_str(&format!(
            r#"<line class="grid" x1="{x:.2}%" x2="{x:.2}%" y1="0" y2="{bottom}"/>"#
        ));
        // Many powers leave no room for every name.
        if (power - least as u32).is_multiple_of(apart) {
            body.push_str(&format!(
                r#"<text class="tick" x="{x:.2}%" y="{}">{}</text>"#,
                bottom + 13,
                tick(ns),
            ));
        }
    }
    for (number, range) in ranges.iter().enumerate() {
        body.push_str(&one(range, number * LINE + 13, &place));
    }
    figure(title, "", "", bottom + 18, &body)
}

/// `1 µs`, without places.
fn tick(ns: u64) -> String {
    time(ns as f64).replace(".00", "").replace(".0", "")
}

fn one(range: &Range, middle: usize, place: &dyn Fn(u64) -> f64) -> String {
    let Range {
        label,
        kind,
        latency,
    } = range;
    let text = |ns: u64| time(ns as f64);
    format!(
        r#"<g class="{class}"><title>{name}: half of the calls {p50}, 99 of 100 {p99}, 999 of 1000 {p999}, slowest {max}</title><text class="label" x="0" y="{base}">{name}</text><line class="reach" x1="{from:.2}%" x2="{to:.2}%" y1="{middle}" y2="{middle}"/><circle cx="{from:.2}%" cy="{middle}" r="5"/><circle class="open" cx="{between:.2}%" cy="{middle}" r="4"/><line class="end" x1="{to:.2}%" x2="{to:.2}%" y1="{top}" y2="{bottom}"/><text class="value" x="100%" y="{base}">{p99}</text></g>"#,
        class = kind.class(),
        name = escaped(label),
        p50 = text(latency.p50),
        p99 = text(latency.p99),
        p999 = text(latency.p999),
        max = text(latency.max),
        from = place(latency.p50),
        between = place(latency.p99),
        to = place(latency.p999),
        base = middle + 4,
        top = middle - 6,
        bottom = middle + 6,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_lie_evenly() {
        let latency = Latency {
            p50: 100,
            p99: 1000,
            p999: 10_000,
            max: 20_000,
        };
        let figure = ranges(
            "put",
            &[Range {
                label: "everdram".into(),
                kind: Kind::Own,
                latency,
            }],
        );
        for part in [
            r#"cx="38.00%""#,
            r#"cx="58.00%""#,
            r#"x2="78.00%" y1="13""#,
            ">1 µs<",
            ">100 ns<",
            ">10 µs<",
        ] {
            assert!(figure.contains(part), "{part} in {figure}");
        }
        assert_eq!(ranges("put", &[]), "");
    }
}
