//! `squall status` at clusters that serve, that lose members, that form and that are joined: its exit codes, its words,
//! and its JSON, which the schema of the book describes.

use std::{
    process::{Command, Output},
    thread,
    time::Duration,
};

use serde_json::{Map, Value};
use squall::{
    AsideStatus, Config, Fetching, LogStatus, Node, NodeId, RoomLevel, RoomStatus,
    admin::{
        CandidateReport, CertificateReport, ClientsReport, DeniedReport, FleetNode, FleetReport, Health, KeysReport,
        MemberReport, NodeCondition, PortReport, RefusedReport, RowReport, ShardCondition, ShardReport, StallReport,
        StatusReport, TrafficReport, ViewLogReport, WaitReport, WaitsFor,
    },
};

use crate::{
    process::{self, Cluster, PATIENCE, until},
    schema::Schema,
    sum::Sum,
};

const SERVES: i32 = 0;
const UNREACHABLE: i32 = 1;
const DEGRADED: i32 = 4;
const CANNOT_GO_ON: i32 = 5;

fn schema() -> Schema {
    Schema::parse(include_str!("../../docs/src/operate/status.schema.json"))
}

/// The exit code of `squall status` with these arguments, and what it prints.
fn status(arguments: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    let output: Output = command.arg("status").args(arguments.split_whitespace()).output().expect("it can be started");
    assert!(output.stderr.is_empty() || output.stdout.is_empty(), "a finding is printed once: {output:?}");
    let said = process::said(&output);
    (output.status.code().unwrap_or_else(|| panic!("it was killed: {said}")), said)
}

fn json(arguments: &str) -> (i32, Value) {
    let (code, said) = status(&format!("{arguments} --json"));
    (code, serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")))
}

/// Waits for a page with this exit code of which `so` is true.
fn wait_page(arguments: &str, code: i32, so: impl Fn(&str) -> bool) -> String {
    let mut last = (0, String::new());
    until(&format!("status {arguments} ends with {code}"), || {
        last = status(arguments);
        last.0 == code && so(&last.1)
    });
    last.1
}

fn reasons(object: &Value) -> Vec<&str> {
    object["reasons"].as_array().expect("there are some").iter().filter_map(Value::as_str).collect()
}

#[test]
fn the_exit_code_follows_the_health_of_one_node_and_of_all() {
    let cluster = Cluster::new("health", "shm", 3);
    let (one, all) =
        (format!("--cluster {} --node 1", cluster.name), format!("--all --cluster {} --node 1", cluster.name));
    assert_eq!(status(&one).0, UNREACHABLE);
    let (code, fleet) = json(&all);
    assert_eq!((code, &fleet["health"]), (UNREACHABLE, &"unreachable".into()));
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(5), Ok(5));
    assert!(wait_page(&one, SERVES, |_| true).starts_with("health: serving\n"));
    let page = wait_page(&all, SERVES, |page| page.contains("3 of 3 nodes answer"));
    assert!(page.starts_with("health: serving\n") && page.contains("active     3 of 3"), "{page}");

    nodes.pop().expect("three").kill();
    let missing = "node 3 is configured as a member, and is none";
    // Until the view without it is connected, the node waits for that, too.
    let first = format!("health: degraded: {missing}\n");
    wait_page(&one, DEGRADED, |page| page.starts_with(&first));
    // The view without it no longer names it, and nothing else does.
    let both = format!("health: degraded: node 1 and node 2: {missing}\n");
    wait_page(&all, DEGRADED, |page| page.starts_with(&both) && page.contains("2 of 2 nodes answer"));
    let (code, fleet) = json(&all);
    assert_eq!((code, &fleet["health"]), (DEGRADED, &"degraded".into()));

    nodes.push(cluster.launch(3));
    nodes[2].ready();
    wait_page(&all, SERVES, |page| page.contains("3 of 3 nodes answer"));
    let votes = |report: &StatusReport| report.view_log.as_ref().is_some_and(|log| log.voters.len() == 3);
    cluster.wait_report(1, "all vote again", votes);
    process::kill_all(nodes.split_off(1));
    let page = wait_page(&one, CANNOT_GO_ON, |page| page.contains("SILENT: 2, 3"));
    assert!(page.starts_with("health: can't go on: too few members can be reached"), "{page}");
    let (code, node) = json(&one);
    assert_eq!((code, &node["health"]), (CANNOT_GO_ON, &"cannot_go_on".into()));
    assert!(reasons(&node).contains(&"nothing is heard of voters: node 2 and node 3"), "{node}");
    let waits = node["waits"].as_array().expect("it waits for the others");
    assert!(waits.iter().all(|wait| wait["for_ms"].as_u64().is_some_and(|ms| ms > 500)) && !waits.is_empty(), "{node}");
    let (code, fleet) = json(&all);
    assert_eq!((code, &fleet["health"]), (CANNOT_GO_ON, &"cannot_go_on".into()));
    assert_eq!(fleet["nodes"][2]["health"], "unreachable", "{fleet}");
}

