//! Rows of pages: of what shape they are is as a run gave it, what they say means nothing.
//!
//! They come from runs of next to no length of a build without optimisation, rounded to three digits.

use everdram_bench::figure::Figure;
use everdram_bench::report::figures::Chapter;
use everdram_bench::{Machine, Metric, Row};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Suite, subject, workload, threads, conditions that others do not share, values, distribution.
type Stored = (
    String,
    String,
    String,
    usize,
    Map<String, Value>,
    BTreeMap<Metric, Vec<f64>>,
    Vec<(u64, f64)>,
);

/// The rows of a figure, or of a part of a comparison.
#[derive(Deserialize)]
struct Group {
    name: String,
    conditions: Map<String, Value>,
    left_out: Vec<(String, String)>,
    rows: Vec<Stored>,
}

impl Group {
    fn all(text: &str) -> Vec<Group> {
        serde_json::from_str(text).unwrap()
    }

    fn rows(self) -> Vec<Row> {
        let machine = Machine {
            processor: "A processor with a name as long as they have, at 2.50 GHz".into(),
            cores: 2,
            memory_bytes: 24 << 30,
            kernel: "Linux 6.18.44".into(),
            filesystem: "tmpfs".into(),
            flush: "clwb".into(),
        };
        let left_out = self.left_out.iter();
        let left_out = left_out.map(|(what, why)| Row::left_out(what, why, &machine));
        let measured = self.rows.into_iter().map(|stored| {
            let (suite, subject, workload, threads, own, values, cdf) = stored;
            let mut conditions = self.conditions.clone();
            conditions.extend(own);
            let conditions = Value::Object(conditions);
            let mut row = Row::new(&suite, &subject, &workload, threads, conditions, &machine);
            for (metric, rounds) in values {
                row.extend(metric, rounds);
            }
            row.cdf = cdf;
            row.commit = "0123456789ab-dirty".into();
            row
        });
        measured.chain(left_out).collect()
    }
}

/// Figures of every paper and with pictures of every kind, and one that could not be measured.
pub(crate) fn chapters() -> Vec<Chapter> {
    let measured = Group::all(include_str!("figures.json")).into_iter();
    let mut chapters: Vec<Chapter> = measured
        .map(|group| Chapter {
            figure: Figure::find(&group.name).unwrap(),
            measured: Ok(group.rows()),
        })
        .collect();
    chapters.push(Chapter {
        figure: Figure::find("dstore-t3").unwrap(),
        measured: Err("this build has no clocks between the steps of a put".into()),
    });
    chapters
}

/// Stores on memory and on a disk, servers, limits.
pub(crate) fn comparison() -> Vec<Row> {
    let groups = Group::all(include_str!("compare.json")).into_iter();
    groups.flat_map(Group::rows).collect()
}
