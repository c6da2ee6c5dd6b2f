//! A table of what was measured, for a terminal and for pages.

use crate::show::words::{self, escaped};

/// What is as long as this is a sentence, even if it begins with a number.
const NUMBER: usize = 28;
/// Sentences get lines of so many letters at least.
const SENTENCE: usize = 24;
const GAP: &str = "  ";

/// Cells below heads. What matters most comes first: a terminal may have room for some columns only.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    /// Its class in a style sheet; empty = none.
    class: &'static str,
    cells: Vec<String>,
}

/// How a column stands in a text.
struct Column {
    at: usize,
    width: usize,
    is_number: bool,
    is_told: bool,
}

impl Table {
    /// Without rows; the heads are in one text, as in Markdown: `name | a second`.
    #[must_use]
    pub fn new(heads: &str) -> Table {
        Table {
            heads: heads.split(" | ").map(str::to_owned).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row of as many cells as there are heads.
    pub fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.push_as("", cells);
    }

    /// The same, with a class in a style sheet.
    pub(crate) fn push_as<const N: usize>(&mut self, class: &'static str, cells: [String; N]) {
        self.rows.push(Row {
            class,
            cells: cells.into(),
        });
        self.check();
    }

    /// Adds a row, where the heads are not known here.
    pub(crate) fn push_all(&mut self, cells: Vec<String>) {
        self.rows.push(Row { class: "", cells });
        self.check();
    }

    fn check(&self) {
        let is_whole = |row: &Row| row.cells.len() == self.heads.len();
        debug_assert!(
            self.rows.last().is_none_or(is_whole),
            "{:?}",
            self.rows.last()
        );
    }

    /// The first so many columns, as wide as what is in them; numbers end where they end.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let mut columns = self.columns(columns);
        columns.iter_mut().for_each(|column| column.is_told = true);
        self.text_of(&columns)
    }

    /// As many columns as lines of so many letters hold: sentences go on in the lines below, columns that
    /// are empty are left out, and so are the last ones for which there is no room.
    #[must_use]
    pub fn text_within(&self, letters: usize) -> String {
        let mut columns = self.columns(self.heads.len());
        let width = |columns: &[Column]| {
            let told = columns.iter().filter(|column| column.is_told);
            told.map(|column| column.width + GAP.len()).sum::<usize>()
        };
        while width(&columns) > letters {
            let told = columns.iter_mut().filter(|column| column.is_told);
            // What is said first is the longest.
            let share = |column: &Column| column.width * if column.at == 0 { 2 } else { 3 };
            let wide = told.filter(|column| column.width > SENTENCE);
            if let Some(widest) = wide.max_by_key(|column| share(column)) {
                widest.width -= 1;
            } else if let Some(last) = columns.iter_mut().rfind(|column| column.is_told) {
                last.is_told = false;
            }
        }
        self.text_of(&columns)
    }

    /// Takes columns away that say the same in all of several rows, and returns what they say.
    pub fn take_common(&mut self) -> String {
        let mut said = Vec::new();
        for at in (1..self.heads.len()).rev() {
            let mut cells = self.rows.iter().map(|row| &row.cells[at]);
            let first = cells.next().cloned().unwrap_or_default();
            if self.rows.len() > 1 && cells.all(|cell| *cell == first) {
                let head = self.heads.remove(at);
                self.rows
                    .iter_mut()
                    .for_each(|row| drop(row.cells.remove(at)));
                if !["", "-"].contains(&&*first) {
                    said.insert(0, format!("{head} {first}"));
                }
            }
        }
        said.join(", ")
    }

    /// The first so many columns; those in which there is something are told.
    fn columns(&self, count: usize) -> Vec<Column> {
        let lengths = |at: usize| {
            self.rows
                .iter()
                .map(move |row| row.cells[at].chars().count())
        };
        let is_number =
            |cell: &String| cell.len() < NUMBER && !cell.starts_with(|c: char| c.is_alphabetic());
        (0..count.min(self.heads.len()))
            .map(|at| Column {
                at,
                width: lengths(at)
                    .chain([self.heads[at].chars().count()])
                    .max()
                    .unwrap_or(0),
                is_number: at > 0 && self.rows.iter().all(|row| is_number(&row.cells[at])),
                is_told: self.rows.is_empty() || lengths(at).any(|length| length > 0),
            })
            .collect()
    }

