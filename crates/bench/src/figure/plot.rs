//! Pictures of curves, as SVG written by hand, like those of the report: panels beside each other, one legend
//! above all of them.
//!
//! A curve is told by its colour and by the shape of its marks, so that it can be told without colours.

use std::fmt::Write as _;

/// Pixels of a panel's inside, and what is around it.
const WIDTH: f64 = 380.0;
/// Of panels below each other.
const WIDTH_ALONE: f64 = 700.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 18.0;
const ABOVE: f64 = 30.0;
const BELOW: f64 = 48.0;
/// Of the whole picture.
const MARGIN: f64 = 14.0;
const TITLE: f64 = 46.0;
const LEGEND_LINE: f64 = 22.0;
const LEGEND_EACH: f64 = 104.0;

/// Okabe and Ito's colours, which people with any kind of colour vision can tell apart, and grey.
const COLOURS: [&str; 8] = [
    "#000000", "#999999", "#d55e00", "#e69f00", "#56b4e9", "#0072b2", "#cc79a7", "#009e73",
];

/// A whole picture.
pub(super) struct Picture {
    pub(super) title: String,
    /// Below the title, in small letters.
    pub(super) note: String,
    pub(super) columns: usize,
    pub(super) panels: Vec<Panel>,
}

/// A pair of axes and curves.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) curves: Vec<Curve>,
    /// Stretches of x with a name.
    pub(super) bands: Vec<(f64, f64, String)>,
}

/// What one direction means.
pub(super) struct Axis {
    pub(super) name: &'static str,
    pub(super) scale: Scale,
    /// The least that is shown, whatever the curves are.
    pub(super) from: Option<f64>,
    /// Values that have a name of their own and are the only ones marked; none = round numbers.
    pub(super) marks: Vec<(f64, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
}

/// A line through points.
pub(super) struct Curve {
    pub(super) label: String,
    /// Which colour and which mark: the same in all panels and figures.
    pub(super) style: usize,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) has_marks: bool,
    /// Level from one point to the next.
    pub(super) is_stepped: bool,
}

impl Picture {
    pub(super) fn svg(&self) -> String {
        let columns = self.columns.min(self.panels.len()).max(1);
        let rows = self.panels.len().div_ceil(columns);
        let inside = if columns == 1 { WIDTH_ALONE } else { WIDTH };
        let width = columns as f64 * (LEFT + inside + RIGHT) + 2.0 * MARGIN;
        let legend = self.legend(width - 2.0 * MARGIN);
        let top = TITLE + legend.1 + MARGIN;
        let height = top + rows as f64 * (ABOVE + HEIGHT + BELOW) + MARGIN;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{MARGIN}\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
             <text x=\"{MARGIN}\" y=\"44\" fill=\"#555\">{}</text>\n<g transform=\"translate({MARGIN},{})\">{}</g>\n",
            escaped(&self.title),
            escaped(&self.note),
            TITLE + 8.0,
            legend.0,
        );
        for (number, panel) in self.panels.iter().enumerate() {
            let x = MARGIN + (number % columns) as f64 * (LEFT + inside + RIGHT) + LEFT;
            let y = top + (number / columns) as f64 * (ABOVE + HEIGHT + BELOW) + ABOVE;
            let _ = writeln!(
                text,
                "<g transform=\"translate({x:.1},{y:.1})\">{}</g>",
                panel.svg(inside)
            );
        }
        text.push_str("</svg>\n");
        text
    }

    /// All curves once, in lines as long as there is room; and its height.
    fn legend(&self, width: f64) -> (String, f64) {
        let mut curves: Vec<&Curve> = Vec::new();
        for curve in self.panels.iter().flat_map(|panel| &panel.curves) {
            if !curves.iter().any(|other| other.label == curve.label) {
                curves.push(curve);
            }
        }
        let longest = curves.iter().map(|curve| curve.label.chars().count()).max();
        let each = LEGEND_EACH.max(longest.unwrap_or(0) as f64 * 7.5 + 40.0);
        let a_line = ((width / each) as usize).max(1);
        let mut text = String::new();
        for (number, curve) in curves.iter().enumerate() {
            let x = (number % a_line) as f64 * each;
            let y = (number / a_line) as f64 * LEGEND_LINE + 8.0;
            let colour = colour(curve.style);
            let _ = write!(
                text,
                "<g transform=\"translate({x:.1},{y:.1})\"><path d=\"M0 0H26\" stroke=\"{colour}\" stroke-width=\"2\"/>{}\
                 <text x=\"32\" y=\"4\">{}</text></g>",
                if curve.has_marks {
                    mark(curve.style, 13.0, 0.0)
                } else {
                    String::new()
                },
                escaped(&curve.label),
            );
        }
        (text, curves.len().div_ceil(a_line) as f64 * LEGEND_LINE)
    }
}

