//! The requests and orders of operators to nodes that run: several nodes in this process, or each in a process of its
//! own.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use squall::{
    Config, ConfigBuilder, EndReason, Group, Node, NodeId, StartError, Witness,
    admin::{AdminClient, NodeCondition, StatusReport, Target},
    config::{Backend, Security},
    keys::{Authority, Files},
};

use crate::{
    process::{self, PATIENCE, until},
    sum::Sum,
};

fn cluster(test: &str) -> String {
    format!("operator-{test}-{}", std::process::id())
}

fn config(test: &str, id: u32, members: u32) -> ConfigBuilder {
    Config::builder(cluster(test), id).members(1..=members).failure_timeout(Duration::from_millis(500))
}

type Started = (Node, Group<Sum>);

fn start(config: ConfigBuilder) -> Result<Started, StartError> {
    let mut node = Node::builder(config.build().expect("the configuration is valid"));
    let group = node.group("sum", Sum::default());
    Ok((node.start()?, group))
}

fn start_all(configs: Vec<ConfigBuilder>) -> Vec<Started> {
    thread::scope(|scope| {
        let starting: Vec<_> = configs.into_iter().map(|config| scope.spawn(|| start(config))).collect();
        starting.into_iter().map(|node| node.join().expect("no panic").expect("it starts")).collect()
    })
}

fn ask(test: &str, node: u32) -> AdminClient {
    process::ask(&cluster(test), node)
}

fn squall(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.args(arguments.split_whitespace()).output().expect("it can be started")
}