    fn text_of(&self, columns: &[Column]) -> String {
        let rows = self.rows.iter().map(|row| &row.cells);
        let mut text = String::new();
        for cells in std::iter::once(&self.heads).chain(rows) {
            let told = columns.iter().filter(|column| column.is_told);
            let told: Vec<(&Column, Vec<String>)> = told
                .map(|column| (column, words::lines(&cells[column.at], column.width, GAP)))
                .collect();
            let lines = told.iter().map(|(_, lines)| lines.len()).max();
            for nth in 0..lines.unwrap_or(0) {
                let mut line = String::new();
                for (column, lines) in &told {
                    let (cell, width) = (lines.get(nth).map_or("", |cell| cell), column.width);
                    line.push_str(GAP);
                    line.push_str(&match column.is_number {
                        true => format!("{cell:>width$}"),
                        false => format!("{cell:<width$}"),
                    });
                }
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        text
    }

    /// All of it in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rows = self.rows.iter().map(|row| line(&row.cells));
        let rule = line(&vec!["---".into(); self.heads.len()]);
        [line(&self.heads), rule].into_iter().chain(rows).collect()
    }

    /// All of it as a part of a page that opens when it is asked for; nothing without rows.
    pub(crate) fn html(&self, title: &str) -> String {
        match self.rows.is_empty() {
            true => String::new(),
            false => format!(
                "<details><summary>{}</summary>{}</details>",
                escaped(title),
                self.html_of_class("")
            ),
        }
    }

    /// All of it as a part of a page; sentences may take several lines.
    pub(crate) fn open_html(&self) -> String {
        self.html_of_class("says")
    }

    fn html_of_class(&self, class: &str) -> String {
        let cell = |tag: &str, text: &str| format!("<{tag}>{}</{tag}>", escaped(text));
        let heads: String = self.heads.iter().map(|head| cell("th", head)).collect();
        let mut rows = String::new();
        for row in &self.rows {
            let cells: String = row.cells.iter().map(|text| cell("td", text)).collect();
            rows.push_str(&format!("<tr class=\"{}\">{cells}</tr>\n", row.class));
        }
        format!(
            "<div class=\"wide\"><table class=\"{class}\"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>\
             </div>"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_go_on_where_lines_are_short() {
        let mut table = Table::new("paper says | so? | measured | by the clock | section");
        let says = "without checkpoints a cached system has a shorter tail than with them";
        let cells = |says: &str| {
            [
                says.into(),
                "yes".into(),
                "1.50".into(),
                String::new(),
                "5".into(),
            ]
        };
        table.push(cells(says));
        table.push(cells("short"));
        assert_eq!(
            table.text_within(50),
            "  paper says                so?  measured  section\n  \
             without checkpoints a     yes      1.50        5\n    \
             cached system has a\n    \
             shorter tail than with\n    \
             them\n  \
             short                     yes      1.50        5\n"
        );
        let wide = table.text_within(200);
        assert_eq!(wide.lines().count(), 3, "{wide}");
        assert!(!wide.contains("clock") && wide.contains(says), "{wide}");
        assert_eq!(table.take_common(), "so? yes, measured 1.50, section 5");
        assert_eq!(table.text(9).lines().next(), Some("  paper says"));
    }

    #[test]
    fn a_table_is_the_same_wherever_it_stands() {
        let mut table = Table::new("name | a second | what");
        table.push(["one".into(), "1.5".into(), "a < b".into()]);
        table.push_as("own", ["another".into(), "12.5".into(), String::new()]);
        assert_eq!(
            table.text(3),
            "  name     a second  what\n  one           1.5  a < b\n  another      12.5\n"
        );
        assert!(table.text(1).ends_with("  one\n  another\n"));
        assert_eq!(
            table.markdown(),
            "| name | a second | what |\n| --- | --- | --- |\n| one | 1.5 | a < b |\n| another | 12.5 |  |\n"
        );
        let page = table.html("rows");
        assert!(page.contains("<td>a &lt; b</td>") && page.contains("<tr class=\"own\">"));
        assert_eq!(Table::new("name").html("rows"), "");
    }
}
