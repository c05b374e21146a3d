//! The word of members that run about the node that is checked.

use std::{thread, time::Duration};

use squall::{
    Carrier, Config, Incarnation, NodeId,
    admin::{AdminClient, StatusReport, Target},
};

/// The time that a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The word of a member that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberWord {
    pub(super) member: NodeId,
    /// The life of the checked node that is a member of its view, or asks to join.
    pub(super) life: Option<Incarnation>,
    /// Sentences about nodes that know more than its group.
    pub(super) went_back: Vec<String>,
}

/// Asks all other members of a configuration. Those that don't answer are left out.
pub(super) fn ask(config: &Config) -> Vec<MemberWord> {
    let others = config.members().iter().copied().filter(|&member| member != config.id());
    let asked: Vec<_> = others
        .map(|member| {
            let targets = targets(config, member);
            thread::spawn(move || targets.iter().find_map(status))
        })
        .collect();
    let reports = asked.into_iter().filter_map(|asked| asked.join().ok().flatten());
    reports.map(|report| of(report, config.id())).collect()
}

/// The ways to reach a member.
fn targets(config: &Config, member: NodeId) -> Vec<Target> {
    match config.carrier() {
        Carrier::Shm => vec![Target::on_host(config.cluster(), member.0)],
        // Keys that can't be used are named elsewhere.
        _ => config.addresses(member).iter().filter_map(|at| Target::of_config_at(config, at).ok()).collect(),
    }
}

fn status(target: &Target) -> Option<StatusReport> {
    AdminClient::connect(target, PATIENCE).ok()?.status().ok()
}

fn of(report: StatusReport, node: NodeId) -> MemberWord {
    let members = report.members.iter().map(|member| (member.node, member.incarnation));
    let candidates = report.candidates.iter().map(|candidate| (candidate.node, candidate.incarnation));
    let life = members.chain(candidates).filter(|(other, _)| *other == node).map(|(_, life)| Incarnation(life)).max();
    MemberWord { member: report.node, life, went_back: report.went_back }
}
