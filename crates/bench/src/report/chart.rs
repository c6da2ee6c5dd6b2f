//! A bar chart: a bar for each middle, a whisker from the least to the greatest, and a line that nobody can
//! pass.

use super::words::escaped;
use crate::row::Configuration;
use crate::subject::Durability;
use crate::timing::Spread;

/// Where bars begin and how far they go, in percent of the chart's width.
pub(super) const LEFT: f64 = 38.0;
pub(super) const WIDTH: f64 = 40.0;
/// What may be lost is drawn up to so many times as long as all else, and cut there: the others would be
/// dots.
const CUT: f64 = 3.0;
/// Height of a line, in pixels.
pub(super) const LINE: usize = 24;

/// Who a bar belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// everdram.
    Own,
    /// Others that make each write durable.
    Durable,
    /// Others that may lose what they acknowledged.
    Loose,
}

impl Kind {
    pub(super) fn of(configuration: &Configuration) -> Kind {
        match (configuration.store.as_str(), configuration.durability) {
            ("everdram", _) => Kind::Own,
            (_, Durability::EachWrite) => Kind::Durable,
            (_, Durability::Never) => Kind::Loose,
        }
    }

    /// Its class in the style sheet.
    pub(super) fn class(self) -> &'static str {
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
    pub(super) title: String,
    pub(super) note: &'a str,
    pub(super) unit: fn(f64) -> String,
    pub(super) bars: Vec<Bar>,
    /// What nobody can pass: its value and its name.
    pub(super) limit: Option<(f64, String)>,
}

impl Chart<'_> {
    /// As a figure; nothing without bars.
    pub(super) fn figure(&self) -> String {
        if self.bars.is_empty() {
            return String::new();
        }
        let limit = self.limit.as_ref().map(|(value, _)| *value);
        let most = self.most();
        let place = |value: f64| LEFT + (value / most).clamp(0.0, 1.0) * WIDTH;
        let height = self.bars.len() * LINE + 4;
        let mut body = String::new();
        for (number, bar) in self.bars.iter().enumerate() {
            body.push_str(&self.bar(bar, number, &place));
        }
        if let Some(limit) = limit {
            body.push_str(&format!(
                r#"<line class="limit" x1="{x:.2}%" x2="{x:.2}%" y1="0" y2="{height}"/>"#,
                x = place(limit),
            ));
        }
        let legend = self.limit.as_ref().map_or(String::new(), |(value, name)| {
            format!(
                r#"<p class="note limited">{}: {}</p>"#,
                escaped(name),
                (self.unit)(*value)
            )
        });
        figure(&self.title, self.note, &legend, height, &body)
    }

    /// The value at the right edge.
    fn most(&self) -> f64 {
        let greatest = |is_wanted: &dyn Fn(&Bar) -> bool| {
            let wanted = self.bars.iter().filter(|bar| is_wanted(bar));
            wanted.map(|bar| bar.values.max).fold(0.0, f64::max)
        };
        let limit = self.limit.as_ref().map_or(0.0, |(value, _)| *value);
        let all = greatest(&|_| true).max(limit);
        let firm = greatest(&|bar| bar.kind != Kind::Loose).max(limit);
        let most = if firm > 0.0 { all.min(firm * CUT) } else { all };
        most.max(f64::MIN_POSITIVE)
    }

    fn bar(&self, bar: &Bar, number: usize, place: &dyn Fn(f64) -> f64) -> String {
        let Bar {
            label,
            kind,
            values,
        } = bar;
        let (top, middle) = (number * LINE + 5, number * LINE + 13);
        let class = kind.class();
        let cut = if values.median > self.most() {
            format!(
                r#"<text class="cut" x="{}%" y="{}">»</text>"#,
                LEFT + WIDTH,
                middle + 5
            )
        } else {
            String::new()
        };
        let whisker = if values.max > values.min {
            format!(
                r#"<line class="whisker" x1="{:.2}%" x2="{:.2}%" y1="{middle}" y2="{middle}"/>"#,
                place(values.min),
                place(values.max),
            )
        } else {
            String::new()
        };
        format!(
            r#"<g class="{class}"><title>{name}: {text}</title><text class="label" x="0" y="{base}">{name}</text><rect x="{LEFT}%" y="{top}" width="{width:.2}%" height="16" rx="2"/>{whisker}{cut}<text class="value" x="100%" y="{base}">{median}</text></g>"#,
            name = escaped(label),
            text = super::words::spread(*values, self.unit),
            base = middle + 4,
            width = (place(values.median) - LEFT).max(0.3),
            median = (self.unit)(values.median),
        )
    }
}

/// A heading, a picture, and what there is to say about it.
pub(super) fn figure(title: &str, note: &str, legend: &str, height: usize, body: &str) -> String {
    let note = if note.is_empty() {
        String::new()
    } else {
        format!(r#"<p class="note">{}</p>"#, escaped(note))
    };
    let title = escaped(title);
    format!(
        "<figure><figcaption>{title}</figcaption>{note}<svg role=\"img\" aria-label=\"{title}\" width=\"100%\" \
         height=\"{height}\">{body}</svg>{legend}</figure>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_middle() {
        let bar = |label: &str, kind, values: [f64; 3]| Bar {
            label: label.into(),
            kind,
            values: Spread::of(values),
        };
        let chart = Chart {
            title: "get <all>".into(),
            note: "",
            unit: super::super::words::rate,
            bars: vec![
                bar("everdram", Kind::Own, [40.0, 50.0, 60.0]),
                bar("a&b", Kind::Loose, [10.0, 10.0, 10.0]),
            ],
            limit: Some((100.0, "limit".into())),
        };
        let figure = chart.figure();
        assert!(figure.contains(r#"width="20.00%""#), "{figure}");
        assert!(figure.contains(r#"x1="54.00%" x2="62.00%""#), "{figure}");
        assert!(figure.contains(r#"x1="78.00%" x2="78.00%""#), "{figure}");
        assert!(figure.contains("a&amp;b") && figure.contains("get &lt;all&gt;"));
        // A single value has no range.
        assert_eq!(figure.matches(r#"class="whisker""#).count(), 1);
        assert!(!figure.contains("»"));
        let mut chart = chart;
        chart.bars[1].values = Spread::of([900.0]);
        let cut = chart.figure();
        assert!(
            cut.contains("»") && cut.contains(r#"width="6.67%""#),
            "{cut}"
        );
        let none = Chart {
            bars: Vec::new(),
            ..chart
        };
        assert_eq!(none.figure(), "");
    }
}
