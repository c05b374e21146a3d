//! The health of a node, as its report shows it.

use serde::{Deserialize, Serialize};
use squall_fabric::NodeList;

use super::{KeysReport, NodeCondition, ShardCondition, ShardReport, StatusReport};
use crate::durable::room::RoomLevel;

/// The ability of a node, or of a cluster, to do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All works.
    #[display("serving")]
    Serving,
    /// Something is to be looked at, or is under way. The group may do all of its work meanwhile.
    #[display("degraded")]
    Degraded,
    /// The node, or a shard, does no work, and does not go on without help from other nodes or an operator.
    #[display("can't go on")]
    CannotGoOn,
    /// No answer, so that nothing is known.
    #[display("unreachable")]
    Unreachable,
}

/// A health, and the reasons for it in sentences without times, so that the same case reads the same again. A serving
/// node has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// The health.
    pub health: Health,
    /// The reasons; those for which it can't go on come first.
    pub reasons: Vec<String>,
}

impl StatusReport {
    /// Judges the node's health by this report.
    pub fn health(&self) -> HealthReport {
        let mut stops = self.stops();
        let warnings = self.warnings();
        let health = match (stops.is_empty(), warnings.is_empty()) {
            (true, true) => Health::Serving,
            (true, false) => Health::Degraded,
            (false, _) => Health::CannotGoOn,
        };
        stops.extend(warnings);
        HealthReport { health, reasons: stops }
    }

    /// The reasons for which the node, or one of its shards, can't go on.
    fn stops(&self) -> Vec<String> {
        let condition = match &self.condition {
            NodeCondition::Stalled(why) => Some(why.clone()),
            NodeCondition::Ended(why) => Some(format!("it has ended: {why}")),
            _ => None,
        };
        condition.into_iter().chain(self.shards.iter().flat_map(ShardReport::stops)).collect()
    }

    /// The reasons for which the node is degraded, if nothing stops it.
    fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        match &self.condition {
            NodeCondition::Forming => found.push("it has no view yet".to_owned()),
            NodeCondition::Joining => found.push("it is no member yet".to_owned()),
            NodeCondition::Waiting { .. } => {
                found.push("it was dropped again soon after it had joined, and waits before it asks again".to_owned());
            }
            NodeCondition::Wedged => found.push("its view changes, and it accepts nothing meanwhile".to_owned()),
            NodeCondition::Member | NodeCondition::Stalled(_) | NodeCondition::Ended(_) | NodeCondition::Witness => {}
        }
        found.extend(self.waits.iter().map(|wait| format!("it waits for {}", wait.waits_for)));
        found.extend(self.clock.iter().map(|clock| format!("wrong clock: {clock}")));
        found.extend(self.keys.iter().flat_map(KeysReport::warnings));
        found.extend(self.went_back.iter().map(|says| format!("the group has gone back: {says}")));
        let room = self.room.as_ref().and_then(|room| match room.level {
            RoomLevel::Ample => None,
            RoomLevel::Little => Some("its storage has little room left"),
            RoomLevel::Short => Some("its storage is short of room"),
        });
        found.extend(room.map(str::to_owned));
        let suspected = self.members.iter().filter(|member| member.suspected);
        found.extend(suspected.map(|member| format!("{} is suspected", member.node)));
        let short = self.members.iter().filter(|member| member.short_of_room && member.node != self.node);
        found.extend(short.map(|member| format!("the storage of {} is short of room", member.node)));
        if !self.members.is_empty() {
            let is_missing = |node: &&_| self.members.iter().all(|member| member.node != **node);
            let missing = self.configured.iter().filter(is_missing);
            found.extend(missing.map(|node| format!("{node} is configured as a member, and is none")));
        }
        // A stall of the node itself is one of the things for which it waits.
        found.extend(self.stalls.iter().filter(|stall| stall.node != self.node).map(|stall| {
            let (shard, group) = (stall.shard, &stall.group);
            format!("{} stands still in shard {shard} of {group:?}: it waits for its {}", stall.node, stall.waits_for)
        }));
        if let Some(log) = &self.view_log {
            if log.leader.is_none() {
                found.push("the view log has no leader, so no change of the view can be decided".to_owned());
            }
            if !log.silent.is_empty() {
                found.push(format!("nothing is heard of voters: {}", NodeList(&log.silent)));
            }
        }
        found.extend(self.shards.iter().flat_map(|shard| shard.warnings(self)));
        found
    }
}

impl KeysReport {
    fn warnings(&self) -> Vec<String> {
        let problem = self.problem.iter().map(|problem| format!("its new keys are not used: {problem}"));
        let ends = self.certificates.iter().filter(|certificate| certificate.ends_soon).map(|certificate| {
            let ends = if certificate.left_s <= 0 { "has expired" } else { "expires soon" };
            format!("{} {ends}: renew it with `squall keys add --force`", certificate.certificate)
        });
        problem.chain(ends).collect()
    }
}

impl ShardReport {
    /// The reasons for which the shard does not work.
    fn stops(&self) -> impl Iterator<Item = String> {
        let (shard, group) = (self.shard, &self.group);
        let condition = match &self.condition {
            ShardCondition::Active => None,
            ShardCondition::Inadequate => {
                Some(format!("shard {shard} of {group:?} refuses work: too few members hold its state"))
            }
            ShardCondition::Suspended { last_holders, all_back: false, .. } => {
                let holders = NodeList(last_holders);
                Some(format!(
                    "shard {shard} of {group:?} is suspended: no member holds its state, {holders} held it last"
                ))
            }
            ShardCondition::Suspended { last_holders, all_back: true, .. } => {
                let holders = NodeList(last_holders);
                Some(format!(
                    "shard {shard} of {group:?} is suspended: {holders} held its state, and none says that it has it"
                ))
            }
        };
        let failure = self.log.as_ref().and_then(|log| log.failure.as_ref());
        let failure = failure.map(|why| format!("the log of shard {shard} of {group:?} takes no more records: {why}"));
        condition.into_iter().chain(failure)
    }

    /// The reasons for which the shard is degraded, at the node of this report.
    fn warnings(&self, report: &StatusReport) -> Vec<String> {
        let name = format!("shard {} of {:?}", self.shard, self.group);
        let mut found = Vec::new();
        if self.condition == ShardCondition::Active {
            // The node itself waits for the state, and says so.
            let lacks = self.rows.iter().filter(|row| !row.complete && row.node != report.node);
            found.extend(lacks.map(|row| format!("{} has no complete copy of {name} yet", row.node)));
        }
        if let Some(log) = &self.log {
            found.extend(log.damaged.iter().map(|damage| format!("the log of {name} is damaged: {damage}")));
            if log.no_room.is_some() {
                found.push(format!("the log of {name} waits for room on its disk"));
            }
            if log.snapshot_late {
                found.push(format!("a snapshot of {name} is due, and the one before is still being taken"));
            }
        }
        found
    }
}
