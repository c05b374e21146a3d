//! All nodes of a cluster, asked at once, and the differences between what they say.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use squall_fabric::{NodeId, NodeList};
use squall_membership::MAX_MEMBERS;
use squall_services::{Caller, ControlError, DialTarget};

use super::{AdminClient, AdminError, Health, HealthReport, NodeCondition, StatusReport, Target};
use crate::{Config, FabricError};

/// The nodes of a cluster, to be asked for their status all at once.
#[derive(Clone, Debug)]
pub struct Fleet {
    caller: Caller,
    /// The nodes that are always asked.
    known: Vec<DialTarget>,
    /// The other members that the last answers named.
    learned: Vec<DialTarget>,
}

/// The answers of all nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReport {
    /// The health of the cluster: the worst of its nodes that answer. It is at least degraded if a node does not
    /// answer, or if nodes contradict each other, and unreachable if none answers.
    pub health: Health,
    /// The reasons, each with the nodes that give it.
    pub reasons: Vec<String>,
    /// The nodes, in the order of their ids.
    pub nodes: Vec<FleetNode>,
}

/// A node of a cluster, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetNode {
    /// The node; None if it is known by an address alone, and does not answer.
    pub node: Option<NodeId>,
    /// The addresses at which it was asked; none on one host.
    pub addresses: Vec<String>,
    /// Its health.
    pub health: Health,
    /// The reasons for that.
    pub reasons: Vec<String>,
    /// The reason for which it does not answer, if it does not.
    pub error: Option<String>,
    /// Its report, if it answers.
    pub report: Option<StatusReport>,
}

impl Fleet {
    /// The nodes that a configuration lists: members, witnesses, and the node that it describes, with whose keys they
    /// are asked. Members that joined are asked too, once one of these names them. Fails if the keys can't be used.
    pub fn of(config: &Config) -> Result<Fleet, FabricError> {
        let listed = config.members().iter().chain(config.witnesses()).copied();
        let nodes: BTreeSet<NodeId> = listed.chain([config.id()]).collect();
        let known = nodes.into_iter().map(|node| config.contact(node)).collect();
        Ok(Fleet { caller: config.caller()?, known, learned: Vec::new() })
    }

    /// One node, and all members that it names.
    pub fn around(target: Target) -> Fleet {
        let Target { caller, contact } = target;
        Fleet { caller, known: vec![contact], learned: Vec::new() }
    }

    /// Asks all nodes, at once. Each may take `timeout` to be reached, and as long to answer.
    pub fn status(&mut self, timeout: Duration) -> FleetReport {
        let mut answers = self.ask(&self.known, timeout);
        if answers.iter().all(|(_, answer)| answer.is_err()) {
            answers.extend(self.ask(&self.learned, timeout));
        }
        let asked: BTreeSet<NodeId> = answers.iter().filter_map(|(to, answer)| name(to, answer)).collect();
        let mut others: BTreeMap<NodeId, DialTarget> = BTreeMap::new();
        for report in answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()) {
            for member in report.members.iter().filter(|member| !asked.contains(&member.node)) {
                let contact = DialTarget { node: Some(member.node), addresses: member.addresses.clone() };
                others.insert(member.node, contact);
            }
        }
        let others: Vec<DialTarget> = others.into_values().take(MAX_MEMBERS).collect();
        answers.extend(self.ask(&others, timeout));
        if answers.iter().any(|(_, answer)| answer.is_ok()) {
            self.learned = others;
        }
        FleetReport::of(answers)
    }

    /// Asks these nodes, each on a thread of its own.
    fn ask(&self, nodes: &[DialTarget], timeout: Duration) -> Vec<(DialTarget, Answer)> {
        let ask = |contact: &DialTarget| {
            let target = Target { caller: self.caller.clone(), contact: contact.clone() };
            AdminClient::connect(&target, timeout)?.status()
        };
        thread::scope(|scope| {
            let begin = |contact| thread::Builder::new().spawn_scoped(scope, move || ask(contact));
            let asking: Vec<_> = nodes.iter().map(|contact| (contact, begin(contact))).collect();
            let answers = asking.into_iter().map(|(contact, asked)| {
                let answer = match asked {
                    Ok(asked) => asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    // There is no thread: it is asked on this one.
                    Err(_) => ask(contact),
                };
                (contact.clone(), answer)
            });
            answers.collect()
        })
    }
}

pub(super) type Answer = Result<StatusReport, AdminError>;

/// The node that was asked, if it is known.
fn name(to: &DialTarget, answer: &Answer) -> Option<NodeId> {
    answer.as_ref().ok().map(|report| report.node).or(to.node)
}

