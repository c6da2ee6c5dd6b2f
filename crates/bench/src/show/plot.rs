//! Pictures of what was measured, as SVG: panels beside each other, of curves or of bars, and one legend
//! above all of them.
//!
//! A curve is told by its colour and by the shape of its marks, a bar that is not filled is told from one
//! that is: colours need not be told apart.

use super::words;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Pixels of a panel of curves; alone in its line it is wider. Of bars without a title, which stand between
/// others and are made to fit.
const WIDTH: u32 = 470;
const WIDTH_ALONE: u32 = 790;
const WIDTH_OF_BARS: u32 = 400;
const HEIGHT: u32 = 310;
/// Of a bar, and of what is around bars.
const BAR: u32 = 24;
const AROUND_BARS: u32 = 38;
/// Of a panel's title, and of the name of its axis.
const CAPTION: u32 = 28;
const AXIS_NAME: u32 = 20;
/// Of title and a note of one line, of further lines of it, and of the legend.
const TITLE: u32 = 54;
const NOTE_LINE: u32 = 18;
const LEGEND_LINE: u32 = 22;
const LETTER: f64 = 7.0;
/// Around a pair of axes; the last mark of the x axis goes beyond its end. And what both take of the width.
const MARGIN: u32 = 8;
const MARGIN_RIGHT: u32 = 18;
const BESIDE: u32 = MARGIN + MARGIN_RIGHT;
/// What bars leave of the width for their values.
const VALUES_SHARE: f64 = 0.4;

/// Okabe and Ito's colours, which people with any kind of colour vision can tell apart, and grey. For each
/// colour of a picture `report/style.css` has another that fits a dark page.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x00, 0x9e, 0x73),
];
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const SOFT: RGBColor = RGBColor(0x6b, 0x6b, 0x6b);
const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);
const BAND: RGBColor = RGBColor(0xf3, 0xf3, 0xf3);
const LIMIT: RGBColor = COLOURS[2];

/// A whole picture.
#[derive(Default)]
pub(crate) struct Picture {
    pub(crate) title: String,
    /// Below the title, in small letters; may have several lines.
    pub(crate) note: String,
    pub(crate) columns: usize,
    pub(crate) panels: Vec<Panel>,
}

/// A pair of axes, and what is between them.
#[derive(Default)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) curves: Vec<Curve>,
    /// One below the other; they name the y axis.
    pub(crate) bars: Vec<Bar>,
    /// Stretches of x with a name.
    pub(crate) bands: Vec<(f64, f64, String)>,
    /// What no bar can pass.
    pub(crate) limit: Option<f64>,
}

/// What one direction means.
#[derive(Clone, Default)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) is_log: bool,
    /// The least that is shown, whatever the values are.
    pub(crate) from: Option<f64>,
    /// Values that have a name of their own and are the only ones marked; none = round numbers.
    pub(crate) marks: Vec<(f64, String)>,
    /// How round numbers are written.
    pub(crate) unit: Option<fn(f64) -> String>,
}

impl Axis {
    /// From zero on.
    pub(crate) fn linear(name: &'static str) -> Axis {
        Axis {
            name,
            from: Some(0.0),
            ..Axis::default()
        }
    }

    pub(crate) fn log(name: &'static str) -> Axis {
        Axis {
            name,
            is_log: true,
            ..Axis::default()
        }
    }
}

/// A line through points.
#[derive(Default)]
pub(crate) struct Curve {
    pub(crate) label: String,
    /// Which colour and which mark: the same in all panels and figures.
    pub(crate) style: usize,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) has_marks: bool,
    /// Level from one point to the next.
    pub(crate) is_stepped: bool,
}

/// A bar up to its middle, with a whisker from the least to the greatest; on a logarithmic axis, which has no
/// zero, a line from the least to the greatest with marks.
pub(crate) struct Bar {
    pub(crate) label: String,
    /// What it says of itself, at the right.
    pub(crate) value: String,
    pub(crate) least: f64,
    pub(crate) middle: f64,
    pub(crate) most: f64,
    pub(crate) style: usize,
    pub(crate) is_filled: bool,
}

