//! The parts that all pages of a status share.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use squall::{NodeId, admin::Health};
use squall_units::{show_about_size, show_about_time};

/// Writes the health, and each reason on a line.
pub(super) fn health(page: &mut String, health: Health, reasons: &[String]) -> fmt::Result {
    match reasons {
        [] => writeln!(page, "health: {health}"),
        [first, others @ ..] => {
            writeln!(page, "health: {health}: {first}")?;
            others.iter().try_for_each(|reason| writeln!(page, "  also: {reason}"))
        }
    }
}

/// Writes a table. Columns are as wide as their contents, two blanks apart; an empty column is left out. A column of
/// numbers is aligned at its end.
pub(super) fn table(page: &mut String, head: &[&str], rows: &[impl AsRef<[String]>]) -> fmt::Result {
    let width = |column: usize| {
        let widest = rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
        if widest == 0 { 0 } else { widest.max(head[column].len()) }
    };
    let is_number = |cell: &str| cell.chars().all(|char| char.is_ascii_digit());
    let numbers: Vec<bool> =
        (0..head.len()).map(|column| rows.iter().all(|row| is_number(&row.as_ref()[column]))).collect();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut line = |cells: &[&str]| {
        let shown = cells.iter().zip(&widths).zip(&numbers).filter(|((_, width), _)| **width > 0);
        let text: Vec<String> = shown
            .map(
                |((cell, &width), &is_number)| {
                    if is_number { format!("{cell:>width$}") } else { format!("{cell:width$}") }
                },
            )
            .collect();
        writeln!(page, "{}", text.join("  ").trim_end())
    };
    line(head)?;
    rows.iter().try_for_each(|row| line(&row.as_ref().iter().map(String::as_str).collect::<Vec<_>>()))
}

/// The ids of nodes, in a list.
pub(super) fn ids(nodes: &[NodeId]) -> String {
    if nodes.is_empty() {
        return "none".into();
    }
    nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ")
}

/// A time in milliseconds, for a reader.
pub(super) fn time(ms: u64) -> String {
    show_about_time(Duration::from_millis(ms))
}

/// A total with its rate per second, and the bytes of both.
pub(super) fn traffic(total: u64, bytes: u64, per_second: u64, bytes_per_second: u64) -> String {
    let (bytes, bytes_per_second) = (show_about_size(bytes), show_about_size(bytes_per_second));
    format!("{per_second}/s, {bytes_per_second}/s (in total {total}, {bytes})")
}
