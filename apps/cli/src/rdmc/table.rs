//! A schedule as a table of characters.

use super::moves::Moves;

/// The width of a line that most terminals show, in characters.
const WIDEST: usize = 160;

/// One node's transfers in one step.
#[derive(Clone, Debug, Default)]
struct Cell {
    sends: Vec<String>,
    receives: Vec<String>,
}

const NOTHING: &str = "·";

impl Cell {
    /// Its text, with the receives at `column`, so that those of several rows align.
    fn text(&self, column: usize) -> String {
        let (sends, receives) = (self.sends.join(" "), self.receives.join(" "));
        match (sends.is_empty(), receives.is_empty()) {
            (true, true) => NOTHING.to_owned(),
            (false, true) => sends,
            _ => format!("{sends:column$}{receives}"),
        }
    }
}

/// A table with time down and nodes across if that fits, else the other way round; None if neither does.
pub(super) fn table(moves: &Moves) -> Option<String> {
    [time_down(moves), time_across(moves)].into_iter().find(|table| width(table) <= WIDEST)
}

fn width(table: &str) -> usize {
    table.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// The cells of all steps, each with a cell for every node.
fn cells(moves: &Moves) -> Vec<Vec<Cell>> {
    let mut cells = vec![vec![Cell::default(); moves.nodes]; moves.steps];
    for one in &moves.list {
        cells[one.step][one.from].sends.push(format!("b{}→{}", one.block, one.to));
        cells[one.step][one.to].receives.push(format!("b{}←{}", one.block, one.from));
    }
    cells
}

fn time_down(moves: &Moves) -> String {
    let traffic = moves.traffic();
    let cells = cells(moves);
    let mut columns = vec![Column::headed("step", (0..moves.steps).map(|step| step.to_string()), ["sent", "received"])];
    for (node, (sent, received)) in traffic.into_iter().enumerate() {
        let mine = cells.iter().map(|step| &step[node]).collect::<Vec<_>>();
        columns.push(Column::of(format!("rank {node}"), &mine, vec![sent.to_string(), received.to_string()]));
    }
    lines(&columns)
}

fn time_across(moves: &Moves) -> String {
    let traffic = moves.traffic();
    let cells = cells(moves);
    let mut columns = vec![Column::headed("rank", (0..moves.nodes).map(|rank| rank.to_string()), [])];
    for (step, row) in cells.iter().enumerate() {
        columns.push(Column::of(format!("step {step}"), &row.iter().collect::<Vec<_>>(), Vec::new()));
    }
    let (sent, received): (Vec<_>, Vec<_>) = traffic.into_iter().unzip();
    columns.push(Column::headed("sent", sent.iter().map(usize::to_string), []));
    columns.push(Column::headed("received", received.iter().map(usize::to_string), []));
    lines(&columns)
}

struct Column {
    entries: Vec<String>,
    width: usize,
    right: bool,
}

impl Column {
    fn headed<const N: usize>(head: &str, entries: impl Iterator<Item = String>, foot: [&str; N]) -> Column {
        let entries = [head.to_owned()].into_iter().chain(entries).chain(foot.map(str::to_owned)).collect();
        Column::new(entries, true)
    }

    fn of(head: String, cells: &[&Cell], foot: Vec<String>) -> Column {
        let sends = cells.iter().map(|cell| cell.sends.join(" ").chars().count()).max().unwrap_or(0);
        let column = if sends == 0 { 0 } else { sends + 1 };
        Column::new([head].into_iter().chain(cells.iter().map(|cell| cell.text(column))).chain(foot).collect(), false)
    }

    fn new(entries: Vec<String>, right: bool) -> Column {
        let width = entries.iter().map(|entry| entry.chars().count()).max().unwrap_or(0);
        Column { entries, width, right }
    }
}

fn lines(columns: &[Column]) -> String {
    let rows = columns.first().map_or(0, |column| column.entries.len());
    let mut text = String::new();
    for row in 0..rows {
        let entries = columns.iter().map(|Column { entries, width, right }| {
            let entry = &entries[row];
            if *right { format!("{entry:>width$}") } else { format!("{entry:width$}") }
        });
        text.push_str(entries.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
