//! The outcome of an experiment: a table, charts, and the findings that hold or do not.

use std::fmt::Write;

use serde_json::{Map, json};
use squall_command::plot::Chart;

/// One column: its head for people, with the unit, and its field's name for programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) head: &'static str,
    pub(super) field: &'static str,
}

/// One figure or word.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Word(String),
    Count(u64),
    /// A measurement, and the number of decimals that people see.
    Measured(f64, usize),
    /// A number of any size, which people see as 1e-6.
    Exponential(f64),
}

impl From<&str> for Value {
    fn from(word: &str) -> Value {
        Value::Word(word.to_owned())
    }
}

impl From<String> for Value {
    fn from(word: String) -> Value {
        Value::Word(word)
    }
}

macro_rules! counts {
    ($($type:ty)*) => {$(
        impl From<$type> for Value {
            fn from(count: $type) -> Value {
                Value::Count(count as u64)
            }
        }
    )*};
}

counts!(u32 u64 usize);

/// One claim of the paper, or of this project.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// A sentence, with its section or figure in the paper.
    pub(super) claim: String,
    pub(super) holds: bool,
    /// The measured figures that the verdict rests on.
    pub(super) figures: String,
}

#[derive(Clone, Debug)]
pub(super) struct ExperimentOutcome {
    pub(super) title: String,
    /// The assumptions where the paper does not say.
    pub(super) assumed: Vec<String>,
    pub(super) columns: Vec<Column>,
    /// One value for each column.
    pub(super) rows: Vec<Vec<Value>>,
    pub(super) charts: Vec<Chart>,
    pub(super) findings: Vec<Finding>,
}

/// Columns from pairs of head and field.
pub(super) fn columns<const N: usize>(names: [(&'static str, &'static str); N]) -> Vec<Column> {
    names.map(|(head, field)| Column { head, field }).into()
}

impl ExperimentOutcome {
    /// The text for people.
    pub(super) fn text(&self, experiment: &str) -> String {
        let mut text = format!("{experiment}: {}\n", self.title);
        for assumed in &self.assumed {
            let _ = writeln!(text, "  {assumed}");
        }
        text.push('\n');
        text.push_str(&self.table());
        text.push('\n');
        for Finding { claim, holds, figures } in &self.findings {
            let verdict = if *holds { "holds" } else { "DOES NOT HOLD" };
            let _ = writeln!(text, "{verdict}: {claim}: {figures}.");
        }
        text
    }

    fn table(&self) -> String {
        let written = |value: &Value| match value {
            Value::Word(word) => word.clone(),
            Value::Count(count) => count.to_string(),
            Value::Exponential(0.0) => "0".to_owned(),
            Value::Exponential(value) => format!("{value:e}"),
            Value::Measured(value, decimals) => format!("{value:.decimals$}"),
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(written).collect()).collect();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, column)| {
                rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0).max(column.head.chars().count())
            })
            .collect();
        let left = |i: usize| self.rows.first().is_some_and(|row| matches!(row[i], Value::Word(_)));
        let line = |entries: &mut dyn Iterator<Item = &str>| {
            let padded = entries.zip(&widths).enumerate().map(|(i, (entry, &width))| {
                if left(i) { format!("{entry:width$}") } else { format!("{entry:>width$}") }
            });
            format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
        };
        let mut text = line(&mut self.columns.iter().map(|column| column.head));
        for row in &rows {
            text.push_str(&line(&mut row.iter().map(String::as_str)));
        }
        text
    }

    /// The text for programs: one object per line.
    pub(super) fn json(&self, experiment: &str) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let mut object = Map::new();
            object.insert("experiment".to_owned(), json!(experiment));
            for (column, value) in self.columns.iter().zip(row) {
                let value = match value {
                    Value::Word(word) => json!(word),
                    Value::Count(count) => json!(count),
                    Value::Measured(value, _) | Value::Exponential(value) => json!(value),
                };
                object.insert(column.field.to_owned(), value);
            }
            let _ = writeln!(text, "{}", serde_json::Value::Object(object));
        }
        for Finding { claim, holds, figures } in &self.findings {
            let finding = json!({ "experiment": experiment, "claim": claim, "holds": holds, "figures": figures });
            let _ = writeln!(text, "{finding}");
        }
        text
    }
}
