//! A table of what was measured, for a terminal and for pages.

use crate::show::words::escaped;

/// What is as long as this is a sentence, even if it begins with a number.
const NUMBER: usize = 28;

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
        let rows = self.rows.iter().map(|row| &row.cells);
        let lines: Vec<&Vec<String>> = std::iter::once(&self.heads).chain(rows).collect();
        let columns: Vec<(usize, bool)> = (0..columns.min(self.heads.len()))
            .map(|at| {
                let width = lines.iter().map(|cells| cells[at].chars().count()).max();
                let mut below = lines.iter().skip(1).map(|cells| &cells[at]);
                let is_number = |cell: &String| {
                    cell.len() < NUMBER && !cell.starts_with(|c: char| c.is_alphabetic())
                };
                (width.unwrap_or(0), at > 0 && below.all(is_number))
            })
            .collect();
        let mut text = String::new();
        for cells in lines {
            let cells = cells.iter().zip(&columns);
            let line: String = cells
                .map(|(cell, (width, is_number))| match is_number {
                    true => format!("  {cell:>width$}"),
                    false => format!("  {cell:<width$}"),
                })
                .collect();
            text.push_str(line.trim_end());
            text.push('\n');
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
        if self.rows.is_empty() {
            return String::new();
        }
        let cell = |tag: &str, text: &str| format!("<{tag}>{}</{tag}>", escaped(text));
        let heads: String = self.heads.iter().map(|head| cell("th", head)).collect();
        let mut rows = String::new();
        for row in &self.rows {
            let cells: String = row.cells.iter().map(|text| cell("td", text)).collect();
            rows.push_str(&format!("<tr class=\"{}\">{cells}</tr>\n", row.class));
        }
        format!(
            "<details><summary>{}</summary><div class=\"wide\"><table><thead><tr>{heads}</tr></thead><tbody>{rows}\
             </tbody></table></div></details>",
            escaped(title)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