fn says(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The page of a node's status, whatever its health.
fn page(cluster: &str, node: u32) -> String {
    let output = squall(&format!("status --cluster {cluster} --node {node}"));
    let answers = output.status.code().is_some_and(|code| [0, 4, 5].contains(&code));
    assert!(answers, "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn nodes(report: &StatusReport) -> Vec<u32> {
    report.members.iter().map(|member| member.node.0).collect()
}

/// The transport to each member.
fn transports(report: &StatusReport) -> Vec<Option<&str>> {
    report.members.iter().map(|member| member.transport.as_deref()).collect()
}

/// Addresses of this host that are free.
fn free_addresses(count: usize) -> Vec<String> {
    let ports: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
    ports.iter().map(|port| port.local_addr().expect("it has one").to_string()).collect()
}

#[test]
fn members_with_addresses_find_out_that_they_can_share_memory() {
    let at = free_addresses(2);
    let config = |id: u32| config("beside", id, 2).addresses(1, [&at[0]]).addresses(2, [&at[1]]);
    let started = start_all((1..=2).map(config).collect());
    started[0].1.submit(&5).wait().expect("it is applied");
    let target = Target::of(&config(2).build().expect("it is valid")).expect("it has addresses");
    let report = AdminClient::connect(&target, PATIENCE).and_then(|mut node| node.status()).expect("it answers");
    assert_eq!(transports(&report), [Some("shared memory"), None]);
    assert_eq!(report.members[0].unshared, None);
}

#[test]
fn a_node_says_how_it_sees_its_cluster() {
    let started = start_all((1..=3).map(|id| config("status", id, 3)).collect());
    started[0].1.submit(&5).wait().expect("it is applied");
    let report = ask("status", 2).status().expect("it answers");
    assert_eq!((&report.condition, report.epoch, nodes(&report)), (&NodeCondition::Member, Some(1), vec![1, 2, 3]));
    assert_eq!(report.leader, Some(NodeId(1)));
    let ages: Vec<bool> = report.members.iter().map(|member| member.heartbeat_age_ms.is_some()).collect();
    assert_eq!(ages, [true, false, true], "it does not wait for its own heartbeat");
    assert_eq!(transports(&report), [Some("shared memory"), None, Some("shared memory")]);
    let shard = &report.shards[0];
    assert_eq!((shard.group.as_str(), shard.rows.len()), ("sum", 3));
    assert!(shard.rows.iter().all(|row| row.sender && row.complete));
    assert_eq!(report.view_log.expect("it has one").voters.len(), 3);
    let page = page(&cluster("status"), 1);
    assert!(page.contains("epoch 1; node 1 is a member"), "{page}");
}

#[test]
fn who_is_suspected_is_dropped_and_comes_back() {
    let started = start_all((1..=3).map(|id| config("suspect", id, 3)).collect());
    started[2].1.submit(&5).wait().expect("it is applied");
    let mut client = ask("suspect", 1);
    let refusal = client.suspect(NodeId(9)).expect_err("there is none").to_string();
    assert!(refusal.contains("not a member of epoch 1: that has 1, 2, 3"), "{refusal}");
    assert!(client.suspect(NodeId(1)).is_err(), "no node suspects itself");
    says(&squall(&format!("suspect 3 --cluster {} --node 1", cluster("suspect"))));
    let back = |view: &squall::View| view.epoch.0 > 2 && view.shards[0].is_complete(NodeId(3));
    assert!(started[2].0.wait_view(PATIENCE, back).expect("it goes on").is_some());
    assert_eq!(started[2].1.submit(&2).wait(), Ok(7));
}

#[test]
fn who_is_told_to_leave_says_that_it_has() {
    let mut started = start_all((1..=3).map(|id| config("leave", id, 3)).collect());
    let (leaver, _) = started.pop().expect("three");
    let program = thread::spawn(move || leaver.wait_ended());
    let said = says(&squall(&format!("leave --cluster {} --node 3", cluster("leave"))));
    assert_eq!(said, "node 3 has left\n");
    assert_eq!(program.join().expect("no panic"), EndReason::Left);
    assert_eq!(started[0].1.submit(&1).wait(), Ok(1));
}

#[test]
fn a_survivor_goes_on_if_an_operator_forces_it() {
    let cluster = process::Cluster::new("recover", "shm", 3);
    let mut started = cluster.start();
    assert_eq!(started[0].add(5), Ok(5));
    let refusal = cluster.admin(3).expect("it runs").recover("by me, for fun").expect_err("it works").to_string();
    assert!(refusal.contains("can go on"), "{refusal}");
    let mut survivor = started.pop().expect("three");
    process::kill_all(started);
    let report =
        cluster.wait_report(3, "it can't go on", |report| matches!(report.condition, NodeCondition::Stalled(_)));
    let NodeCondition::Stalled(why) = report.condition else { panic!("it was waited for") };
    assert!(why.contains("squall recover --force"), "{why}");
    let error = survivor.add(1).expect_err("no node can decide");
    assert!(error.contains("squall recover --force"), "{error}");
    assert!(says(&recover(&cluster.name, 3, "fire")).contains("node 3 goes on"));
    assert_eq!(survivor.add(1), Ok(6), "with its state");
    let report = cluster.report(3).expect("it answers");
    assert_eq!((nodes(&report), report.forced.len()), (vec![3], 1));
    assert!(report.forced[0].contains("fire"), "{:?}", report.forced);
    // Nodes of the old life join as new ones.
    let mut back = cluster.launch(1);
    back.ready();
    assert_eq!((back.serves(), back.add(1)), (6, Ok(7)));
}

/// Two processes of five, 4 and 5, whose members 1 to 3 are lost for ever, as both report. The sum is 5.
fn two_survivors(test: &str) -> (String, [process::Process; 2]) {
    let cluster = process::Cluster::new(test, "shm", 5);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(5), Ok(5));
    let survivors = nodes.split_off(3);
    process::kill_all(nodes);
    for node in &survivors {
        until("it says that it can't go on", || page(&cluster.name, node.id).contains("can't go on:"));
    }
    (cluster.name.clone(), survivors.try_into().ok().expect("two"))
}

fn recover(cluster: &str, node: u32, reason: &str) -> Output {
    squall(&format!("recover --cluster {cluster} --node {node} --force --yes --reason {reason}"))
}

#[test]
fn when_one_survivor_is_forced_the_other_joins_it_by_itself_with_the_same_process() {
    let (cluster, [mut four, mut five]) = two_survivors("forced");
    assert!(says(&recover(&cluster, 4, "fire")).contains("node 4 goes on"));
    assert_eq!(four.add(1), Ok(6), "with its state");
    five.wait_view(&[4, 5]);
    assert_eq!(five.add(1), Ok(7));
    for node in [4, 5] {
        let page = page(&cluster, node);
        assert!(page.contains("forced by") && page.contains("fire"), "{page}");
    }
}

#[test]
fn of_two_survivors_that_are_forced_at_once_one_goes_on_and_the_other_joins_it() {
    let (cluster, [mut four, mut five]) = two_survivors("both");
    let outputs = thread::scope(|scope| {
        let done = [4, 5].map(|node| {
            let cluster = &cluster;
            scope.spawn(move || recover(cluster, node, "fire"))
        });
        done.map(|done| done.join().expect("no panic"))
    });
    let (done, refused): (Vec<&Output>, Vec<&Output>) = outputs.iter().partition(|output| output.status.success());
    assert_eq!((done.len(), refused.len()), (1, 1), "{outputs:?}");
    let why = String::from_utf8_lossy(&refused[0].stderr);
    assert!(why.contains("this node joins it"), "{why}");
    // They join in either order.
    until("they are one group", || four.ask("view").len() == "[NodeId(4), NodeId(5)]".len());
    let sum = four.serves();
    assert_eq!((sum, five.serves()), (5, 5));
    assert_eq!((four.add(1), five.add(1)), (Ok(6), Ok(7)));
}

#[test]
fn who_is_dropped_again_soon_waits_and_says_how_long() {
    let started = start_all((1..=3).map(|id| config("again", id, 3)).collect());
    let mut client = ask("again", 1);
    let back = |than: u64| move |view: &squall::View| view.epoch.0 > than && view.shards[0].is_complete(NodeId(3));
    client.suspect(NodeId(3)).expect("it is a member");
    let view = started[2].0.wait_view(PATIENCE, back(2)).expect("it goes on").expect("it is back at once");
    // Another member may learn of it a little later.
    assert!(started[0].0.wait_view(PATIENCE, back(2)).expect("it goes on").is_some());
    client.suspect(NodeId(3)).expect("it is a member");
    let mut watched = ask("again", 3);
    until("it waits", || match watched.status().expect("it answers").condition {
        NodeCondition::Waiting { rejoins_in_ms } => {
            assert!(rejoins_in_ms <= 1000, "twice the failure timeout: {rejoins_in_ms}");
            true
        }
        _ => false,
    });
    assert!(started[2].0.wait_view(PATIENCE, back(view.epoch.0 + 1)).expect("it goes on").is_some());
    assert_eq!(started[2].1.submit(&2).wait(), Ok(2));
}

#[test]
fn a_watch_shows_each_view_until_it_is_interrupted() {
    let mut started = start_all((1..=3).map(|id| config("watch", id, 3)).collect());
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.args(["status", "--json", "--watch=20ms", "--node", "1", "--cluster", &cluster("watch")]);
    let mut process = Process(command.stdout(Stdio::piped()).spawn().expect("it can be started"));
    let mut lines = BufReader::new(process.0.stdout.take().expect("it is piped")).lines();
    let mut epochs = Vec::new();
    let mut watch_until = |epoch: u64| {
        while epochs.last().is_none_or(|&last| last < epoch) {
            let line = lines.next().expect("it goes on").expect("it is text");
            let page: serde_json::Value = serde_json::from_str(&line).expect("an object on each line");
            epochs.push(page["epoch"].as_u64().expect("it is in a view"));
        }
    };
    watch_until(1);
    started.pop().expect("three").0.shutdown();
    watch_until(2);
    assert!(epochs.is_sorted(), "{epochs:?}");
    let id = process.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("there is a `kill`").success());
    assert_eq!(process.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn two_members_and_a_witness_survive_the_loss_of_either_member() {
    for victim in [0, 1] {
        let test = format!("witness-{victim}");
        let config = |id| config(&test, id, 2).witnesses([3]);
        let witness = Witness::start(&config(3).build().expect("it is valid")).expect("it votes");
        let mut started = start_all((1..=2).map(config).collect());
        assert_eq!(started[0].1.submit(&5).wait(), Ok(5));
        let report = ask(&test, 3).status().expect("it answers");
        assert_eq!((report.condition, report.view_log.map(|log| log.voters.len())), (NodeCondition::Witness, Some(3)));
        started.remove(victim).0.shutdown();
        let (node, group) = &started[0];
        assert!(node.wait_view(PATIENCE, |view| view.members.len() == 1).expect("it goes on").is_some());
        assert_eq!(group.submit(&1).wait(), Ok(6));
        assert_eq!(witness.wait_failed(Duration::ZERO), None);
    }
}

/// A process that is killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_command_is_a_witness_until_it_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let (file, name) = (directory.path().join("squall.toml"), cluster("command"));
    fs::write(&file, format!("cluster = {name:?}\nid = 3\nmembers = [1, 2]\nwitnesses = [3]\n"))
        .expect("there is room");
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.arg("witness").arg("--config").arg(&file).stdout(Stdio::null());
    let process = Process(command.spawn().expect("it can be started"));
    let started = start_all((1..=2).map(|id| config("command", id, 2).witnesses([3])).collect());
    until("the witness votes", || {
        let page = page(&name, 3);
        assert!(page.contains("node 3 is a witness"), "{page}");
        page.contains("voters 1, 2, 3")
    });
    drop(process);
    assert_eq!(started[1].1.submit(&5).wait(), Ok(5), "two of three can still decide");
}

#[test]
fn a_witness_is_configured_as_one_and_a_member_is_not() {
    let member = config("no-witness", 1, 2).witnesses([3]);
    let error = Witness::start(&member.build().expect("it is valid")).err().expect("it is a member").to_string();
    assert!(error.contains("node 1 is not among the configuration's `witnesses`"), "{error}");
    let error = start(config("no-witness", 3, 2).witnesses([3])).map(drop).expect_err("it is a witness").to_string();
    assert!(error.contains("squall witness"), "{error}");
}

#[test]
fn with_storage_a_node_that_comes_back_votes_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let config = |id: u32| config("storage", id, 3).storage(directory.path().join("{id}"));
    let mut started = start_all((1..=3).map(config).collect());
    assert_eq!(started[0].1.submit(&5).wait(), Ok(5));
    let member = |node: &Node, id: u32| node.view().members.iter().find(|m| m.node.0 == id).cloned();
    let before = member(&started[0].0, 3).expect("it is a member");
    let taken = self::config("storage-2", 1, 1).storage(directory.path().join("3"));
    let error = start(taken).map(drop).expect_err("node 3 has it").to_string();
    assert!(error.contains("in use"), "{error}");
    started.pop().expect("three").0.shutdown();
    assert!(started[0].0.wait_view(PATIENCE, |view| view.members.len() == 2).expect("it goes on").is_some());
    let foreign = self::config("storage-2", 1, 1).storage(directory.path().join("3"));
    let error = start(foreign).map(drop).expect_err("it is of another cluster").to_string();
    assert!(error.contains("is of cluster"), "{error}");
    let (back, group) = start(config(3)).expect("it joins");
    let complete = |view: &squall::View| view.shards[0].is_complete(NodeId(3));
    assert!(back.wait_view(PATIENCE, complete).expect("it goes on").is_some());
    assert_eq!(group.submit(&1).wait(), Ok(6));
    let after = member(&back, 3).expect("it is a member");
    assert_eq!(after.voter, before.voter);
    assert!(after.incarnation > before.incarnation);
    let log = ask("storage", 3).status().expect("it answers").view_log.expect("it has one");
    assert!(log.storage.is_some());
}

