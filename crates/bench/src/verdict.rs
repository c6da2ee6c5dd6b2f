//! Whether something holds of what was measured: a bound on a value, or on the ratio of two.

use crate::show::Table;
use serde::Serialize;

/// Something that is said of what was measured, and whether it is so.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Who says it: a section of a paper, or a group of bars.
    pub source: String,
    /// What is said.
    pub says: String,
    /// What was measured, for each curve or operation that it is about.
    pub measured: Vec<Compared>,
    /// Least and most; `None` = any.
    pub bounds: (f64, Option<f64>),
    /// Whether it is so; `None` if something was not measured.
    pub holds: Option<bool>,
}

/// A value that has bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Of what it is.
    pub of: String,
    /// A ratio, a difference, or what was measured itself.
    pub value: f64,
    /// The same by the clock, where that is not the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_clock: Option<f64>,
    /// What it is made of, with its unit: `M/s` of processor time, `B`, `us`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made_of: Option<(f64, String)>,
    /// What that was divided by, and its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<(f64, String)>,
}

impl Compared {
    /// A value alone.
    #[must_use]
    pub fn new(of: &str, value: f64) -> Compared {
        Compared {
            of: of.into(),
            value,
            by_clock: None,
            made_of: None,
            against: None,
        }
    }
}

impl Verdict {
    /// Of all values that it is about; `is_whole` if none is missing.
    #[must_use]
    pub fn new(
        (source, says): (&str, &str),
        measured: Vec<Compared>,
        bounds: (f64, Option<f64>),
        is_whole: bool,
    ) -> Verdict {
        let (least, most) = bounds;
        let holds = |compared: &Compared| {
            compared.value >= least && most.is_none_or(|most| compared.value <= most)
        };
        Verdict {
            source: source.into(),
            says: says.into(),
            holds: is_whole.then(|| measured.iter().all(holds)),
            measured,
            bounds,
        }
    }

    /// All of them, said in words; what is said, and whether it is so, have names of their own.
    #[must_use]
    pub fn table(verdicts: &[Verdict], are_bars: bool) -> Table {
        let mut table = Table::new(if are_bars {
            "bar | reached? | measured | by the clock | section"
        } else {
            "paper says | same shape? | measured | by the clock | section"
        });
        for verdict in verdicts {
            let (class, word) = match verdict.holds {
                Some(true) => ("holds", "yes"),
                Some(false) => ("differs", "no"),
                None => ("open", "not measured"),
            };
            let measured = verdict.measured.iter();
            let by_clock = measured.clone().filter_map(|of| of.by_clock);
            let by_clock: Vec<String> = by_clock.map(|value| format!("{value:.2}")).collect();
            let measured: Vec<String> = measured
                .map(|of| format!("{} {:.2}", of.of, of.value))
                .collect();
            let cells = [
                verdict.says.clone(),
                word.into(),
                measured.join("; "),
                by_clock.join("; "),
                verdict.source.clone(),
            ];
            table.push_as(class, cells);
        }
        table
    }

    /// All of them as numbers, with what they are made of.
    #[must_use]
    pub fn table_of_numbers(verdicts: &[Verdict]) -> Table {
        let mut table = Table::new(
            "bar | measured | against | share | by clock | is to be |  | measured in turns with",
        );
        for verdict in verdicts {
            let Some(of) = verdict.measured.first() else {
                continue;
            };
            let (made_of, unit) = of.made_of.clone().unwrap_or((of.value, String::new()));
            let (against, name) = of.against.clone().unzip();
            let optional = |value: Option<f64>| value.map_or(String::new(), number);
            table.push([
                verdict.says.clone(),
                format!("{} {unit}", number(made_of)),
                optional(against),
                optional(against.map(|_| of.value)),
                optional(of.by_clock),
                match verdict.bounds {
                    (_, Some(0.0)) => "0".into(),
                    (_, Some(most)) => format!("< {}", number(most)),
                    (least, None) if least > 0.0 => format!("> {}", number(least)),
                    _ => String::new(),
                },
                match (verdict.holds, verdict.bounds) {
                    (None, _) => "not measured",
                    (_, (least, None)) if least <= 0.0 => "",
                    (Some(true), _) => "ok",
                    (Some(false), _) => "short",
                }
                .into(),
                name.unwrap_or_default(),
            ]);
        }
        table
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_or_not_or_was_not_measured() {
        let of = Compared {
            by_clock: Some(0.74),
            made_of: Some((6.0, "M/s".into())),
            against: Some((8.0, "get".into())),
            ..Compared::new("get", 0.75)
        };
        let verdict =
            |bounds, is_whole| Verdict::new(("get", "get"), vec![of.clone()], bounds, is_whole);
        for (bounds, is_whole, holds, says) in [
            ((0.70, None), true, Some(true), "> 0.70 | ok | get |"),
            ((0.80, None), true, Some(false), "> 0.80 | short | get |"),
            (
                (0.0, Some(0.70)),
                true,
                Some(false),
                "< 0.70 | short | get |",
            ),
            ((0.70, None), false, None, "> 0.70 | not measured | get |"),
            ((0.0, None), true, Some(true), "0.74 |  |  | get |"),
        ] {
            let verdict = verdict(bounds, is_whole);
            assert_eq!(verdict.holds, holds);
            let text = Verdict::table_of_numbers(std::slice::from_ref(&verdict)).markdown();
            assert!(text.contains("6.00 M/s | 8.00 | 0.75 | 0.74 |") && text.contains(says));
        }
        let words = Verdict::table(&[verdict((0.0, None), false)], false).markdown();
        assert!(
            words.contains("| get | not measured | get 0.75 | 0.74 | get |"),
            "{words}"
        );
    }
}
