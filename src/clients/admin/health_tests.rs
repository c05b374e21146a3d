//! The health of nodes and clusters, from reports that are made up.

use squall_fabric::NodeId;
use squall_services::{ControlError, DialTarget};

use super::{
    AdminError, CertificateReport, Health, HealthReport, KeysReport, MemberReport, NodeCondition, RowReport,
    ShardCondition, ShardReport, StallReport, StatusReport, TrafficReport, ViewLogReport, WaitReport, WaitsFor,
    fleet::{Answer, FleetReport},
};
use crate::LogStatus;

fn member(node: u32) -> MemberReport {
    MemberReport {
        node: NodeId(node),
        incarnation: 1,
        addresses: Vec::new(),
        rack: String::new(),
        transport: None,
        unshared: None,
        heartbeat_age_ms: None,
        clock_ahead_ms: None,
        suspected: false,
        wedged: false,
        leaving: false,
        short_of_room: false,
    }
}

/// The report of a node of three that all do well.
pub(super) fn report(node: u32) -> StatusReport {
    let nodes = [1, 2, 3];
    let row = |node: u32| RowReport {
        node: NodeId(node),
        sender: true,
        complete: true,
        goes: false,
        sent: 1,
        received: 10,
        delivered: 10,
        persisted: Some(3),
        lag: 0,
    };
    let shard = ShardReport {
        shard: 0,
        group: "sum".into(),
        condition: ShardCondition::Active,
        traffic: TrafficReport::default(),
        fetching: None,
        log: Some(LogStatus::default()),
        rows: nodes.map(row).to_vec(),
    };
    let view_log = ViewLogReport {
        voters: nodes.map(NodeId).to_vec(),
        silent: Vec::new(),
        learners: Vec::new(),
        leader: Some(NodeId(1)),
        term: 2,
        applied: Some(4),
        storage: None,
    };
    StatusReport {
        cluster: "bank".into(),
        node: NodeId(node),
        version: "0".into(),
        condition: NodeCondition::Member,
        waits: Vec::new(),
        up_ms: Some(1000),
        clock: None,
        room: None,
        epoch: Some(4),
        views_installed: 4,
        configured: nodes.map(NodeId).to_vec(),
        leader: Some(NodeId(1)),
        members: nodes.map(member).to_vec(),
        joined: Vec::new(),
        left: Vec::new(),
        shards: vec![shard],
        stalls: Vec::new(),
        clients: None,
        view_log: Some(view_log),
        candidates: Vec::new(),
        forced: Vec::new(),
        went_back: Vec::new(),
        keys: None,
        port: None,
    }
}

/// A change of a report that needs nothing else.
type Stop = fn(&mut StatusReport);

/// A change of a report.
type Change = Box<dyn Fn(&mut StatusReport)>;

/// The health after a change of a report in which all is well, and the only reason.
fn after(change: impl FnOnce(&mut StatusReport)) -> (Health, String) {
    let mut report = report(1);
    change(&mut report);
    let HealthReport { health, mut reasons } = report.health();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    (health, reasons.remove(0))
}

#[test]
fn a_node_without_a_fault_serves() {
    let expected = HealthReport { health: Health::Serving, reasons: Vec::new() };
    assert_eq!(report(1).health(), expected);
    let mut witness = report(1);
    witness.condition = NodeCondition::Witness;
    (witness.members, witness.shards, witness.configured) = Default::default();
    assert_eq!(witness.health(), expected);
    let mut more = report(1);
    more.members.push(member(9));
    assert_eq!(more.health(), expected, "one that joined is no fault");
}

#[test]
fn each_cause_that_stops_a_node_is_one_reason() {
    let stops: [(&str, Stop); 6] = [
        ("too few are there", |report| report.condition = NodeCondition::Stalled("too few are there".into())),
        ("it has ended: fire", |report| report.condition = NodeCondition::Ended("fire".into())),
        ("shard 0 of \"sum\" refuses work: too few members hold its state", |report| {
            report.shards[0].condition = ShardCondition::Inadequate;
        }),
        ("shard 0 of \"sum\" is suspended: no member holds its state, node 2 and node 3 held it last", |report| {
            let last_holders = vec![NodeId(2), NodeId(3)];
            report.shards[0].condition = ShardCondition::Suspended { last_holders, acknowledged: 7, all_back: false };
        }),
        ("shard 0 of \"sum\" is suspended: node 2 held its state, and none says that it has it", |report| {
            let last_holders = vec![NodeId(2)];
            report.shards[0].condition = ShardCondition::Suspended { last_holders, acknowledged: 7, all_back: true };
        }),
        ("the log of shard 0 of \"sum\" takes no more records: no space", |report| {
            report.shards[0].log = Some(LogStatus { failure: Some("no space".into()), ..LogStatus::default() });
        }),
    ];
    for (reason, change) in stops {
        assert_eq!(after(change), (Health::CannotGoOn, reason.to_owned()));
    }
}