#[test]
fn with_a_configuration_a_node_that_is_down_is_asked_too() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (file, name) = (directory.path().join("squall.toml"), format!("status-file-{}", std::process::id()));
    let text = format!("cluster = {name:?}\nmembers = [1, 2]\nwitnesses = [3]\nfailure_timeout_ms = 500\n");
    std::fs::write(&file, text).expect("there is room");
    let config = |id| Config::load_as(&file, id).expect("it is valid");
    let all = format!("--all --config {} --id 1", file.display());
    let witness = squall::Witness::start(&config(3)).expect("it votes");
    let started = start_all([1, 2].map(config).to_vec());
    let page = wait_page(&all, SERVES, |page| page.contains("3 of 3 nodes answer"));
    assert!(page.lines().any(|line| line.contains("  witness")), "{page}");
    drop(witness);
    let page = wait_page(&all, DEGRADED, |page| page.contains("nothing is heard of voters: node 3"));
    assert!(page.contains("node 3 does not answer") && page.contains("2 of 3 nodes answer"), "{page}");
    drop(started);
    let (code, page) = status(&all);
    assert_eq!(code, UNREACHABLE, "{page}");
}

fn start_all(configs: Vec<Config>) -> Vec<Node> {
    let start = |config| {
        let mut node = Node::builder(config);
        node.group("sum", Sum::default());
        node.start().expect("it starts")
    };
    thread::scope(|scope| {
        let starting: Vec<_> = configs.into_iter().map(|config| scope.spawn(move || start(config))).collect();
        starting.into_iter().map(|node| node.join().expect("no panic")).collect()
    })
}

#[test]
fn a_node_that_forms_says_which_members_it_lacks_and_what_the_others_say() {
    let cluster = Cluster::new("forms", "shm", 3);
    let mut nodes: Vec<_> = [1, 2].map(|id| cluster.launch(id)).into();
    let at = |node: u32| format!("--cluster {} --node {node}", cluster.name);
    let lacks =
        "it waits for the first view: nothing is heard of node 3; node 2: in no group yet, nothing heard of node 3";
    let page = wait_page(&at(1), DEGRADED, |page| page.contains(lacks));
    assert!(page.contains("it has waited for "), "{page}");
    wait_page(&at(2), DEGRADED, |page| page.contains("nothing is heard of node 3; node 1: in no group yet"));
    let (_, node) = json(&at(1));
    assert_eq!((&node["condition"], &node["waits"][0]["nodes"]), (&"forming".into(), &vec![3].into()));
    let waited = |node: &Value| node["waits"][0]["for_ms"].as_u64().expect("it says for how long");
    until("the time goes on", || waited(&json(&at(1)).1) > waited(&node));
    schema().check(&node).unwrap_or_else(|error| panic!("{error}"));
    nodes.push(cluster.launch(3));
    nodes.iter_mut().for_each(process::Process::ready);
    wait_page(&at(1), SERVES, |_| true);
}

#[test]
fn a_node_that_joins_says_whom_it_asks_and_is_found_by_the_others() {
    let name = format!("status-join-{}", std::process::id());
    let builder =
        |id: u32| Config::builder(&name, id).failure_timeout(Duration::from_millis(500)).formation_timeout(PATIENCE);
    let joiner = builder(9).join(["1", "2"]).build().expect("it is valid");
    let joining = thread::spawn(move || start_all(vec![joiner]));
    let asks = "it waits for a place in the group; no answer of node 1, node 2";
    // It answers once its services are there.
    wait_page(&format!("--cluster {name} --node 9"), DEGRADED, |page| page.contains(asks));
    let (_, node) = json(&format!("--cluster {name} --node 9"));
    assert_eq!(node["condition"], "joining");
    schema().check(&node).unwrap_or_else(|error| panic!("{error}"));
    let members = start_all([1, 2].map(|id| builder(id).members(1..=2).build().expect("it is valid")).to_vec());
    let joined = joining.join().expect("it joins");
    let page =
        wait_page(&format!("--all --cluster {name} --node 1"), SERVES, |page| page.contains("3 of 3 nodes answer"));
    assert!(page.lines().any(|line| line.trim_start().starts_with("9  serving")), "{page}");
    drop((members, joined));
}