impl Picture {
    pub(crate) fn svg(&self) -> String {
        let columns = self.columns.max(1);
        let rows = self.panels.len().div_ceil(columns);
        let has_bars = self.panels.iter().any(|panel| !panel.bars.is_empty());
        let width = match columns as u32 {
            // Bars need no width, but a title does.
            1 if has_bars && self.title.is_empty() => WIDTH_OF_BARS,
            1 => WIDTH_ALONE,
            columns => columns * WIDTH,
        };
        let legend = self.legend();
        let a_line = legend_columns(&legend, width);
        let title = self.title_height(width);
        let above = title + legend.len().div_ceil(a_line) as u32 * LEGEND_LINE;
        let height = self.panels.iter().map(Panel::height).max().unwrap_or(0);
        let size = (width, above + rows as u32 * height);
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let (head, body) = root.split_vertically(above);
        self.draw(&root, &head, &body.split_evenly((rows.max(1), columns)))
            .expect("a string takes every picture");
        drop((root, head, body));
        text
    }

    fn draw(&self, root: &Area<'_>, head: &Area<'_>, places: &[Area<'_>]) -> Drawn {
        root.fill(&WHITE)?;
        let width = head.dim_in_pixel().0;
        let mut top = 0;
        if !self.title.is_empty() {
            let bold = ("sans-serif", 20).into_font().style(FontStyle::Bold);
            head.draw(&Text::new(&*self.title, (14, 10), bold.color(&INK)))?;
            for (number, line) in self.notes(width).iter().enumerate() {
                let y = 34 + number as i32 * NOTE_LINE as i32;
                head.draw(&Text::new(&**line, (14, y), text(15).color(&SOFT)))?;
            }
            top = self.title_height(width) as i32;
        }
        let legend = self.legend();
        let a_line = legend_columns(&legend, width);
        for (number, curve) in legend.iter().enumerate() {
            let x = 14 + (number % a_line * (width as usize - 14) / a_line) as i32;
            let y = top + (number / a_line) as i32 * LEGEND_LINE as i32 + 8;
            let line = colour(curve.style).stroke_width(2);
            head.draw(&PathElement::new([(x, y), (x + 26, y)], line))?;
            if curve.has_marks {
                head.draw(&(EmptyElement::at((x + 13, y)) + mark(curve.style)))?;
            }
            let label = text(16).pos(Pos::new(HPos::Left, VPos::Center));
            head.draw(&Text::new(&*curve.label, (x + 34, y), label))?;
        }
        for (panel, place) in self.panels.iter().zip(places) {
            panel.draw(place)?;
        }
        root.present()
    }

    /// The lines of the note.
    fn notes(&self, width: u32) -> Vec<String> {
        let letters = (f64::from(width) / LETTER) as usize;
        let lines = self.note.lines();
        lines
            .flat_map(|line| words::lines(line, letters, ""))
            .collect()
    }

    /// Of title and note.
    fn title_height(&self, width: u32) -> u32 {
        match self.title.is_empty() {
            true => 0,
            false => TITLE + (self.notes(width).len().max(1) as u32 - 1) * NOTE_LINE,
        }
    }

    /// Each curve once.
    fn legend(&self) -> Vec<&Curve> {
        let mut curves: Vec<&Curve> = Vec::new();
        for curve in self.panels.iter().flat_map(|panel| &panel.curves) {
            if !curves.iter().any(|other| other.label == curve.label) {
                curves.push(curve);
            }
        }
        curves
    }
}

fn legend_columns(legend: &[&Curve], width: u32) -> usize {
    let longest = legend.iter().map(|curve| curve.label.chars().count()).max();
    let each = (longest.unwrap_or(0) as f64 * LETTER + 60.0).max(104.0);
    ((f64::from(width) / each) as usize).max(1)
}

impl Panel {
    fn height(&self) -> u32 {
        match self.bars.len() as u32 {
            0 => HEIGHT,
            bars => {
                let title = if self.title.is_empty() { 0 } else { CAPTION };
                let name = if self.x.name.is_empty() { 0 } else { AXIS_NAME };
                bars * BAR + AROUND_BARS + title + name
            }
        }
    }

