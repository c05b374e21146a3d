//! The things for which an engine's node waits, for operators.

use squall_fabric::{NodeId, NodeList, Time, Wait};
use squall_membership::{Epoch, ShardId, ShardView, ViewChangeWait, WaitsFor};
use squall_view_log::ViewLogStatus;

use super::engine::Engine;
use crate::{
    capture::exchange::ReplicaStatus, clients::admin::WaitReport, fabric::NodeFabric, node::status::ViewChangeTimes,
};

impl<F: NodeFabric + Wait> Engine<F> {
    /// Reports the things for which this node waits, except a place in the group.
    pub(super) fn waits(&self, now: Time) -> Vec<WaitReport> {
        let Some(view) = self.core.view() else { return Vec::new() };
        let name = |shard| format!("{shard} of {:?}", self.group_name(shard));
        let change = self.core.membership().awaits().map(|wait| {
            let (waits_for, nodes) = in_words(&wait, view.epoch, &name, &self.monitor.status());
            let since = begin(&wait, self.core.change_under_way());
            WaitReport { waits_for, nodes, for_ms: since.map(|since| now.since(since).as_millis() as u64) }
        });
        let me = self.monitor.me().node;
        let own = self.core.stalls(now).into_iter().filter(|stall| stall.node == me).map(|stall| WaitReport {
            waits_for: format!("its {} in {}", stall.waits_for, name(stall.shard)),
            nodes: Vec::new(),
            for_ms: Some(now.since(stall.since).as_millis() as u64),
        });
        let lacks = |shard: &&ShardView| shard.rank_of(me).is_some() && !shard.is_complete(me) && !shard.is_suspended();
        let states = view.shards.iter().filter(lacks).filter_map(|shard| self.state(shard, now, &name));
        change.into_iter().chain(own).chain(states).collect()
    }

    /// The state of a shard that this node lacks; None of a 1Pipe group, which has none.
    fn state(&self, shard: &ShardView, now: Time, name: &dyn Fn(ShardId) -> String) -> Option<WaitReport> {
        let (slot, name) = (self.groups.get(&shard.shard)?, name(shard.shard));
        let fetching = slot.fetching();
        let (waits_for, nodes) = match (fetching, slot.control.replica_status()) {
            (Some(fetching), _) => {
                (format!("the state of {name}, which {} gives", fetching.source), vec![fetching.source])
            }
            (None, ReplicaStatus::Complete) => (format!("its disk, to have the state of {name}"), Vec::new()),
            (None, _) if self.returning.is_busy() => {
                (format!("its disk, to have the log of {name} cut to where the group goes on"), Vec::new())
            }
            (None, _) if shard.complete.is_empty() => (format!("the state of {name}, which no member has"), Vec::new()),
            (None, _) => (format!("the state of {name}, of {}", NodeList(&shard.complete)), shard.complete.clone()),
        };
        let in_view = || Some(self.core.last_change().installed).filter(|installed| *installed != Time::ZERO);
        let waited = slot.fetched_for().or_else(|| in_view().map(|installed| now.since(installed)));
        Some(WaitReport { waits_for, nodes, for_ms: waited.map(|waited| waited.as_millis() as u64) })
    }
}

/// The time at which a wait of a view change began, if it is known.
fn begin(wait: &ViewChangeWait, times: ViewChangeTimes) -> Option<Time> {
    let since = match wait {
        ViewChangeWait::OwnShards | ViewChangeWait::Wedge(_) => times.suspected,
        ViewChangeWait::Decision(_) => times.wedged,
        ViewChangeWait::Leases
        | ViewChangeWait::Delivery(_)
        | ViewChangeWait::HandOver
        | ViewChangeWait::Connections(_) => times.decided,
    };
    Some(since).filter(|since| *since != Time::ZERO)
}