impl Panel {
    fn svg(&self, width: f64) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Range::of(&self.x, points().map(|point| point.0), false);
        let y = Range::of(&self.y, points().map(|point| point.1), true);
        let place =
            |(at_x, at_y): (f64, f64)| (x.share(at_x) * width, (1.0 - y.share(at_y)) * HEIGHT);
        let mut text = String::new();
        for (number, (from, to, name)) in self.bands.iter().enumerate() {
            let (left, right) = (place((*from, 0.0)).0, place((*to, 0.0)).0);
            let shade = if number % 2 == 0 { "#f3f3f3" } else { "#fff" };
            let _ = write!(
                text,
                "<rect x=\"{left:.1}\" width=\"{:.1}\" height=\"{HEIGHT}\" fill=\"{shade}\"/><text x=\"{:.1}\" y=\"13\" \
                 text-anchor=\"middle\" fill=\"#777\" font-size=\"11\">{}</text>",
                right - left,
                (left + right) / 2.0,
                escaped(name),
            );
        }
        for (value, name) in x.marks(&self.x) {
            let at = place((value, y.low)).0;
            let _ = write!(
                text,
                "<path d=\"M{at:.1} 0V{HEIGHT}\" stroke=\"#e2e2e2\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
                HEIGHT + 16.0
            );
        }
        for (value, name) in y.marks(&self.y) {
            let at = place((x.low, value)).1;
            let _ = write!(
                text,
                "<path d=\"M0 {at:.1}H{width}\" stroke=\"#e2e2e2\"/><text x=\"-6\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                at + 4.0
            );
        }
        let _ = write!(
            text,
            "<rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#888\"/>\
             <text x=\"0\" y=\"-9\" font-size=\"13\" font-weight=\"bold\">{}</text>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(-50,{}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(&self.title),
            width / 2.0,
            HEIGHT + 36.0,
            escaped(self.x.name),
            HEIGHT / 2.0,
            escaped(self.y.name),
        );
        for curve in &self.curves {
            text.push_str(&curve.svg(&place));
        }
        text
    }
}

impl Curve {
    fn svg(&self, place: &dyn Fn((f64, f64)) -> (f64, f64)) -> String {
        let mut path = String::new();
        let mut marks = String::new();
        let mut before = 0.0;
        for (number, (x, y)) in self.points.iter().map(|point| place(*point)).enumerate() {
            if number == 0 {
                let _ = write!(path, "M{x:.1} {y:.1}");
            } else if self.is_stepped {
                // What a point says is of the stretch that ends in it.
                let _ = write!(path, "M{before:.1} {y:.1}L{x:.1} {y:.1}");
            } else {
                let _ = write!(path, "L{x:.1} {y:.1}");
            }
            before = x;
            if self.has_marks {
                marks.push_str(&mark(self.style, x, y));
            }
        }
        format!(
            "<g><title>{}</title><path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" \
             stroke-linejoin=\"round\"/>{marks}</g>",
            escaped(&self.label),
            colour(self.style)
        )
    }
}

/// The values of an axis.
struct Range {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Range {
    fn of(axis: &Axis, values: impl Iterator<Item = f64>, has_headroom: bool) -> Range {
        let named = axis.marks.iter().map(|mark| mark.0);
        let values: Vec<f64> = values
            .chain(named)
            .filter(|value| value.is_finite())
            .collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (least, most) = if least <= most {
            (least, most)
        } else {
            (0.0, 1.0)
        };
        match axis.scale {
            Scale::Linear => {
                let low = axis.from.unwrap_or(least);
                let span = if most > low { most - low } else { 1.0 };
                Range {
                    low,
                    high: low + span * if has_headroom { 1.08 } else { 1.04 },
                    scale: Scale::Linear,
                }
            }
            Scale::Log => {
                let least = axis.from.unwrap_or(least).max(1e-9);
                Range {
                    low: least / 1.15,
                    high: most.max(least * 1.5) * 1.15,
                    scale: Scale::Log,
                }
            }
        }
    }