    fn draw(&self, place: &Area<'_>) -> Drawn {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let ends = self.bars.iter().flat_map(|bar| [bar.least, bar.most]);
        let across = points().map(|point| point.0).chain(ends).chain(self.limit);
        let mut x = Scale::of(&self.x, across, 0.04);
        let mut y = Scale::of(&self.y, points().map(|point| point.1), 0.08);
        let mut left = 66;
        if !self.bars.is_empty() {
            x.stretch(VALUES_SHARE);
            let rows = self.bars.iter().enumerate();
            y.marks = rows
                .map(|(n, bar)| (-(n as f64), bar.label.clone()))
                .collect();
            y.range = 0.5 - self.bars.len() as f64..0.5;
            let longest = self.bars.iter().map(|bar| bar.label.chars().count()).max();
            left = (longest.unwrap_or(0) as f64 * LETTER) as u32 + 16;
        }
        x.thin(place.dim_in_pixel().0.saturating_sub(left + BESIDE));
        let (low, high) = (y.range.start, y.range.end);
        let across = x.range.clone();
        let mut builder = ChartBuilder::on(place);
        builder
            .margin(MARGIN)
            .margin_right(MARGIN_RIGHT)
            .x_label_area_size(if self.x.name.is_empty() { 22 } else { 42 })
            .y_label_area_size(left);
        if !self.title.is_empty() {
            let bold = ("sans-serif", 17).into_font().style(FontStyle::Bold);
            builder.caption(&self.title, bold.color(&INK));
        }
        let mut chart = builder.build_cartesian_2d(x, y)?;
        for (number, (from, to, _)) in self.bands.iter().enumerate() {
            let shade = if number % 2 == 0 { BAND } else { WHITE };
            let corners = [(*from, low), (*to, high)];
            chart.draw_series([Rectangle::new(corners, shade.filled())])?;
        }
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x.name)
            .y_desc(self.y.name)
            .bold_line_style(GRID)
            .axis_style(SOFT)
            .label_style(text(14))
            .axis_desc_style(text(15));
        if !self.bars.is_empty() {
            mesh.disable_y_mesh();
        }
        mesh.draw()?;
        for (from, to, name) in &self.bands {
            let centre = text(13).color(&SOFT).pos(Pos::new(HPos::Center, VPos::Top));
            let at = ((from + to) / 2.0, high);
            chart.draw_series([Text::new(name.clone(), at, centre)])?;
        }
        for curve in &self.curves {
            curve.draw(&mut chart)?;
        }
        for (number, bar) in self.bars.iter().enumerate() {
            bar.draw(-(number as f64), &across, self.x.is_log, &mut chart)?;
        }
        if let Some(limit) = self.limit {
            let line = LIMIT.stroke_width(2);
            chart.draw_series([PathElement::new([(limit, low), (limit, high)], line)])?;
        }
        Ok(())
    }
}

impl Curve {
    fn draw(&self, chart: &mut Chart<'_, '_>) -> Drawn {
        let points = &self.points;
        let line = colour(self.style).stroke_width(2);
        if self.is_stepped {
            // What a point says is of the stretch that ends in it.
            let steps = points.windows(2);
            chart.draw_series(
                steps.map(|ends| PathElement::new([(ends[0].0, ends[1].1), ends[1]], line)),
            )?;
        } else {
            chart.draw_series(LineSeries::new(points.iter().copied(), line))?;
        }
        if self.has_marks {
            let marks = points.iter();
            chart.draw_series(marks.map(|point| EmptyElement::at(*point) + mark(self.style)))?;
        }
        Ok(())
    }
}

impl Bar {
    fn draw(&self, y: f64, across: &Range<f64>, is_log: bool, chart: &mut Chart<'_, '_>) -> Drawn {
        let colour = colour(self.style);
        let line = |ends, style: ShapeStyle| PathElement::new(ends, style);
        let reach = [(self.least, y), (self.most, y)].map(|(x, y)| (x.max(across.start), y));
        if is_log {
            // What is nothing has no place on it, and stands at its beginning.
            let dot = |x: f64, radius, style: ShapeStyle| {
                Circle::new((x.max(across.start), y), radius, style)
            };
            let end = [(self.most, y - 0.25), (self.most, y + 0.25)];
            let thick = colour.stroke_width(2);
            chart.draw_series([line(reach, thick), line(end, thick)])?;
            chart.draw_series([
                dot(self.least, 5, self.fill()),
                dot(self.middle, 4, WHITE.filled()),
                dot(self.middle, 4, thick),
            ])?;
        } else {
            let corners = [(0.0, y - 0.33), (self.middle, y + 0.33)];
            chart.draw_series([Rectangle::new(corners, self.fill())])?;
            if self.most > self.least {
                chart.draw_series([line(reach, INK.stroke_width(1))])?;
            }
        }
        let value = text(15).pos(Pos::new(HPos::Right, VPos::Center));
        chart.draw_series([Text::new(self.value.clone(), (across.end, y), value)])?;
        Ok(())
    }

    fn fill(&self) -> ShapeStyle {
        let colour = colour(self.style);
        if self.is_filled {
            colour.filled()
        } else {
            colour.stroke_width(1)
        }
    }
}

