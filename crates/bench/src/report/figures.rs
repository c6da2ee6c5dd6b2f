//! All figures of all papers on one page: pictures, what the papers say, and whether it is so here.

use crate::figure::{self, Figure};
use crate::row::{LEFT_OUT, Row};
use crate::show::words::escaped;
use crate::verdict::Verdict;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A figure, and its rows or why there are none.
pub struct Chapter {
    /// Which one.
    pub figure: &'static Figure,
    /// What was measured.
    pub measured: Result<Vec<Row>, String>,
}

impl Chapter {
    fn rows(&self) -> &[Row] {
        self.measured.as_deref().unwrap_or_default()
    }

    /// Whether all of it has the shape that the paper says, as far as that was measured; `None`: nothing was.
    #[must_use]
    pub fn has_shape(&self) -> Option<bool> {
        let counts = Counts::of(&figure::claims(self.rows()));
        (counts.hold + counts.differ > 0).then_some(counts.differ == 0)
    }
}

/// How many statements.
#[derive(Default)]
struct Counts {
    hold: usize,
    differ: usize,
    open: usize,
}

impl Counts {
    fn of(verdicts: &[Verdict]) -> Counts {
        let count = |holds| verdicts.iter().filter(|one| one.holds == holds).count();
        Counts {
            hold: count(Some(true)),
            differ: count(Some(false)),
            open: count(None),
        }
    }

    fn add(&mut self, other: &Counts) {
        self.hold += other.hold;
        self.differ += other.differ;
        self.open += other.open;
    }
}

/// The page; `made_with` says with what: the command.
#[must_use]
pub fn html(chapters: &[Chapter], made_with: &str) -> String {
    let parts = [
        opening(chapters, made_with),
        summary(chapters),
        chapters.iter().map(chapter).collect(),
    ];
    super::page("everdram: figures of five papers", &parts)
}

fn opening(chapters: &[Chapter], made_with: &str) -> String {
    let mut all = Counts::default();
    for chapter in chapters {
        all.add(&Counts::of(&figure::claims(chapter.rows())));
    }
    let judged = chapters.iter().filter_map(Chapter::has_shape);
    let (mut same, mut of) = (0, 0);
    for has_shape in judged {
        same += usize::from(has_shape);
        of += 1;
    }
    format!(
        "<header><h1>The papers' figures, <span class=\"name\">measured</span></h1><p class=\"subtitle\">what the designs \
         behind everdram were said to do, and what they do here</p></header>\n<section><p class=\"verdict\">Of {of} figures \
         that could be judged, {same} have the shape that the paper has. Of the papers&#39; statements about them {} hold \
         here, {} do not, and {} were not measured.</p>{}</section>\n",
        all.hold,
        all.differ,
        all.open,
        super::facts(&facts_of(chapters, made_with))
    )
}

/// Names and texts.
fn facts_of(chapters: &[Chapter], made_with: &str) -> Vec<(&'static str, String)> {
    let rows = chapters.iter().flat_map(Chapter::rows);
    let mut machines = BTreeSet::new();
    let mut builds = BTreeSet::new();
    let mut delays = BTreeSet::new();
    for row in rows.filter(|row| row.suite != LEFT_OUT) {
        machines.insert(super::described(&row.machine));
        builds.insert(row.commit.clone());
        delays.insert(row.say("delays"));
    }
    let join = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join("; ");
    delays.remove("");
    vec![
        ("Machine", join(machines)),
        ("Built from", join(builds)),
        ("Delays", format!("emulated: {}", join(delays))),
        ("Made with", made_with.into()),
    ]
}

/// A line for each figure.
fn summary(chapters: &[Chapter]) -> String {
    let mut text = String::from(
        "<section><h2>Summary</h2><div class=\"wide\"><table class=\"says summary\"><thead><tr><th>figure</th><th>shows</th><th>same shape?</th>\
         <th>hold</th><th>do not</th><th>not measured</th></tr></thead><tbody>",
    );
    for chapter in chapters {
        let Chapter { figure, measured } = chapter;
        let counts = Counts::of(&figure::claims(chapter.rows()));
        let (class, word) = match (measured, chapter.has_shape()) {
            (Err(_), _) => ("open", "left out"),
            (_, Some(true)) => ("holds", "yes"),
            (_, Some(false)) if counts.hold > 0 => ("differs", "in part"),
            (_, Some(false)) => ("differs", "no"),
            (_, None) => ("open", "not judged"),
        };
        let _ = writeln!(
            text,
            "<tr class=\"{class}\"><td><a href=\"#{name}\">{name}</a></td><td>{}</td><td>{word}</td><td>{}</td><td>{}</td>\
             <td>{}</td></tr>",
            escaped(&figure.what),
            counts.hold,
            counts.differ,
            counts.open,
            name = figure.name,
        );
    }
    text.push_str("</tbody></table></div></section>\n");
    text
}