#[test]
fn totals_go_on_over_views_and_rates_are_those_of_the_last_seconds() {
    let cluster = Cluster::new("rates", "shm", 3);
    let mut nodes = cluster.start();
    for sum in 1..=100 {
        assert_eq!(nodes[0].add(1), Ok(sum));
    }
    let traffic = |node: u32| cluster.report(node).map(|report| report.shards[0].traffic).expect("it answers");
    let TrafficReport { delivered, delivered_bytes, submitted, submitted_bytes, .. } = traffic(1);
    assert_eq!((delivered, submitted), (100, 100));
    assert_eq!(delivered_bytes, submitted_bytes);
    assert!(delivered_bytes >= 800, "100 numbers of 8 bytes: {delivered_bytes}");
    until("node 2 has applied all", || traffic(2).delivered == 100);
    assert_eq!(traffic(2).submitted, 0);
    nodes.pop().expect("three").kill();
    let changed = |report: &StatusReport| report.members.len() == 2 && report.views_installed == 2;
    let report = cluster.wait_report(1, "the view without node 3", changed);
    assert_eq!(report.shards[0].traffic.delivered, 100);
    assert!(report.shards[0].rows.iter().all(|row| row.delivered < 100), "rows are those of the view: {report:?}");
    assert!(report.up_ms.is_some_and(|ms| ms > 0));
    let mut sum = 100;
    until("there is a rate", || {
        sum += 1;
        assert_eq!(nodes[0].add(1), Ok(sum));
        let TrafficReport { delivered_per_second, submitted_per_second, delivered_bytes_per_second, .. } = traffic(1);
        delivered_per_second > 0 && submitted_per_second > 0 && delivered_bytes_per_second >= 8
    });
    let after = traffic(1);
    assert_eq!((after.delivered, after.submitted), (sum, sum));
}

/// The JSON of a report, as the command prints it.
fn object(report: &StatusReport) -> Value {
    let mut object = serde_json::to_value(report.health()).expect("plain data");
    let fields: Map<String, Value> =
        serde_json::to_value(report).expect("plain data").as_object().cloned().expect("an object");
    object.as_object_mut().expect("an object").extend(fields);
    object
}