/// Where the values of an axis are, and which of them are marked.
struct Scale {
    is_log: bool,
    range: Range<f64>,
    marks: Vec<(f64, String)>,
}

impl Scale {
    /// Holds all values, and beyond the least and the greatest such a share of what is between them.
    fn of(axis: &Axis, values: impl Iterator<Item = f64>, headroom: f64) -> Scale {
        let values = values.chain(axis.marks.iter().map(|mark| mark.0));
        let (least, most) = values
            .filter(|value| value.is_finite() && (!axis.is_log || *value > 0.0))
            .fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), value| {
                (least.min(value), most.max(value))
            });
        let least = axis.from.unwrap_or(if least <= most { least } else { 1.0 });
        let most = if most > least {
            most
        } else {
            least * 1.5 + 1.0
        };
        let mut scale = Scale {
            is_log: axis.is_log,
            range: least..most,
            marks: axis.marks.clone(),
        };
        scale.stretch(headroom);
        if axis.is_log {
            scale.range.start = least / 1.15;
        }
        if scale.marks.is_empty() {
            // Numbers with a unit are long.
            let count = if axis.unit.is_some() { 3 } else { 7 };
            let unit = axis.unit.unwrap_or(number);
            let whole = |text: String| text.replace(".00 ", " ").replace(".0 ", " ");
            let named = |value: f64| (value, whole(unit(value)));
            scale.marks = scale.round(count).into_iter().map(named).collect();
        }
        scale
    }

    /// Makes it longer at its end, by this share of it.
    fn stretch(&mut self, share: f64) {
        let Range { start, end } = self.range;
        self.range.end = if self.is_log {
            end * (end / start).powf(share)
        } else {
            end + (end - start) * share
        };
    }

    /// Leaves out marks whose names have no room beside those before them.
    fn thin(&mut self, pixels: u32) {
        let mut free = f64::NEG_INFINITY;
        for mark in std::mem::take(&mut self.marks) {
            let middle = f64::from(self.map(&mark.0, (0, pixels as i32)));
            let half = mark.1.chars().count() as f64 * LETTER / 2.0;
            if middle - half >= free {
                free = middle + half;
                self.marks.push(mark);
            }
        }
    }

    /// So many round numbers; of a logarithmic scale powers of ten, and 2 and 5 times these where there is
    /// room.
    fn round(&self, count: usize) -> Vec<f64> {
        let Range { start, end } = self.range;
        if !self.is_log {
            return RangedCoordf64::from(start..end).key_points(count);
        }
        let within: &[f64] = if end / start > 30.0 * count as f64 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        (start.log10().floor() as i32..=end.log10().ceil() as i32)
            .flat_map(|power| within.iter().map(move |step| step * 10f64.powi(power)))
            .filter(|value| self.range.contains(value))
            .collect()
    }
}

