//! The status of all nodes as a page of text: a line for each, and a line for each shard.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
};

use squall::admin::{FleetNode, FleetReport, NodeCondition, ShardCondition, ShardReport, StatusReport};
use squall_units::show_about_size;

use super::{
    layout::layout,
    table::{health, table, time},
};

/// The page.
pub(super) fn of(fleet: &FleetReport) -> String {
    let mut page = String::new();
    write(&mut page, fleet).expect("a string takes all");
    page
}

fn write(page: &mut String, fleet: &FleetReport) -> fmt::Result {
    health(page, fleet.health, &fleet.reasons)?;
    let reports = || fleet.nodes.iter().filter_map(|node| node.report.as_ref());
    let (asked, answer) = (fleet.nodes.len(), reports().count());
    if let Some(report) = reports().next() {
        writeln!(page, "cluster {:?}: {answer} of {asked} nodes answer", report.cluster)?;
    }
    writeln!(page)?;
    let head = ["NODE", "HEALTH", "EPOCH", "CONDITION", "UP", "VIEWS", "CLIENTS", "CALLS/S"];
    table(page, &head, &fleet.nodes.iter().map(node).collect::<Vec<_>>())?;
    layout(page, &reports().collect::<Vec<_>>())?;
    let shards = shards(reports());
    if !shards.is_empty() {
        writeln!(page)?;
        let head = ["GROUP", "SHARD", "CONDITION", "COPIES", "DELIVERED/S", "BYTES/S", "SUBMITTED/S", "READS/S", "LAG"];
        table(page, &head, &shards)?;
    }
    Ok(())
}

fn node(node: &FleetNode) -> [String; 8] {
    let name = node.node.map_or_else(|| node.addresses.join(", "), |node| node.0.to_string());
    let Some(report) = &node.report else {
        let empty = String::new;
        let condition = if node.reasons.is_empty() { "can't be asked: it has no address" } else { "does not answer" };
        return [name, node.health.to_string(), empty(), condition.into(), empty(), empty(), empty(), empty()];
    };
    let clients = |count: fn(&squall::admin::ClientsReport) -> u64| {
        report.clients.as_ref().map_or(String::new(), |clients| count(clients).to_string())
    };
    [
        name,
        node.health.to_string(),
        report.epoch.map_or(String::new(), |epoch| epoch.to_string()),
        condition(report),
        report.up_ms.map_or(String::new(), time),
        report.views_installed.to_string(),
        clients(|clients| clients.connected),
        clients(|clients| clients.calls_per_second),
    ]
}

fn condition(report: &StatusReport) -> String {
    let condition = match &report.condition {
        NodeCondition::Forming => "forms",
        NodeCondition::Joining => "joins",
        NodeCondition::Waiting { .. } => "waits, and joins then",
        NodeCondition::Member if report.leader == Some(report.node) => "member, leads",
        NodeCondition::Member => "member",
        NodeCondition::Wedged => "changes its view",
        NodeCondition::Stalled(_) => "can't go on",
        NodeCondition::Ended(_) => "has ended",
        NodeCondition::Witness => "witness",
    };
    condition.to_owned()
}

/// A shard, as its members say. The node with the latest view says in which condition it is.
#[derive(Default)]
struct ShardSummary<'a> {
    latest: Option<(u64, &'a ShardReport)>,
    /// The most that a member delivers: all deliver the same.
    delivered_per_second: u64,
    bytes_per_second: u64,
    submitted_per_second: u64,
    reads_per_second: u64,
    lag: u64,
}

impl<'a> ShardSummary<'a> {
    fn add(&mut self, epoch: u64, shard: &'a ShardReport) {
        if self.latest.is_none_or(|(latest, _)| latest < epoch) {
            self.latest = Some((epoch, shard));
        }
        let traffic = &shard.traffic;
        self.delivered_per_second = self.delivered_per_second.max(traffic.delivered_per_second);
        self.bytes_per_second = self.bytes_per_second.max(traffic.delivered_bytes_per_second);
        self.submitted_per_second += traffic.submitted_per_second;
        self.reads_per_second += traffic.reads_per_second;
        self.lag = shard.rows.iter().map(|row| row.lag).max().unwrap_or(0).max(self.lag);
    }

    fn row(&self, group: &str, number: u32) -> [String; 9] {
        let (condition, copies) = match self.latest {
            None => ("unknown", String::new()),
            Some((_, shard)) => {
                let condition = match shard.condition {
                    ShardCondition::Active => "active",
                    ShardCondition::Inadequate => "refuses work",
                    ShardCondition::Suspended { .. } => "suspended",
                };
                let complete = shard.rows.iter().filter(|row| row.complete).count();
                (condition, format!("{complete} of {}", shard.rows.len()))
            }
        };
        [
            group.to_owned(),
            number.to_string(),
            condition.to_owned(),
            copies,
            self.delivered_per_second.to_string(),
            show_about_size(self.bytes_per_second),
            self.submitted_per_second.to_string(),
            self.reads_per_second.to_string(),
            self.lag.to_string(),
        ]
    }
}

fn shards<'a>(reports: impl Iterator<Item = &'a StatusReport>) -> Vec<[String; 9]> {
    let mut shards: BTreeMap<(&str, u32), ShardSummary<'_>> = BTreeMap::new();
    for report in reports {
        for shard in &report.shards {
            let summary = shards.entry((&shard.group, shard.shard)).or_default();
            summary.add(report.epoch.unwrap_or_default(), shard);
        }
    }
    shards.iter().map(|((group, shard), summary)| summary.row(group, *shard)).collect()
}

#[cfg(test)]
mod tests {
    use squall::{NodeId, admin::Health};

    use super::{super::text::tests::report, *};

    fn answered(node: u32, epoch: u64) -> FleetNode {
        let mut report = report();
        (report.node, report.epoch) = (NodeId(node), Some(epoch));
        let node = Some(NodeId(node));
        FleetNode {
            node,
            addresses: Vec::new(),
            health: Health::Serving,
            reasons: Vec::new(),
            error: None,
            report: Some(report),
        }
    }

    #[test]
    fn a_cluster_is_a_line_for_each_node_and_each_shard() {
        let reasons = vec!["node 3 does not answer: it is off".to_owned()];
        let silent = FleetNode {
            node: Some(NodeId(3)),
            addresses: Vec::new(),
            health: Health::Unreachable,
            reasons: reasons.clone(),
            error: Some("it is off".into()),
            report: None,
        };
        let mut late = answered(2, 3);
        late.report.as_mut().expect("it has one").shards[0].condition = ShardCondition::Active;
        let fleet = FleetReport { health: Health::Degraded, reasons, nodes: vec![answered(1, 4), late, silent] };
        let expected = "\
health: degraded: node 3 does not answer: it is off
cluster \"bank\": 2 of 3 nodes answer

NODE  HEALTH       EPOCH  CONDITION        UP   VIEWS  CLIENTS  CALLS/S
   1  serving          4  member, leads    90s      2        3       25
   2  serving          3  member           90s      2        3       25
   3  unreachable         does not answer

GROUP     SHARD  1  3
accounts      0  ■  ◧
■ holds the state, ◧ gets it, □ holds it until others do, · is no member

GROUP     SHARD  CONDITION     COPIES  DELIVERED/S  BYTES/S  SUBMITTED/S  READS/S  LAG
accounts      0  refuses work  1 of 2          120  12 KiB            80       20    7
";
        assert_eq!(of(&fleet), expected);
    }
}
