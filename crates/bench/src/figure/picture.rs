//! From rows to the picture of their figure, as its data says.

use super::system::Systems;
use super::{Figure, best, filled_in, is_stand_in, label, measured, mib};
use crate::row::{Metric, Row};
use crate::show::plot::{Axis, Bar, Curve, Panel, Picture};
use serde::Deserialize;

/// Of a distribution; the rest of it, in which a stall of the machine is, would take most of the picture.
const SHARE_DRAWN: f64 = 0.995;
/// What an axis of percentiles has, and how it calls them.
const PERCENTILES: [(Metric, &str); 4] = [
    (Metric::P50Ns, "50 %"),
    (Metric::P99Ns, "99 %"),
    (Metric::P999Ns, "99.9 %"),
    (Metric::P9999Ns, "99.99 %"),
];

/// How rows are drawn.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drawing {
    columns: usize,
    /// All panels are drawn for each value of this; none = once.
    panel_for_each: Option<String>,
    /// What a line of a panel stands for; none = a system.
    lines: Option<String>,
    /// Whether points are marked.
    #[serde(default)]
    marks: bool,
    /// Loads that are drawn; none = all.
    #[serde(default)]
    loads: Vec<String>,
    panels: Vec<DrawnPanel>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawnPanel {
    /// May name `{system}`, `{workers}`, `{workload}`, `{ground}` and `{logs}`; empty = what the panel is
    /// drawn for.
    #[serde(default)]
    title: String,
    /// Level from one moment to the next.
    #[serde(default)]
    stepped: bool,
    x: DrawnAxis,
    /// None: bars along x, one below the other.
    y: Option<DrawnAxis>,
    /// Bars for these of each row; none = for the metric of x.
    #[serde(default)]
    metrics: Vec<Metric>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawnAxis {
    /// A metric, a condition, `cdf` or `percentiles`.
    of: String,
    name: String,
    #[serde(default)]
    scaling: Scaling,
    /// What values are multiplied by.
    scale: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Scaling {
    /// From zero on.
    #[default]
    Linear,
    Log,
    /// Logarithmic where values are far apart.
    LogIfWide,
}

/// What rows of one figure were measured with, in a few short lines; empty without rows.
#[must_use]
pub fn note(rows: &[Row]) -> String {
    let (Some(figure), Some(first)) = (Figure::of(rows), rows.first()) else {
        return String::new();
    };
    let note = figure.paper().note.replace("{grounds}", &grounds(rows));
    let usual = filled_in(&note, first);
    let lines = std::iter::once(usual).chain(stand_ins(rows));
    lines.collect::<Vec<_>>().join("\n")
}

/// What each stand-in is, in a line.
pub(super) fn stand_ins(rows: &[Row]) -> Vec<String> {
    let rows = measured(rows).filter(|row| is_stand_in(row));
    distinct(rows.map(|row| {
        format!(
            "{} stands in for {}: its log on tmpfs without delays, its tables on the disk",
            row.subject,
            row.say("stands_in_for")
        )
    }))
}

/// What rows were measured on, each ground once.
fn grounds(rows: &[Row]) -> String {
    let has_data = Figure::of(rows).is_some_and(|of| of.paper().systems.have_data_files());
    let said = measured(rows).filter(|row| !row.is("rival")).map(|row| {
        let delays = row.say("delays");
        match (&*row.say("ground"), &*row.say("disk")) {
            _ if !row.say("device").is_empty() => "B: emulated memory, data on a disk".into(),
            ("", _) if delays == "none" => format!("{} memory, no delays", row.say("medium")),
            ("", _) => format!("{} memory, delays of {delays}", row.say("medium")),
            ("a", "") if !has_data => format!("A: emulated memory ({delays})"),
            ("a", "") => format!("A: emulated memory ({delays}), data in memory"),
            ("a", disk) => format!("A: emulated memory ({delays}), modelled disk ({disk})"),
            ("b", _) => format!("B: emulated memory ({delays}), data on a disk"),
            _ => "C: all on a disk".into(),
        }
    });
    let rivals = measured(rows).find(|row| row.is("rival"));
    let rivals = rivals.map(|_| "rivals on ground B: all on a disk".into());
    distinct(said.chain(rivals)).join("; ")
}

/// The picture of rows of one figure; empty without rows.
#[must_use]
pub fn svg(rows: &[Row]) -> String {
    let Some(figure) = Figure::of(rows) else {
        return String::new();
    };
    let note = note(rows);
    let drawing = &figure.picture;
    let is_drawn = |row: &&Row| drawing.loads.is_empty() || drawing.loads.contains(&row.workload);
    let rows: Vec<&Row> = measured(rows).filter(is_drawn).collect();
    let all = drawing.panel_for_each.as_deref();
    let titles = all.map_or(vec![String::new()], |by| {
        distinct(rows.iter().map(|row| label(row, by)))
    });
    let lines = distinct(rows.iter().map(|row| label(row, drawing.lines())));
    let panels = titles.iter().flat_map(|title| {
        let rows: Vec<&Row> = rows
            .iter()
            .copied()
            .filter(|row| all.is_none_or(|by| label(row, by) == *title))
            .collect();
        let lines = &lines;
        let panels = drawing.panels.iter();
        panels.map(move |panel| panel.draw(figure, title, lines, &rows))
    });
    let is_empty = |panel: &Panel| {
        panel.bars.is_empty() && panel.curves.iter().all(|curve| curve.points.is_empty())
    };
    Picture {
        title: format!(
            "{} ({}, {})",
            figure.what,
            figure.paper().short,
            figure.place()
        ),
        note,
        columns: drawing.columns,
        // What this build or this store does not count has no picture.
        panels: panels.filter(|panel| !is_empty(panel)).collect(),
    }
    .svg()
}

impl Drawing {
    fn lines(&self) -> &str {
        self.lines.as_deref().unwrap_or("system")
    }
}

impl DrawnPanel {
    /// `lines`: those of the whole picture, so that each looks the same in all panels.
    fn draw(
        &'static self,
        figure: &'static Figure,
        title: &str,
        lines: &[String],
        rows: &[&Row],
    ) -> Panel {
        let by = figure.picture.lines();
        let fill = |first: &&Row| {
            let title = self.title.replace("{system}", &first.subject);
            let title = title.replace("{workers}", &first.threads.to_string());
            let title = title.replace("{workload}", &first.workload);
            let title = title.replace("{ground}", &label(first, "ground"));
            title.replace("{logs}", &first.say("logs"))
        };
        let mut title = match self.title.as_str() {
            "" => title.into(),
            _ => rows.first().map_or(String::new(), fill),
        };
        // A line is of one number of workers.
        let most = rows.iter().map(|row| row.threads).max().unwrap_or(0);
        let mut judged = rows.to_vec();
        if self.x.of == "percentiles" {
            judged.retain(|row| row.threads == most);
            if judged.len() < rows.len() {
                title += &format!(", {most} workers");
            }
        }
        let rows = &judged;
        let Some(drawn_y) = &self.y else {
            let bars = self.bars(figure, lines, rows);
            let values = bars.iter().flat_map(|bar| [bar.least, bar.most]);
            return Panel {
                title,
                x: self.x.axis(values, rows),
                bars,
                ..Panel::default()
            };
        };
        let drawn = lines.iter().enumerate();
        let drawn = drawn.filter(|(_, line)| rows.iter().any(|row| label(row, by) == **line));
        let curve = |(number, line): (usize, &String)| {
            let same = rows.iter().filter(|row| label(row, by) == *line);
            Curve {
                label: line.clone(),
                style: style(figure, line, number),
                points: same.flat_map(|row| self.points(drawn_y, row)).collect(),
                has_marks: figure.picture.marks,
                is_stepped: self.stepped,
            }
        };
        let curves: Vec<Curve> = drawn.map(curve).collect();
        let points = || curves.iter().flat_map(|curve| &curve.points);
        Panel {
            title,
            x: self.x.axis(points().map(|point| point.0), rows),
            y: drawn_y.axis(points().map(|point| point.1), rows),
            curves,
            bands: phases(rows),
            ..Panel::default()
        }
    }

    /// A bar for each row and metric that was measured.
    fn bars(&self, figure: &Figure, lines: &[String], rows: &[&Row]) -> Vec<Bar> {
        let scale = self.x.scale.unwrap_or(1.0);
        let several = distinct(rows.iter().map(|row| row.threads)).len() > 1;
        // Each is a whole, and its parts follow it.
        let are_wholes =
            distinct(rows.iter().map(|row| label(row, figure.picture.lines()))).len() > 1;
        let mut bars = Vec::new();
        for row in rows {
            let line = label(row, figure.picture.lines());
            let number = lines.iter().position(|other| *other == line).unwrap_or(0);
            let own: Vec<Metric> = self.x.of.parse().into_iter().collect();
            let metrics = match self.metrics.is_empty() {
                true => &own,
                false => &self.metrics,
            };
            for (nth, metric) in metrics.iter().enumerate() {
                let Some(spread) = row.spread(best(row, *metric)) else {
                    continue;
                };
                let is_split = !self.metrics.is_empty();
                bars.push(Bar {
                    label: match (is_split, several) {
                        (true, _) if !are_wholes => part(*metric, None),
                        (true, _) if nth > 0 => part(*metric, metrics.first()),
                        (true, _) => line.clone(),
                        (false, true) if row.threads == 1 => format!("{line}, 1 worker"),
                        (false, true) => format!("{line}, {} workers", row.threads),
                        (false, false) => line.clone(),
                    },
                    value: short(spread.median * scale),
                    least: spread.min * scale,
                    middle: spread.median * scale,
                    most: spread.max * scale,
                    style: match is_split {
                        true => nth,
                        false => style(figure, &line, number),
                    },
                    is_filled: !row.is("rival"),
                });
            }
        }
        bars
    }

    /// One point of a row, or one for each moment or percentile.
    fn points(&self, y: &DrawnAxis, row: &Row) -> Vec<(f64, f64)> {
        if self.x.of == "cdf" {
            let drawn = row.cdf.iter().filter(|(_, share)| *share <= SHARE_DRAWN);
            return drawn.map(|(ns, share)| (*ns as f64, *share)).collect();
        }
        if self.x.of == "percentiles" {
            let scale = y.scale.unwrap_or(1.0);
            let told = PERCENTILES.iter().enumerate();
            return told
                .filter_map(|(at, (metric, _))| {
                    Some((at as f64, row.median(best(row, *metric))? * scale))
                })
                .collect();
        }
        let (x, y) = (self.x.values(row), y.values(row));
        x.into_iter().zip(y).collect()
    }
}

impl DrawnAxis {
    fn values(&self, row: &Row) -> Vec<f64> {
        let values = match self.of.parse::<Metric>().map(|metric| best(row, metric)) {
            Ok(metric) if row.spread(Metric::Second).is_some() => row.rounds(metric).to_vec(),
            Ok(metric) => row.median(metric).into_iter().collect(),
            Err(_) => vec![number(row, &self.of)],
        };
        let scale = self.scale.unwrap_or(1.0);
        values.into_iter().map(|value| value * scale).collect()
    }

    fn axis(&'static self, values: impl Iterator<Item = f64>, rows: &[&Row]) -> Axis {
        let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), value| {
            (f64::min(least, value), f64::max(most, value))
        });
        let is_log = match self.scaling {
            Scaling::Linear => false,
            Scaling::Log => true,
            Scaling::LogIfWide => most > 6.0 * least,
        };
        let mut axis = if is_log {
            Axis::log(&self.name)
        } else {
            Axis::linear(&self.name)
        };
        if self.of == "percentiles" {
            if !is_log {
                let names = PERCENTILES.iter().enumerate();
                axis.marks = names
                    .map(|(at, (_, name))| (at as f64, (*name).to_owned()))
                    .collect();
            }
            return axis;
        }
        // Few conditions are numbers that anybody would round to.
        if self.of.parse::<Metric>().is_err() && self.of != "cdf" {
            let values = distinct(rows.iter().map(|row| number(row, &self.of)));
            let name = |value: f64| match self.of.as_str() {
                "log_bytes" => mib(value as u64),
                _ => value.to_string(),
            };
            axis.marks = values.iter().map(|value| (*value, name(*value))).collect();
        }
        axis
    }
}

