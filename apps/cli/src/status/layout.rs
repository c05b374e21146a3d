//! The layout of the shards as a table: a line for each shard, and a column for each member.

use std::fmt::{self, Write};

use squall::{
    Fetching, NodeId,
    admin::{RowReport, ShardReport, StatusReport},
};

use super::table::table;

const HOLDS: &str = "■";
const GETS: &str = "◧";
const GOES: &str = "□";
const NONE: &str = "·";

/// Draws which members hold which shards in the latest view, with how much of its state has come to a member, as far as
/// the reports of the members say. Draws nothing where all members hold all shards.
pub(super) fn layout(page: &mut String, reports: &[&StatusReport]) -> fmt::Result {
    // A witness knows no shards.
    let members = reports.iter().rev().filter(|report| !report.members.is_empty());
    let Some(latest) = members.max_by_key(|report| report.epoch) else { return Ok(()) };
    let nodes: Vec<NodeId> = latest.members.iter().map(|member| member.node).collect();
    let mark = |shard: &ShardReport, node: NodeId| match shard.rows.iter().find(|row| row.node == node) {
        None => NONE.to_owned(),
        Some(RowReport { complete: true, goes: false, .. }) => HOLDS.to_owned(),
        Some(RowReport { complete: true, goes: true, .. }) => GOES.to_owned(),
        Some(_) => {
            let of_node = reports.iter().find(|report| report.node == node && report.epoch == latest.epoch);
            let progress = of_node.and_then(|report| percent(report, shard.shard));
            progress.map_or(GETS.to_owned(), |percent| format!("{GETS} {percent}%"))
        }
    };
    let row = |shard: &ShardReport| {
        let marks = nodes.iter().map(|&node| mark(shard, node));
        [shard.group.clone(), shard.shard.to_string()].into_iter().chain(marks).collect()
    };
    let rows: Vec<Vec<String>> = latest.shards.iter().map(row).collect();
    if rows.iter().all(|row| row[2..].iter().all(|mark| mark == HOLDS)) {
        return Ok(());
    }
    let ids: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    let head: Vec<&str> = ["GROUP", "SHARD"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    writeln!(page)?;
    table(page, &head, &rows)?;
    writeln!(page, "{HOLDS} holds the state, {GETS} gets it, {GOES} holds it until others do, {NONE} is no member")
}

/// The part of a shard's state that has come to the node that reports, in percent.
fn percent(report: &StatusReport, shard: u32) -> Option<u64> {
    let Fetching { received, bytes, .. } = report.shards.iter().find(|other| other.shard == shard)?.fetching?;
    // The size is an estimate.
    bytes.filter(|&bytes| bytes > 0).map(|bytes| (received.saturating_mul(100) / bytes).min(99))
}

#[cfg(test)]
mod tests {
    use super::{super::text::tests::report, *};

    /// A report of a shard with rows of these nodes: each complete or not, and going or not.
    fn with_rows(rows: &[(u32, bool, bool)]) -> StatusReport {
        let mut report = report();
        let row = |&(node, complete, goes)| RowReport {
            node: NodeId(node),
            complete,
            goes,
            ..report.shards[0].rows[0].clone()
        };
        report.shards[0].rows = rows.iter().map(row).collect();
        report
    }

    fn drawn(reports: &[&StatusReport]) -> Option<String> {
        let mut page = String::new();
        layout(&mut page, reports).unwrap();
        page.lines().find(|line| line.starts_with("accounts")).map(str::to_owned)
    }

    #[test]
    fn each_member_has_a_mark_and_one_that_gets_a_state_says_how_much_has_come() {
        let here = with_rows(&[(1, true, true), (3, false, false)]);
        assert_eq!(drawn(&[&here]).as_deref(), Some("accounts      0  □  ◧"));
        let there = StatusReport { node: NodeId(3), ..here.clone() };
        assert_eq!(drawn(&[&here, &there]).as_deref(), Some("accounts      0  □  ◧ 18%"));
        let late = StatusReport { epoch: Some(3), ..there };
        assert_eq!(drawn(&[&late, &here]).as_deref(), Some("accounts      0  □  ◧"), "it is of an earlier view");
        assert_eq!(drawn(&[&with_rows(&[(3, true, false)])]).as_deref(), Some("accounts      0  ·  ■"));
        assert_eq!(drawn(&[&with_rows(&[(1, true, false), (3, true, false)])]), None, "all hold all");
        assert_eq!(drawn(&[]), None);
    }
}