/// A wait in words, and the nodes on which it depends.
fn in_words(
    wait: &ViewChangeWait,
    epoch: Epoch,
    name: &dyn Fn(ShardId) -> String,
    log: &ViewLogStatus,
) -> (String, Vec<NodeId>) {
    match wait {
        ViewChangeWait::OwnShards => (format!("its own shards, which stop for the end of {epoch}"), Vec::new()),
        ViewChangeWait::Wedge(nodes) => (format!("{}, to stop for the end of {epoch}", NodeList(nodes)), nodes.clone()),
        ViewChangeWait::Decision(leader) => decision(*leader, epoch, log),
        ViewChangeWait::Leases => {
            (format!("the end of the time for which dropped members may still read in {epoch}"), Vec::new())
        }
        ViewChangeWait::Delivery(shards) => {
            let kept = |(shard, waits): &(ShardId, Option<WaitsFor>)| {
                let by = waits.map_or(String::new(), |waits| format!(" (its {waits})"));
                format!("{}{by}", name(*shard))
            };
            let shards: Vec<String> = shards.iter().map(kept).collect();
            (format!("the last messages of {epoch} in {}", shards.join(", ")), Vec::new())
        }
        ViewChangeWait::HandOver => (format!("its applications and logs to let go of {epoch}"), Vec::new()),
        ViewChangeWait::Connections(nodes) if nodes.is_empty() => {
            (format!("the rest of the connections of {epoch}"), Vec::new())
        }
        ViewChangeWait::Connections(nodes) => {
            (format!("the connections of {epoch}: there is none with {}", NodeList(nodes)), nodes.clone())
        }
    }
}

/// A decision of the view log, and the voters that do not answer.
fn decision(leader: Option<NodeId>, epoch: Epoch, log: &ViewLogStatus) -> (String, Vec<NodeId>) {
    let proposes = leader.map_or_else(String::new, |leader| format!(", which {leader} proposes"));
    let leads = match log.leader {
        Some(leads) => format!("{leads} leads the view log"),
        None => "the view log has no leader".into(),
    };
    let (voters, silent) = (log.voters.len(), log.silent.as_slice());
    let hears = match silent {
        [] => String::new(),
        silent => {
            format!("; {} of {voters} voters must agree, and nothing is heard of {}", voters / 2 + 1, NodeList(silent))
        }
    };
    (format!("the decision on what follows {epoch}{proposes}; {leads}{hears}"), silent.to_vec())
}

#[cfg(test)]
mod tests {
    use squall_membership::VoterId;

    use super::*;

    fn said(wait: &ViewChangeWait, log: &ViewLogStatus) -> (String, Vec<NodeId>) {
        in_words(wait, Epoch(4), &|shard| format!("{shard} of \"sum\""), log)
    }

    fn nodes(ids: &[u32]) -> Vec<NodeId> {
        ids.iter().map(|&id| NodeId(id)).collect()
    }

    #[test]
    fn each_wait_is_said_with_its_nodes() {
        let log = ViewLogStatus::default();
        let wedge = said(&ViewChangeWait::Wedge(nodes(&[2, 3])), &log);
        assert_eq!(wedge, ("node 2 and node 3, to stop for the end of epoch 4".into(), nodes(&[2, 3])));
        let connections = said(&ViewChangeWait::Connections(nodes(&[5])), &log);
        assert_eq!(connections, ("the connections of epoch 4: there is none with node 5".into(), nodes(&[5])));
        let delivery = ViewChangeWait::Delivery(vec![(ShardId(0), Some(WaitsFor::Disk)), (ShardId(1), None)]);
        let expected = "the last messages of epoch 4 in shard 0 of \"sum\" (its disk), shard 1 of \"sum\"";
        assert_eq!(said(&delivery, &log).0, expected);
    }

    #[test]
    fn a_decision_names_the_voters_that_do_not_answer() {
        let voters = [1, 2, 3].map(|id| (NodeId(id), VoterId(u64::from(id)))).to_vec();
        let log = ViewLogStatus { voters, silent: nodes(&[2, 3]), ..ViewLogStatus::default() };
        let (words, silent) = said(&ViewChangeWait::Decision(Some(NodeId(1))), &log);
        assert_eq!(
            words,
            "the decision on what follows epoch 4, which node 1 proposes; the view log has no leader; 2 of 3 voters must \
             agree, and nothing is heard of node 2 and node 3"
        );
        assert_eq!(silent, nodes(&[2, 3]));
    }

    #[test]
    fn a_wait_begins_with_the_step_before_it() {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let times = ViewChangeTimes { suspected: at(1), wedged: at(2), decided: Time::ZERO, ..Default::default() };
        assert_eq!(begin(&ViewChangeWait::Wedge(Vec::new()), times), Some(at(1)));
        assert_eq!(begin(&ViewChangeWait::Decision(None), times), Some(at(2)));
        assert_eq!(begin(&ViewChangeWait::HandOver, times), None, "that step has not been");
    }
}
