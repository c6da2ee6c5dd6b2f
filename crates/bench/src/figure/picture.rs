//! From rows to the picture of their figure, as its data says.

use super::{Figure, best, label, mib};
use crate::row::{Metric, Row};
use crate::show::plot::{Axis, Curve, Panel, Picture};
use everdram::options::BulletSystem;
use serde::Deserialize;

/// Of a distribution; the rest of it, in which a stall of the machine is, would take most of the picture.
const SHARE_DRAWN: f64 = 0.995;

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
    panels: Vec<DrawnPanel>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawnPanel {
    /// May name `{system}`, `{workers}` and `{logs}`; empty = what the panel is drawn for.
    #[serde(default)]
    title: String,
    /// Level from one moment to the next.
    #[serde(default)]
    stepped: bool,
    x: DrawnAxis,
    y: DrawnAxis,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawnAxis {
    /// A metric, a condition, or `cdf`.
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

/// The picture of rows of one figure; empty without rows.
#[must_use]
pub fn svg(rows: &[Row]) -> String {
    let (Some(figure), Some(first)) = (Figure::of(rows), rows.first()) else {
        return String::new();
    };
    let drawing = &figure.picture;
    let all = drawing.panel_for_each.as_deref();
    let titles = all.map_or(vec![String::new()], |by| {
        distinct(rows.iter().map(|row| label(row, by)))
    });
    let panels = titles.iter().flat_map(|title| {
        let rows: Vec<&Row> = rows
            .iter()
            .filter(|row| all.is_none_or(|by| label(row, by) == *title))
            .collect();
        let panels = drawing.panels.iter();
        panels.map(move |panel| panel.draw(drawing, title, &rows))
    });
    Picture {
        title: format!(
            "{} ({}, figure {})",
            figure.what,
            figure.paper().short,
            figure.number
        ),
        note: conditions(first),
        columns: drawing.columns,
        panels: panels.collect(),
    }
    .svg()
}

impl DrawnPanel {
    fn draw(&'static self, drawing: &Drawing, title: &str, rows: &[&Row]) -> Panel {
        let by = drawing.lines.as_deref().unwrap_or("system");
        let lines = distinct(rows.iter().map(|row| label(row, by)));
        let curve = |(number, label): (usize, &String)| {
            let same = rows.iter().filter(|row| super::label(row, by) == *label);
            Curve {
                label: label.clone(),
                style: style(label, number),
                points: same.flat_map(|row| self.points(row)).collect(),
                has_marks: drawing.marks,
                is_stepped: self.stepped,
            }
        };
        let curves: Vec<Curve> = lines.iter().enumerate().map(curve).collect();
        let fill = |first: &&Row| {
            let title = self.title.replace("{system}", &first.subject);
            let title = title.replace("{workers}", &first.threads.to_string());
            title.replace("{logs}", &first.say("logs"))
        };
        Panel {
            title: match self.title.as_str() {
                "" => title.into(),
                _ => rows.first().map_or(String::new(), fill),
            },
            x: self.x.axis(
                curves.iter().flat_map(|curve| &curve.points).map(|p| p.0),
                rows,
            ),
            y: self.y.axis(
                curves.iter().flat_map(|curve| &curve.points).map(|p| p.1),
                rows,
            ),
            curves,
            bands: phases(rows),
            ..Panel::default()
        }
    }

    /// One point of a row, or one for each moment.
    fn points(&self, row: &Row) -> Vec<(f64, f64)> {
        if self.x.of == "cdf" {
            let drawn = row.cdf.iter().filter(|(_, share)| *share <= SHARE_DRAWN);
            return drawn.map(|(ns, share)| (*ns as f64, *share)).collect();
        }
        let (x, y) = (self.x.values(row), self.y.values(row));
        x.into_iter().zip(y).collect()
    }
}

impl DrawnAxis {
    fn values(&self, row: &Row) -> Vec<f64> {
        let values = match self.of.parse::<Metric>().map(|metric| best(row, metric)) {
            Ok(metric) if row.spread(Metric::Second).is_some() => row.rounds(metric).to_vec(),
            Ok(metric) => row.median(metric).into_iter().collect(),
            Err(_) => vec![row.number(&self.of)],
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
        // Few conditions are numbers that anybody would round to.
        if self.of.parse::<Metric>().is_err() && self.of != "cdf" {
            let values = distinct(rows.iter().map(|row| row.number(&self.of)));
            let name = |value: f64| match self.of.as_str() {
                "log_bytes" => mib(value as u64),
                _ => value.to_string(),
            };
            axis.marks = values.iter().map(|value| (*value, name(*value))).collect();
        }
        axis
    }
}

/// The same in all figures for a system; else far apart among the colours and marks that systems have.
fn style(label: &str, number: usize) -> usize {
    let mut all = BulletSystem::ALL.iter();
    let known = all.position(|known| known.name() == label);
    known.unwrap_or([7, 5, 2, 0][number % 4])
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

/// The conditions in a line of text.
fn conditions(row: &Row) -> String {
    let records = match row.number("records") {
        records if records >= 1e6 => format!("{:.1} M", records / 1e6),
        records => format!("{:.0} k", records / 1e3),
    };
    let say = |condition| row.say(condition);
    format!(
        "{} memory, delays of {}; {records} records of {} + {} B; {} x {} s; {} cores",
        say("medium"),
        say("delays"),
        say("key"),
        say("value"),
        say("rounds"),
        say("seconds"),
        row.machine.cores,
    )
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