fn keys(left_s: i64, ends_soon: bool, problem: Option<&str>) -> KeysReport {
    let certificate = CertificateReport { certificate: "a.pem".into(), until_unix_s: 1, left_s, ends_soon };
    KeysReport { owner: "node 1".into(), certificates: vec![certificate], problem: problem.map(str::to_owned) }
}

#[test]
fn each_cause_that_degrades_a_node_is_one_reason() {
    let stall = |node| StallReport {
        node: NodeId(node),
        shard: 0,
        group: "sum".into(),
        waits_for: WaitsFor::Disk,
        for_ms: 900,
    };
    let warnings: Vec<(&str, Change)> = vec![
        ("it has no view yet", Box::new(|report| report.condition = NodeCondition::Forming)),
        ("it is no member yet", Box::new(|report| report.condition = NodeCondition::Joining)),
        (
            "it was dropped again soon after it had joined, and waits before it asks again",
            Box::new(|report| report.condition = NodeCondition::Waiting { rejoins_in_ms: 5 }),
        ),
        (
            "its view changes, and it accepts nothing meanwhile",
            Box::new(|report| report.condition = NodeCondition::Wedged),
        ),
        (
            "it waits for node 2, to stop",
            Box::new(|report| {
                let waits_for = "node 2, to stop".into();
                report.waits = vec![WaitReport { waits_for, nodes: vec![NodeId(2)], for_ms: Some(77) }];
            }),
        ),
        ("wrong clock: an hour ahead", Box::new(|report| report.clock = Some("an hour ahead".into()))),
        (
            "the group has gone back: node 2 says so",
            Box::new(|report| report.went_back = vec!["node 2 says so".into()]),
        ),
        (
            "a.pem expires soon: renew it with `squall keys add --force`",
            Box::new(move |report| report.keys = Some(keys(90, true, None))),
        ),
        (
            "a.pem has expired: renew it with `squall keys add --force`",
            Box::new(move |report| report.keys = Some(keys(0, true, None))),
        ),
        (
            "its new keys are not used: it can't be read",
            Box::new(move |report| report.keys = Some(keys(9_000_000, false, Some("it can't be read")))),
        ),
        ("node 3 is suspected", Box::new(|report| report.members[2].suspected = true)),
        ("node 4 is configured as a member, and is none", Box::new(|report| report.configured.push(NodeId(4)))),
        (
            "node 3 stands still in shard 0 of \"sum\": it waits for its disk",
            Box::new(move |report| report.stalls = vec![stall(1), stall(3)]),
        ),
        (
            "the view log has no leader, so no change of the view can be decided",
            Box::new(|report| report.view_log.as_mut().expect("it has one").leader = None),
        ),
        (
            "nothing is heard of voters: node 3",
            Box::new(|report| report.view_log.as_mut().expect("it has one").silent = vec![NodeId(3)]),
        ),
        (
            "node 2 has no complete copy of shard 0 of \"sum\" yet",
            Box::new(|report| {
                report.shards[0].rows[0].complete = false;
                report.shards[0].rows[1].complete = false;
            }),
        ),
        (
            "the log of shard 0 of \"sum\" is damaged: segment 3",
            Box::new(|report| {
                let damaged = vec!["segment 3".into()];
                report.shards[0].log = Some(LogStatus { damaged, ..LogStatus::default() });
            }),
        ),
        (
            "a snapshot of shard 0 of \"sum\" is due, and the one before is still being taken",
            Box::new(|report| {
                report.shards[0].log = Some(LogStatus { snapshot_late: true, ..LogStatus::default() });
            }),
        ),
    ];
    for (reason, change) in warnings {
        assert_eq!(after(change), (Health::Degraded, reason.to_owned()));
    }
}

#[test]
fn what_stops_a_node_counts_more_than_what_degrades_it_and_comes_first() {
    let mut report = report(1);
    report.members[2].suspected = true;
    report.condition = NodeCondition::Stalled("too few are there".into());
    let expected = ["too few are there", "node 3 is suspected"].map(str::to_owned).to_vec();
    assert_eq!(report.health(), HealthReport { health: Health::CannotGoOn, reasons: expected });
}