impl FleetReport {
    /// Puts answers together.
    pub(super) fn of(answers: Vec<(DialTarget, Answer)>) -> FleetReport {
        // A node that was asked at two addresses counts once, with its answer if it gave one.
        let mut nodes: Vec<FleetNode> = Vec::new();
        for (to, answer) in answers {
            let node = FleetNode::new(to, answer);
            match nodes.iter_mut().find(|other| other.node.is_some() && other.node == node.node) {
                Some(other) if other.report.is_none() => *other = node,
                Some(_) => {}
                None => nodes.push(node),
            }
        }
        nodes.sort_by_key(|node| node.node);
        let mut reasons: Vec<String> = Vec::new();
        let mut by_reason: Vec<(&str, Vec<NodeId>)> = Vec::new();
        for node in nodes.iter().filter(|node| node.report.is_some()) {
            for reason in &node.reasons {
                match by_reason.iter_mut().find(|(other, _)| *other == reason.as_str()) {
                    Some((_, saying)) => saying.extend(node.node),
                    None => by_reason.push((reason, node.node.into_iter().collect())),
                }
            }
        }
        reasons.extend(by_reason.into_iter().map(|(reason, nodes)| format!("{}: {reason}", NodeList(&nodes))));
        reasons.extend(nodes.iter().filter(|node| node.report.is_none()).flat_map(|node| node.reasons.iter().cloned()));
        let reports: Vec<&StatusReport> = nodes.iter().filter_map(|node| node.report.as_ref()).collect();
        let differences = differences(&reports);
        let has = |health| nodes.iter().any(|node| node.health == health && !node.reasons.is_empty());
        let health = match () {
            () if reports.is_empty() => Health::Unreachable,
            () if has(Health::CannotGoOn) => Health::CannotGoOn,
            () if has(Health::Degraded) || has(Health::Unreachable) || !differences.is_empty() => Health::Degraded,
            () => Health::Serving,
        };
        reasons.extend(differences);
        FleetReport { health, reasons, nodes }
    }
}

impl FleetNode {
    fn new(to: DialTarget, answer: Answer) -> FleetNode {
        let (node, addresses) = (name(&to, &answer), to.addresses);
        match answer {
            Ok(report) => {
                let HealthReport { health, reasons } = report.health();
                FleetNode { node, addresses, health, reasons, error: None, report: Some(report) }
            }
            // Such a node dials all others, and can't be asked from outside: that says nothing about it.
            Err(error @ AdminError::Dial(ControlError::NoAddress { .. })) => {
                let error = Some(error.to_string());
                FleetNode { node, addresses, health: Health::Unreachable, reasons: Vec::new(), error, report: None }
            }
            Err(error) => {
                let name = node.map_or_else(|| addresses.join(", "), |node| node.to_string());
                let (reasons, error) = (vec![format!("{name} does not answer: {error}")], Some(error.to_string()));
                FleetNode { node, addresses, health: Health::Unreachable, reasons, error, report: None }
            }
        }
    }
}

/// Contradictions between the nodes, in sentences.
fn differences(reports: &[&StatusReport]) -> Vec<String> {
    let mut found = Vec::new();
    // A node that joins, or has ended, knows an old view, or none.
    let in_view = |report: &&&StatusReport| matches!(report.condition, NodeCondition::Member | NodeCondition::Wedged);
    let mut by_epoch: BTreeMap<u64, Vec<&StatusReport>> = BTreeMap::new();
    for report in reports.iter().filter(in_view) {
        by_epoch.entry(report.epoch.unwrap_or_default()).or_default().push(report);
    }
    let nodes = |reports: &[&StatusReport]| reports.iter().map(|report| report.node).collect::<Vec<_>>();
    if by_epoch.len() > 1 {
        let views = by_epoch.iter().map(|(epoch, reports)| format!("{} in epoch {epoch}", NodeList(&nodes(reports))));
        found.push(format!("nodes are in different views: {}", views.collect::<Vec<_>>().join("; ")));
    }
    for (epoch, reports) in by_epoch {
        let members = |report: &StatusReport| report.members.iter().map(|member| member.node).collect::<BTreeSet<_>>();
        if let Some(other) = reports.iter().find(|report| members(report) != members(reports[0])) {
            let (one, other) = (reports[0].node, other.node);
            found.push(format!(
                "{one} and {other} are in two groups: their views have epoch {epoch}, and other members"
            ));
        }
    }
    let leads = |report: &&&StatusReport| report.view_log.as_ref().is_some_and(|log| log.leader == Some(report.node));
    let leading: Vec<String> = reports
        .iter()
        .filter(leads)
        .filter_map(|report| Some(format!("{} in term {}", report.node, report.view_log.as_ref()?.term)))
        .collect();
    if leading.len() > 1 {
        found.push(format!("several nodes lead the view log: {}", leading.join(", ")));
    }
    found
}