/// A report that has something of everything, and one that has nothing.
fn made_up(empty: StatusReport) -> Vec<StatusReport> {
    let node = NodeId(1);
    let shard = |waits_for, condition, some: bool| {
        let log = LogStatus {
            snapshot: some.then_some(4),
            failure: some.then(|| "no space".into()),
            no_room: some.then(|| "a segment does not fit".into()),
            damaged: vec!["segment 3".into()],
            asides: vec![AsideStatus { name: "aside-1".into(), ..AsideStatus::default() }],
            ..LogStatus::default()
        };
        let row = RowReport {
            node,
            sender: true,
            complete: false,
            goes: some,
            sent: 1,
            received: 2,
            delivered: 1,
            persisted: some.then_some(1),
            lag: 1,
        };
        let shard = ShardReport {
            shard: 0,
            group: "sum".into(),
            condition,
            traffic: TrafficReport::default(),
            fetching: Some(Fetching { source: node, received: 3, bytes: some.then_some(4) }),
            log: Some(log),
            rows: vec![row],
        };
        (shard, StallReport { node, shard: 0, group: "sum".into(), waits_for, for_ms: 1 })
    };
    let suspended = ShardCondition::Suspended { last_holders: vec![node], acknowledged: 7, all_back: true };
    let (mut shards, mut stalls): (Vec<_>, Vec<_>) =
        [shard(WaitsFor::Disk, suspended, true), shard(WaitsFor::Application, ShardCondition::Inadequate, false)]
            .into_iter()
            .unzip();
    let kinds = [WaitsFor::Messages, WaitsFor::Turns];
    stalls.extend(kinds.map(|waits_for| StallReport { waits_for, ..stalls[0].clone() }));
    let in_memory = ShardReport { condition: ShardCondition::Active, fetching: None, log: None, ..shards[0].clone() };
    shards.push(in_memory);
    let member = MemberReport {
        node,
        incarnation: u64::MAX,
        addresses: vec!["10.0.0.1:7700".into()],
        rack: "a".into(),
        transport: Some("TCP".into()),
        unshared: Some("its socket is not found".into()),
        heartbeat_age_ms: Some(3),
        clock_ahead_ms: Some(-5),
        suspected: true,
        wedged: true,
        leaving: true,
        short_of_room: true,
    };
    let room = |level, lasts_s| RoomStatus {
        directory: "state".into(),
        free_bytes: 1,
        total_bytes: 2,
        reserve_bytes: 3,
        free_inodes: lasts_s,
        reserve_inodes: 4,
        lasts_s,
        level,
    };
    let full = StatusReport {
        waits: [Some(3), None].map(|for_ms| WaitReport { waits_for: "x".into(), nodes: vec![node], for_ms }).to_vec(),
        up_ms: Some(1),
        clock: Some("ahead".into()),
        epoch: Some(3),
        configured: vec![node],
        leader: Some(node),
        members: vec![
            member.clone(),
            MemberReport { transport: None, unshared: None, heartbeat_age_ms: None, clock_ahead_ms: None, ..member },
        ],
        joined: vec![node],
        left: vec![node],
        shards,
        stalls,
        clients: Some(ClientsReport { connected: 1, calls: 2, calls_per_second: 3 }),
        view_log: Some(ViewLogReport {
            voters: vec![node],
            silent: vec![node],
            learners: vec![node],
            leader: None,
            term: 1,
            applied: None,
            storage: None,
        }),
        candidates: vec![CandidateReport { node, incarnation: 1, addresses: vec!["a:1".into()] }],
        forced: vec!["by ann".into()],
        went_back: vec!["node 2 knows more".into()],
        keys: Some(KeysReport {
            owner: "node 1".into(),
            certificates: vec![CertificateReport {
                certificate: "a.pem".into(),
                until_unix_s: 5,
                left_s: -3,
                ends_soon: true,
            }],
            problem: Some("the key can't be read".into()),
        }),
        port: Some(PortReport {
            refused: vec![RefusedReport { reason: "left".into(), count: 1 }],
            denied: vec![DeniedReport { role: "client".into(), call: "orders".into(), count: 2 }],
        }),
        ..empty.clone()
    };
    let conditions = [
        NodeCondition::Forming,
        NodeCondition::Joining,
        NodeCondition::Waiting { rejoins_in_ms: 4 },
        NodeCondition::Member,
        NodeCondition::Wedged,
        NodeCondition::Stalled("alone".into()),
        NodeCondition::Ended("fire".into()),
        NodeCondition::Witness,
    ];
    let nothing =
        StatusReport { up_ms: None, epoch: None, leader: None, view_log: None, room: None, port: None, ..empty };
    let of = |report: &StatusReport| {
        let all = conditions.clone().map(|condition| StatusReport { condition, ..report.clone() });
        Vec::from(all)
    };
    let rooms = [(RoomLevel::Ample, None), (RoomLevel::Little, Some(60)), (RoomLevel::Short, None)];
    let rooms = rooms.map(|(level, lasts_s)| StatusReport { room: Some(room(level, lasts_s)), ..full.clone() });
    let good_keys = full.keys.clone().map(|keys| KeysReport { problem: None, ..keys });
    let good_keys = StatusReport { keys: good_keys, ..full.clone() };
    [of(&nothing), of(&full), Vec::from(rooms), vec![good_keys]].concat()
}

#[test]
fn what_is_printed_is_what_the_schema_of_the_book_says_and_the_other_way_round() {
    let mut schema = schema();
    let mut check = |object: &Value| schema.check(object).unwrap_or_else(|error| panic!("{error}: {object:#}"));
    let cluster = Cluster::durable("schema", "tcp", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(5), Ok(5));
    let real = cluster.report(1).expect("it answers");
    let address = real.members[0].addresses[0].clone();
    let at = format!("--cluster {} --address {address}", cluster.name);
    check(&json(&at).1);
    check(&json(&format!("--all {at}")).1);
    process::kill_all(nodes.split_off(2));
    check(&json(&format!("--all {at}")).1);
    let fields = real.shards[0].log.as_ref().expect("it is durable");
    assert!(fields.records > 0, "{fields:?}");
    let empty = StatusReport { shards: Vec::new(), members: Vec::new(), ..real };
    for report in made_up(empty) {
        check(&object(&report));
        for health in [Health::Serving, Health::Degraded, Health::CannotGoOn, Health::Unreachable] {
            let node = |node, error: Option<String>, report| FleetNode {
                node,
                addresses: vec!["a:1".into()],
                health,
                reasons: vec!["so".into()],
                error,
                report,
            };
            let nodes = vec![node(Some(report.node), None, Some(report.clone())), node(None, Some("off".into()), None)];
            let fleet = FleetReport { health, reasons: vec!["so".into()], nodes };
            check(&serde_json::to_value(fleet).expect("plain data"));
        }
    }
    let untaken: Vec<String> = schema.untaken();
    assert!(untaken.is_empty(), "no report has these: {untaken:#?}");
    let mut lacking = object(&made_up(cluster.report(1).expect("it answers"))[0]);
    lacking.as_object_mut().expect("an object").remove("waits");
    assert!(schema.check(&lacking).is_err_and(|error| error.contains("lacks \"waits\"")));
}
