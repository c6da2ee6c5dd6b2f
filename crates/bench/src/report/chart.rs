//! A chart of a page: bars with a whisker from the least to the greatest and a line for the limit, or
//! latencies on a scale of powers of ten.

use crate::row::Row;
use crate::show::plot::{self, Axis, Panel, Picture};
use crate::show::words::{escaped, time};
use crate::timing::Spread;

/// What may be lost is drawn up to so many times as long as all else, and cut there: the others would be
/// dots.
const CUT: f64 = 3.0;

/// What a bar is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// everdram.
    Own,
    /// Others that make each write durable.
    Durable,
    /// Others that may lose what they acknowledged.
    Loose,
}

impl Kind {
    pub(crate) fn of(row: &Row) -> Kind {
        match (row.is_own(), row.is_durable()) {
            (true, _) => Kind::Own,
            (_, true) => Kind::Durable,
            (_, false) => Kind::Loose,
        }
    }

    /// Its class in the style sheet.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Kind::Own => "own",
            Kind::Durable => "durable",
            Kind::Loose => "loose",
        }
    }
}

/// One bar.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) kind: Kind,
    pub(super) values: Spread,
}

/// Bars of one unit below one heading.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) note: &'a str,
    pub(super) unit: fn(f64) -> String,
    pub(super) bars: Vec<Bar>,
    /// The limit of the machine: its value and its name.
    pub(super) limit: Option<(f64, String)>,
    /// Of latencies: from half of the calls over 99 of 100 to 999 of 1000.
    pub(super) is_log: bool,
}

impl Chart<'_> {
    /// Bars in their order.
    pub(super) fn new(title: &str, unit: fn(f64) -> String, bars: Vec<Bar>) -> Chart<'_> {
        Chart {
            title,
            note: "",
            unit,
            bars,
            limit: None,
            is_log: false,
        }
    }

    /// Those first that are short.
    pub(super) fn least_first(
        title: &str,
        unit: fn(f64) -> String,
        mut bars: Vec<Bar>,
    ) -> Chart<'_> {
        bars.sort_by(|one, other| one.values.median.total_cmp(&other.values.median));
        Chart::new(title, unit, bars)
    }

    /// Latencies, those first that are short for 99 of 100 calls.
    pub(super) fn of_latency(title: &str, bars: Vec<Bar>) -> Chart<'_> {
        Chart {
            is_log: true,
            ..Chart::least_first(title, time, bars)
        }
    }

    /// As a figure; nothing without bars.
    pub(super) fn figure(&self) -> String {
        if self.bars.is_empty() {
            return String::new();
        }
        let paragraph = |class: &str, text: &str| match text {
            "" => String::new(),
            text => format!(r#"<p class="{class}">{}</p>"#, escaped(text)),
        };
        let limit = self.limit.as_ref().map_or(String::new(), |(value, name)| {
            format!("{name}: {}", (self.unit)(*value))
        });
        format!(
            "<figure><figcaption>{}</figcaption>{}\n{}{}</figure>\n",
            escaped(self.title),
            paragraph("note", self.note),
            self.picture().svg(),
            paragraph("note limited", &limit),
        )
    }

    fn picture(&self) -> Picture {
        let cut = self.cut();
        let bar = |bar: &Bar| {
            let value = (self.unit)(bar.values.median);
            let is_cut = bar.values.median > cut;
            plot::Bar {
                label: bar.label.clone(),
                value: if is_cut { format!("» {value}") } else { value },
                least: bar.values.min.min(cut),
                middle: bar.values.median.min(cut),
                most: bar.values.max.min(cut),
                style: if bar.kind == Kind::Own { 5 } else { 1 },
                is_filled: bar.kind != Kind::Loose,
            }
        };
        let axis = if self.is_log { Axis::log } else { Axis::linear };
        let panel = Panel {
            x: Axis {
                unit: Some(self.unit),
                ..axis("")
            },
            bars: self.bars.iter().map(bar).collect(),
            limit: self.limit.as_ref().map(|(value, _)| *value),
            ..Panel::default()
        };
        Picture {
            panels: vec![panel],
            ..Picture::default()
        }
    }

    /// The greatest value that is drawn as it is.
    fn cut(&self) -> f64 {
        let firm = self.bars.iter().filter(|bar| bar.kind != Kind::Loose);
        let limit = self.limit.as_ref().map_or(0.0, |(value, _)| *value);
        let firm = firm.map(|bar| bar.values.max).fold(limit, f64::max);
        if firm > 0.0 && !self.is_log {
            firm * CUT
        } else {
            f64::INFINITY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_ahead_and_may_be_lost_is_cut() {
        let bar = |label: &str, kind, values: [f64; 3]| Bar {
            label: label.into(),
            kind,
            values: Spread::of(values),
        };
        let mut chart = Chart {
            limit: Some((100.0, "limit".into())),
            ..Chart::new(
                "get <all>",
                crate::show::words::rate,
                vec![
                    bar("everdram", Kind::Own, [40.0, 50.0, 60.0]),
                    bar("a&b", Kind::Loose, [10.0, 10.0, 10.0]),
                ],
            )
        };
        let figure = chart.figure();
        assert!(figure.contains("a&amp;b") && figure.contains("get &lt;all&gt;"));
        assert!(figure.contains("limit: 100 /s") && !figure.contains("»"));
        chart.bars[1].values = Spread::of([900.0]);
        assert!(chart.figure().contains("» 900 /s"));
        assert_eq!(chart.picture().panels[0].bars[1].most, 300.0);
        chart.bars.clear();
        assert_eq!(chart.figure(), "");
    }
}