impl Ranged for Scale {
    type ValueType = f64;
    type FormatOption = NoDefaultFormatting;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let at = |value: f64| {
            if self.is_log {
                value.max(1e-9).ln()
            } else {
                value
            }
        };
        RangedCoordf64::from(at(self.range.start)..at(self.range.end)).map(&at(*value), pixels)
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.marks.iter().map(|mark| mark.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        let mut marks = self.marks.iter();
        let mark = marks.find(|mark| mark.0 == *value);
        mark.map_or(String::new(), |mark| mark.1.clone())
    }
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// `0.25`, `3`, `1500`, `20 k`.
fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn colour(style: usize) -> RGBColor {
    COLOURS[style % COLOURS.len()]
}

/// What points look like: triangles and squares, each of them upright, turned, and as stars.
fn mark(style: usize) -> Polygon<(i32, i32)> {
    let corners = [4, 3, 3, 4][style % 4];
    let angle = std::f64::consts::PI / f64::from(corners);
    let inner = if style % 8 < 4 { angle.cos() } else { 0.3 };
    let turned = if style.is_multiple_of(2) { angle } else { 0.0 };
    let corner = |number| {
        let radius = if number % 2 == 0 { 6.0 } else { 6.0 * inner };
        let at = turned + angle * f64::from(number);
        (
            (radius * at.sin()).round() as i32,
            (-radius * at.cos()).round() as i32,
        )
    };
    let shape: Vec<_> = (0..2 * corners).map(corner).collect();
    Polygon::new(shape, colour(style))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(axis: &Axis, values: &[f64]) -> Scale {
        Scale::of(axis, values.iter().copied(), 0.04)
    }

    #[test]
    fn axes_have_round_marks_within_them() {
        for values in [
            [0.0, 1.0],
            [0.2, 3.7],
            [0.0, 17.0],
            [100.0, 4321.0],
            [5.0, 5.0],
        ] {
            let scale = scale(&Axis::linear(""), &values);
            let marks = &scale.marks;
            assert!((3..=9).contains(&marks.len()), "{values:?}: {marks:?}");
            assert!(marks.iter().all(|mark| scale.range.contains(&mark.0)));
        }
        let log = scale(&Axis::log(""), &[120.0, 9000.0]);
        let names: Vec<&str> = log.marks.iter().map(|mark| mark.1.as_str()).collect();
        assert_eq!(names, ["200", "500", "1000", "2000", "5000", "10 k"]);
        assert_eq!(log.format_ext(&500.0), "500");
        assert!(log.range.contains(&120.0) && log.range.contains(&9000.0));
        // Nothing at all, or one value, is an axis, too.
        for values in [&[][..], &[0.0], &[7.0]] {
            let scale = scale(&Axis::log(""), values);
            assert!(
                scale.range.start < scale.range.end && !scale.marks.is_empty(),
                "{values:?}"
            );
        }
    }

    #[test]
    fn marks_without_room_are_left_out() {
        let axis = Axis {
            unit: Some(words::time),
            ..Axis::log("")
        };
        let of = |pixels| {
            let mut scale = scale(&axis, &[100e3, 6e6]);
            scale.thin(pixels);
            let marks = scale.marks.into_iter().map(|mark| mark.1);
            marks.collect::<Vec<String>>().join(", ")
        };
        let all = "100 µs, 200 µs, 500 µs, 1 ms, 2 ms, 5 ms";
        assert_eq!(of(1000), all);
        assert_eq!(of(200), "100 µs, 500 µs, 2 ms, 5 ms");
        assert_eq!(of(0), "100 µs");
    }

    #[test]
    fn a_picture_has_its_curves_and_each_label_once_in_its_legend() {
        let curve = |label: &str, style| Curve {
            label: label.into(),
            style,
            points: vec![(1.0, 200.0), (2.0, 300.0)],
            has_marks: true,
            is_stepped: style == 1,
        };
        let panel = || Panel {
            title: "0 % < 2 %".into(),
            x: Axis::linear("M/s"),
            y: Axis::log("ns"),
            curves: vec![curve("+wrc", 7), curve("phash", 1)],
            bands: vec![(0.0, 1.5, "calm".into())],
            ..Panel::default()
        };
        let svg = Picture {
            title: "title".into(),
            note: "a & b".into(),
            columns: 2,
            panels: vec![panel(), panel(), panel()],
        }
        .svg();
        let count = |part: &str| svg.matches(part).count();
        assert_eq!((count("\n+wrc\n"), count("\ncalm\n")), (1, 3));
        // Two points in each of three panels, and one in the legend.
        assert_eq!(count("<polygon"), 2 * (2 * 3 + 1));
        assert!(svg.contains("a &amp; b") && svg.contains("0 % &lt; 2 %"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn bars_are_as_long_as_their_middle() {
        let bar = |label: &str, [least, middle, most]: [f64; 3]| Bar {
            label: label.into(),
            value: format!("{middle} each"),
            least,
            middle,
            most,
            style: 5,
            is_filled: true,
        };
        let picture = |x: Axis| {
            let panel = Panel {
                x,
                bars: vec![
                    bar("one", [20.0, 40.0, 50.0]),
                    bar("two", [10.0, 10.0, 10.0]),
                ],
                limit: Some(100.0),
                ..Panel::default()
            };
            let panels = vec![panel];
            Picture {
                panels,
                ..Picture::default()
            }
            .svg()
        };
        let linear = picture(Axis::linear(""));
        let widths: Vec<i32> = linear
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("#0072B2"))
            .filter_map(|line| {
                line.split("width=\"")
                    .nth(1)?
                    .split('"')
                    .next()?
                    .parse()
                    .ok()
            })
            .collect();
        assert_eq!(widths.len(), 2, "{linear}");
        assert!((widths[0] - 4 * widths[1]).abs() <= 4, "{widths:?}");
        assert!(linear.contains("40 each") && linear.contains("two"));
        // Where there is no zero there are marks.
        let log = picture(Axis::log(""));
        assert_eq!(log.matches("<circle").count(), 2 * 3, "{log}");
    }
}