fn answer(report: StatusReport) -> (DialTarget, Answer) {
    (DialTarget::on_host(report.node), Ok(report))
}

fn silent(node: u32) -> (DialTarget, Answer) {
    let absent = ControlError::Absent { node: NodeId(node), cluster: "bank".into() };
    (DialTarget::on_host(NodeId(node)), Err(AdminError::Dial(absent)))
}

fn fleet(answers: Vec<(DialTarget, Answer)>) -> (Health, Vec<String>) {
    let FleetReport { health, reasons, .. } = FleetReport::of(answers);
    (health, reasons)
}

#[test]
fn a_cluster_is_as_healthy_as_the_worst_of_its_nodes() {
    let all = || Vec::from([1, 2, 3].map(|node| answer(report(node))));
    assert_eq!(fleet(all()), (Health::Serving, Vec::new()));
    let mut answers = all();
    for (_, answer) in &mut answers[..2] {
        answer.as_mut().expect("it answers").members[2].suspected = true;
    }
    assert_eq!(fleet(answers), (Health::Degraded, vec!["node 1 and node 2: node 3 is suspected".to_owned()]));
    let mut answers = all();
    answers[2].1.as_mut().expect("it answers").condition = NodeCondition::Stalled("alone".into());
    assert_eq!(fleet(answers), (Health::CannotGoOn, vec!["node 3: alone".to_owned()]));
}

#[test]
fn a_node_that_does_not_answer_degrades_the_others_and_is_nothing_alone() {
    let (health, reasons) = fleet(vec![silent(3), answer(report(1)), answer(report(2))]);
    assert_eq!((health, reasons.len()), (Health::Degraded, 1));
    assert!(reasons[0].starts_with("node 3 does not answer: node 3 of cluster"), "{reasons:?}");
    assert_eq!(fleet(vec![silent(1), silent(2)]).0, Health::Unreachable);
    let unknown = (DialTarget::at("10.0.0.9:1"), Err(AdminError::Dial(ControlError::NoNode)));
    assert!(fleet(vec![unknown]).1[0].starts_with("10.0.0.9:1 does not answer"));
}

#[test]
fn a_node_without_an_address_is_listed_and_no_fault() {
    let hidden = ControlError::NoAddress { node: Some(NodeId(3)) };
    let answers = vec![answer(report(1)), (DialTarget::on_host(NodeId(3)), Err(AdminError::Dial(hidden)))];
    let report = FleetReport::of(answers);
    assert_eq!((report.health, report.reasons), (Health::Serving, Vec::new()));
    assert!(report.nodes[1].error.as_ref().is_some_and(|error| error.contains("no address")), "{:?}", report.nodes);
}

#[test]
fn a_node_that_was_asked_twice_counts_once_and_by_its_answer() {
    let report = FleetReport::of(vec![silent(1), answer(report(1)), silent(1)]);
    assert_eq!((report.health, report.nodes.len()), (Health::Serving, 1));
}

#[test]
fn nodes_that_contradict_each_other_are_named() {
    let mut late = report(3);
    late.epoch = Some(3);
    let (health, reasons) = fleet(vec![answer(report(1)), answer(report(2)), answer(late)]);
    assert_eq!(health, Health::Degraded);
    assert_eq!(reasons, ["nodes are in different views: node 3 in epoch 3; node 1 and node 2 in epoch 4"]);
    let mut other = report(2);
    other.members.pop();
    other.configured.pop();
    let (_, reasons) = fleet(vec![answer(report(1)), answer(other)]);
    assert_eq!(reasons, ["node 1 and node 2 are in two groups: their views have epoch 4, and other members"]);
    let mut leads = report(2);
    let log = leads.view_log.as_mut().expect("it has one");
    (log.leader, log.term) = (Some(NodeId(2)), 3);
    let (_, reasons) = fleet(vec![answer(report(1)), answer(leads)]);
    assert_eq!(reasons, ["several nodes lead the view log: node 1 in term 2, node 2 in term 3"]);
}

#[test]
fn a_node_that_joins_contradicts_nobody() {
    let mut joins = report(3);
    (joins.condition, joins.epoch, joins.members, joins.view_log) = (NodeCondition::Joining, None, Vec::new(), None);
    let (health, reasons) = fleet(vec![answer(report(1)), answer(report(2)), answer(joins)]);
    assert_eq!((health, reasons), (Health::Degraded, vec!["node 3: it is no member yet".to_owned()]));
}