#[test]
fn a_directory_with_damage_is_named() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("view-log.redb"), [7; 8192]).expect("there is room");
    let error =
        start(config("damage", 1, 1).storage(directory.path())).map(drop).expect_err("it is damaged").to_string();
    assert!(error.contains("view-log.redb is damaged") && error.contains("move it away"), "{error}");
}

#[test]
fn operators_reach_nodes_at_their_ports_with_keys() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::in_directory(directory.path());
    let ca = Authority::create(&cluster("tls")).expect("a CA");
    ca.save(&files, false).expect("the directory is new");
    let at = free_addresses(3);
    let config = |id: u32| {
        let keys = files.of(NodeId(id));
        let config = config("tls", id, 3).backend(Backend::Tcp).security(Security::Tls(keys));
        (1..).zip(&at).fold(config, |config, (id, at)| config.addresses(id, [at]))
    };
    (1..=3).for_each(|id| ca.issue(NodeId(id), 1).and_then(|keys| keys.save(&files, false)).expect("keys"));
    let mut started = start_all((1..=3).map(config).collect());
    let ask = |id| {
        let target = Target::of(&config(id).build().expect("it is valid")).expect("it has keys");
        AdminClient::connect(&target, PATIENCE).expect("it answers")
    };
    let report = ask(2).status().expect("it answers");
    assert_eq!((nodes(&report), transports(&report)), (vec![1, 2, 3], vec![Some("TCP"), None, Some("TCP")]));
    let (leaver, _) = started.pop().expect("three");
    let program = thread::spawn(move || leaver.wait_ended());
    ask(3).leave(PATIENCE).expect("it leaves");
    assert_eq!(program.join().expect("no panic"), EndReason::Left);
    ask(1).suspect(NodeId(2)).expect("it is a member");
    let back = |view: &squall::View| view.epoch.0 > 3 && view.shards[0].is_complete(NodeId(2));
    assert!(started[1].0.wait_view(PATIENCE, back).expect("it goes on").is_some());
}
