//! From lines to the picture of their figure.

use super::Figure;
use super::line::{Distribution, Line, Measured, Rate};
use crate::show::plot::{Axis, Curve, Panel, Picture};
use everdram::options::BulletSystem;

/// The picture of lines of one figure; empty without lines.
#[must_use]
pub fn svg(lines: &[Line]) -> String {
    let Some(first) = lines.first() else {
        return String::new();
    };
    let (columns, panels) = match first.figure {
        Figure::Bullet5 => (2, by_writes(lines, throughput_and_latency)),
        Figure::Bullet6 => (2, distributions(lines)),
        Figure::Bullet7 => (1, course(lines)),
        Figure::Bullet8 => (1, vec![log_sizes(lines)]),
        Figure::Bullet9 => (2, by_writes(lines, clients_and_latency)),
    };
    Picture {
        title: format!(
            "{} (Bullet, figure {})",
            first.figure.what(),
            number(first.figure)
        ),
        note: conditions(first),
        columns,
        panels,
    }
    .svg()
}

/// Of a distribution; the rest of it, in which a stall of the machine is, would take most of the picture.
const SHARE_DRAWN: f64 = 0.995;

fn number(figure: Figure) -> &'static str {
    figure.name().trim_start_matches("bullet-")
}

/// The conditions in a line of text.
pub(super) fn conditions(line: &Line) -> String {
    let what = &line.conditions;
    let records = match what.records {
        records if records >= 1_000_000 => format!("{:.1} M", records as f64 / 1e6),
        records => format!("{:.0} k", records as f64 / 1e3),
    };
    format!(
        "{} memory, delays of {}; {records} records of {} + {} B; {} x {} s; {} cores",
        what.medium,
        what.preset,
        what.key_bytes,
        what.value_bytes,
        what.rounds,
        what.seconds,
        line.machine.cores,
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

fn style(system: &str) -> usize {
    let mut all = BulletSystem::ALL.iter();
    all.position(|known| known.name() == system).unwrap_or(0)
}

/// Logarithmic where the values are far apart, else from 0 on.
fn latency_axis(name: &'static str, curves: &[Curve]) -> Axis {
    let values = || {
        curves
            .iter()
            .flat_map(|curve| &curve.points)
            .map(|point| point.1)
    };
    let (least, most) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    );
    if most > 6.0 * least {
        Axis::log(name)
    } else {
        Axis::linear(name)
    }
}

/// A panel for each share of writes.
fn by_writes(lines: &[Line], panel: fn(String, Vec<&Line>) -> Panel) -> Vec<Panel> {
    distinct(lines.iter().map(|line| line.writes_percent))
        .into_iter()
        .map(|percent| {
            let of_share = lines.iter().filter(|line| line.writes_percent == percent);
            panel(format!("{percent} % writes"), of_share.collect())
        })
        .collect()
}

fn curves(lines: &[&Line], point: impl Fn(&Line, &Rate) -> (f64, f64)) -> Vec<Curve> {
    distinct(lines.iter().map(|line| line.system.as_str()))
        .into_iter()
        .map(|system| Curve {
            label: system.into(),
            style: style(system),
            points: lines
                .iter()
                .filter(|line| line.system == system)
                .filter_map(|line| Some(point(line, line.rate()?)))
                .collect(),
            has_marks: true,
            ..Curve::default()
        })
        .collect()
}

fn throughput_and_latency(title: String, lines: Vec<&Line>) -> Panel {
    let curves = curves(&lines, |_, rate| {
        (rate.best().mops.median, rate.best().mean_ns.median)
    });
    Panel {
        title,
        x: Axis::linear("throughput, million requests a second"),
        y: latency_axis("mean latency, ns", &curves),
        curves,
        ..Panel::default()
    }
}

fn clients_and_latency(title: String, lines: Vec<&Line>) -> Panel {
    let curves = curves(&lines, |line, rate| {
        (line.clients.unwrap_or(0) as f64, rate.best().mean_ns.median)
    });
    let mut x = Axis::linear("clients");
    x.marks = distinct(lines.iter().filter_map(|line| line.clients))
        .into_iter()
        .map(|clients| (clients as f64, clients.to_string()))
        .collect();
    Panel {
        title,
        x,
        y: latency_axis("mean latency of clients, ns", &curves),
        curves,
        ..Panel::default()
    }
}

fn distributions(lines: &[Line]) -> Vec<Panel> {
    let panel = |title: &str, of: fn(&Line) -> Option<&Distribution>| Panel {
        title: title.into(),
        x: Axis::log("latency, ns"),
        y: Axis::linear("share of calls"),
        curves: lines
            .iter()
            .filter_map(|line| {
                let cdf = &of(line)?.cdf;
                Some(Curve {
                    label: line.system.clone(),
                    style: style(&line.system),
                    points: cdf
                        .iter()
                        .filter(|(_, share)| *share <= SHARE_DRAWN)
                        .map(|(ns, share)| (*ns as f64, *share))
                        .collect(),
                    ..Curve::default()
                })
            })
            .collect(),
        ..Panel::default()
    };
    vec![
        panel("get", |line| match &line.measured {
            Measured::Calls(calls) => calls.get.as_ref(),
            _ => None,
        }),
        panel("put", |line| match &line.measured {
            Measured::Calls(calls) => calls.put.as_ref(),
            _ => None,
        }),
    ]
}

fn course(lines: &[Line]) -> Vec<Panel> {
    let panel = |title: &str, name, value: fn(&super::Moment) -> f64, is_stepped| Panel {
        title: title.into(),
        x: Axis::linear("seconds"),
        y: Axis::linear(name),
        curves: lines
            .iter()
            .filter_map(|line| {
                let Measured::Course { moments } = &line.measured else {
                    return None;
                };
                let points = moments.iter().map(|moment| (moment.second, value(moment)));
                Some(Curve {
                    label: line.system.clone(),
                    style: style(&line.system),
                    points: points.collect(),
                    is_stepped,
                    ..Curve::default()
                })
            })
            .collect(),
        bands: lines.first().map_or(Vec::new(), phases),
        ..Panel::default()
    };
    vec![
        panel(
            "throughput",
            "million requests a second",
            |moment| moment.undisturbed_mops,
            false,
        ),
        panel(
            "gleaners",
            "workers that glean",
            |moment| moment.gleaners as f64,
            true,
        ),
    ]
}

/// From when to when each share of writes was.
fn phases(line: &Line) -> Vec<(f64, f64, String)> {
    let Measured::Course { moments } = &line.measured else {
        return Vec::new();
    };
    let mut from = 0.0;
    moments
        .chunk_by(|one, next| one.phase == next.phase)
        .filter_map(|phase| {
            let last = phase.last()?;
            let begun = std::mem::replace(&mut from, last.second);
            Some((begun, last.second, format!("{} %", last.writes_percent)))
        })
        .collect()
}

fn log_sizes(lines: &[Line]) -> Panel {
    let mib = |line: &Line| line.conditions.log_bytes as f64 / f64::from(1 << 20);
    let curves = distinct(lines.iter().map(|line| line.writes_percent))
        .into_iter()
        .enumerate()
        .map(|(number, percent)| Curve {
            label: format!("{percent} % writes"),
            // Far apart among the colours and marks that systems have.
            style: [7, 5, 2, 0][number % 4],
            points: lines
                .iter()
                .filter(|line| line.writes_percent == percent)
                .filter_map(|line| Some((mib(line), line.rate()?.best().mops.median)))
                .collect(),
            has_marks: true,
            ..Curve::default()
        })
        .collect();
    let mut x = Axis::log("size of each log");
    x.marks = distinct(lines.iter().map(|line| line.conditions.log_bytes))
        .into_iter()
        .map(|bytes| (bytes as f64 / f64::from(1 << 20), super::line::mib(bytes)))
        .collect();
    let first = lines.first();
    Panel {
        title: first.map_or(String::new(), |line| {
            format!(
                "{}, {} workers, {} logs",
                line.system, line.threads, line.conditions.logs
            )
        }),
        x,
        y: Axis::linear("million requests a second"),
        curves,
        ..Panel::default()
    }
}