    /// Where a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(1e-9) / self.low).ln() / (self.high / self.low).ln(),
        };
        share.clamp(0.0, 1.0)
    }

    fn marks(&self, axis: &Axis) -> Vec<(f64, String)> {
        if !axis.marks.is_empty() {
            return axis.marks.clone();
        }
        let values = match self.scale {
            Scale::Linear => self.round_values(),
            Scale::Log => self.round_powers(),
        };
        values
            .into_iter()
            .map(|value| (value, number(value)))
            .collect()
    }

    /// Multiples of 1, 2 or 5 times a power of ten: four to nine of them.
    fn round_values(&self) -> Vec<f64> {
        let power = 10f64.powf(((self.high - self.low) / 5.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let fits = |step: &&f64| (self.high - self.low) / **step <= 7.0;
        let step = steps.iter().find(fits).copied().unwrap_or(power * 10.0);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|count| count as f64 * step).collect()
    }

    /// Powers of ten, and 2 and 5 times these where there is room.
    fn round_powers(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let within: &[f64] = if decades > 3.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        (first..=last)
            .flat_map(|power| within.iter().map(move |step| step * 10f64.powi(power)))
            .filter(|value| (self.low..=self.high).contains(value))
            .collect()
    }
}

/// `0.25`, `3`, `1,500`, `20 k`.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{} M", short(value / 1e6)),
        size if size >= 1e4 => format!("{} k", short(value / 1e3)),
        _ => short(value),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn colour(style: usize) -> &'static str {
    COLOURS[style % COLOURS.len()]
}

/// Eight shapes.
fn mark(style: usize, x: f64, y: f64) -> String {
    let colour = colour(style);
    let path = match style % 8 {
        0 => "M-4 -4H4V4H-4Z",
        1 => "M0 -5L5 4H-5Z",
        2 => "M0 5L5 -4H-5Z",
        3 => "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
        4 => "M-1.4 -5H1.4V-1.4H5V1.4H1.4V5H-1.4V1.4H-5V-1.4H-1.4Z",
        5 => "M-5 -3.5L-3.5 -5L0 -1.5L3.5 -5L5 -3.5L1.5 0L5 3.5L3.5 5L0 1.5L-3.5 5L-5 3.5L-1.5 0Z",
        6 => "M-5 -2H5V2H-5Z",
        _ => "M-4.5 0A4.5 4.5 0 1 1 4.5 0A4.5 4.5 0 1 1 -4.5 0Z",
    };
    format!(
        "<path transform=\"translate({x:.1},{y:.1})\" d=\"{path}\" fill=\"{colour}\" stroke=\"#fff\" stroke-width=\"0.6\"/>"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(scale: Scale, from: Option<f64>, values: &[f64]) -> Range {
        let axis = Axis {
            name: "",
            scale,
            from,
            marks: Vec::new(),
        };
        Range::of(&axis, values.iter().copied(), true)
    }

    #[test]
    fn axes_have_round_marks_within_them() {
        let axis = |scale| Axis {
            name: "",
            scale,
            from: None,
            marks: Vec::new(),
        };
        for values in [
            [0.0, 1.0],
            [0.2, 3.7],
            [0.0, 17.0],
            [100.0, 4321.0],
            [5.0, 5.0],
        ] {
            let linear = range(Scale::Linear, Some(0.0), &values);
            let marks = linear.marks(&axis(Scale::Linear));
            assert!((3..=9).contains(&marks.len()), "{values:?}: {marks:?}");
            assert!(
                marks
                    .iter()
                    .all(|mark| (linear.low..=linear.high).contains(&mark.0))
            );
        }
        let log = range(Scale::Log, None, &[120.0, 9000.0]);
        let names: Vec<String> = log
            .marks(&axis(Scale::Log))
            .into_iter()
            .map(|mark| mark.1)
            .collect();
        assert_eq!(names, ["200", "500", "1000", "2000", "5000", "10 k"]);
        assert!((log.share(120.0) - 0.03).abs() < 0.02);
        // Nothing at all is an axis, too.
        assert!(range(Scale::Log, None, &[]).share(1.0) <= 1.0);
    }

    #[test]
    fn a_picture_has_its_curves_and_each_label_once_in_its_legend() {
        let curve = |label: &str, style| Curve {
            label: label.into(),
            style,
            points: vec![(1.0, 200.0), (2.0, 300.0)],
            has_marks: true,
            is_stepped: false,
        };
        let panel = || Panel {
            title: "0 % < 2 %".into(),
            x: Axis {
                name: "M/s",
                scale: Scale::Linear,
                from: Some(0.0),
                marks: Vec::new(),
            },
            y: Axis {
                name: "ns",
                scale: Scale::Log,
                from: None,
                marks: Vec::new(),
            },
            curves: vec![curve("+wrc", 7), curve("phash", 1)],
            bands: Vec::new(),
        };
        let svg = Picture {
            title: "title".into(),
            note: "a & b".into(),
            columns: 2,
            panels: vec![panel(), panel(), panel()],
        }
        .svg();
        assert_eq!(svg.matches(">+wrc</text>").count(), 1);
        assert_eq!(svg.matches("<title>+wrc</title>").count(), 3);
        assert!(svg.contains("a &amp; b") && svg.contains("0 % &lt; 2 %"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
    }
}