fn chapter(chapter: &Chapter) -> String {
    let Chapter { figure, measured } = chapter;
    let mut text = format!(
        "<section id=\"{}\"><h2>{}</h2><p class=\"hint\">{}</p>\n",
        figure.name,
        escaped(&figure.what),
        escaped(&figure.source()),
    );
    match measured {
        Err(why) => {
            let _ = write!(text, "<p>Left out: {}</p>", escaped(why));
        }
        Ok(rows) => measured_chapter(figure, rows, &mut text),
    }
    text.push_str("</section>\n");
    text
}

fn measured_chapter(figure: &Figure, rows: &[Row], text: &mut String) {
    let _ = writeln!(text, "<figure>{}</figure>", figure::svg(rows));
    let claims = figure::claims(rows);
    if !claims.is_empty() {
        text.push_str(&Verdict::table(&claims, false).open_html());
    }
    let bars = figure::bars(rows);
    if !bars.is_empty() {
        text.push_str("<h3>Our own bars</h3>");
        text.push_str(&Verdict::table(&bars, true).open_html());
    }
    if let Some(printed) = figure.printed() {
        let title = "The paper's own figures, measured by its authors on their machine";
        text.push_str(&printed.html(title));
    }
    text.push_str(&figure::table(rows).html("Every line"));
    if let Some(differs) = figure.differs() {
        let _ = write!(
            text,
            "<p class=\"hint\"><b>Not as in the paper:</b> {}.</p>",
            escaped(differs)
        );
    }
    for line in figure::left_out(rows) {
        let _ = write!(
            text,
            "<p class=\"hint\"><b>Left out:</b> {}</p>",
            escaped(&line)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::balance;
    use crate::row::Metric;
    use std::path::Path;

    /// Everything at so much of `volatile`'s throughput.
    fn rows(throughput: f64) -> Vec<Row> {
        let machine = Machine::here(Path::new("/"));
        let row = |system, rate: f64| {
            let conditions = serde_json::json!({ "writes": 0.0 });
            let mut row = Row::new("bullet-5", system, "0 %", 1, conditions, &machine);
            for (metric, value) in [
                (Metric::Rate, rate),
                (Metric::CoreRate, rate),
                (Metric::MeanNs, 1e9 / rate),
                (Metric::CoreMeanNs, 1e9 / rate),
            ] {
                row.extend(metric, [value, value]);
            }
            row
        };
        let others = ["static", "+lfr", "+opt", "+dyn", "+wrc", "phash", "hikv-ht"];
        let others = others.map(|system| row(system, 4e6 * throughput));
        [vec![row("volatile", 4e6)], others.into()].concat()
    }

    fn page(measured: Result<Vec<Row>, String>) -> String {
        let figure = Figure::find("bullet-5").unwrap();
        let page = html(&[Chapter { figure, measured }], "a <command>");
        balance::assert_balanced(&page);
        page
    }

    #[test]
    fn figures_are_summed_up() {
        let measured = page(Ok(rows(0.9)));
        assert!(measured.contains("a &lt;command&gt;"));
        assert!(measured.contains("<svg") && measured.contains("href=\"#bullet-5\""));
        assert!(!measured.contains("http://") || measured.contains("www.w3.org"));
        let none = page(Err("no <disk>".into()));
        assert!(none.contains("Left out: no &lt;disk&gt;"), "{none}");
        assert!(none.contains("Of 0 figures that could be judged, 0 have"));
    }

    #[test]
    fn one_statement_that_does_not_hold_is_one_too_many() {
        let figure = Figure::find("bullet-5").unwrap();
        let of = |rows: Vec<Row>| {
            let measured = Ok(rows);
            Chapter { figure, measured }.has_shape()
        };
        assert_eq!(of(Vec::new()), None);
        // Static assignment is said to give half, and dynamic assignment all.
        assert_eq!(of(rows(0.5)), Some(false));
        let counts = Counts::of(&figure::claims(&rows(0.5)));
        assert!(counts.hold > 0 && counts.differ > 0 && counts.open > 0);
        let mut as_said = rows(0.5);
        as_said.retain(|row| ["volatile", "static", "+lfr", "+opt"].contains(&&*row.subject));
        assert_eq!(of(as_said), Some(true));
    }
}