/// A condition of a row, or how many `threads` it has.
fn number(row: &Row, of: &str) -> f64 {
    match of {
        "threads" => row.threads as f64,
        of => row.number(of),
    }
}

/// The same in all figures of a paper for a system; else far apart among the colours and marks that systems
/// have.
fn style(figure: &Figure, label: &str, number: usize) -> usize {
    let systems = figure.systems();
    let known = systems.iter().position(|known| known.name() == label);
    let others: &[usize] = match figure.curves.as_str() {
        // Beside systems, which have the others.
        _ if figure.rivals && figure.paper().systems == Systems::Viper => &[0, 2, 3, 4, 5],
        "system" if figure.rivals => &[7, 2, 0, 4, 3],
        _ => &[7, 5, 2, 0, 4, 6, 3, 1],
    };
    known.unwrap_or(others[number % others.len()])
}

/// How a metric that is a part is called, of this whole if that has a bar, too.
fn part(metric: Metric, whole: Option<&Metric>) -> String {
    let stem = |metric: &Metric| metric.name().trim_end_matches("_ns");
    let name = stem(&metric);
    let own = whole.and_then(|whole| name.strip_prefix(stem(whole))?.strip_prefix('_'));
    own.unwrap_or(name).into()
}

/// Three digits, as axes say them.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{} M", short(value / 1e6)),
        size if size >= 1e4 => format!("{} k", short(value / 1e3)),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// From when to when each phase was, and its name.
fn phases(rows: &[&Row]) -> Vec<(f64, f64, String)> {
    let mut from = 0.0;
    let first = rows.first().map(|row| &row.subject);
    let rows = rows.iter().filter(|row| Some(&row.subject) == first);
    rows.filter_map(|row| {
        let to = *row.rounds(Metric::Second).last()?;
        Some((std::mem::replace(&mut from, to), to, row.workload.clone()))
    })
    .collect()
}

/// Each different value once, in the order in which they come.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}
