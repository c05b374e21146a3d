//! Nodes in this process, with logs on a real disk, and readers that talk to them.

use std::{
    io::Write,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use squall_fabric::NodeId;
use squall_services::{Caller, ControlStream, DialTarget, Handler, Server, Service, frame};
use tempfile::TempDir;

use super::*;
use crate::{
    Config, Consistency, Mode, Node, ServedGroup,
    clients::{
        client::{Client, ClientConfig},
        wire::Members,
    },
};

/// A cluster of one test.
struct World {
    name: String,
    nodes: Vec<(Node, ServedGroup<RecordLog>)>,
    // Dropped last, since nodes write to it.
    _base: TempDir,
}

impl World {
    /// Starts nodes with a durable group `log`, and a group `memory` that is not durable.
    fn start(test: &str, members: u32) -> World {
        let name = format!("log-service-{test}-{}", std::process::id());
        let base = tempfile::tempdir().unwrap();
        let start = |id: u32| {
            let config = Config::builder(&name, id)
                .members(1..=members)
                .storage(base.path().join(id.to_string()))
                .failure_timeout(Duration::from_millis(300))
                .group("log", |group| _ = group.mode(Mode::Durable));
            let config = config.build().unwrap();
            let mut node = Node::builder(config.clone());
            let log = node.serve("log", RecordLog::default(), RecordLog::options(&config, "log"));
            node.serve("memory", RecordLog::default(), RecordLog::options(&config, "memory"));
            (node.start().expect("the view is formed"), log)
        };
        let nodes = thread::scope(|scope| {
            let starting: Vec<_> = (1..=members).map(|id| scope.spawn(move || start(id))).collect();
            starting.into_iter().map(|node| node.join().expect("it starts")).collect()
        });
        World { name, nodes, _base: base }
    }

    fn config(&self) -> ClientConfig {
        let members = 1..=self.nodes.len() as u32;
        ClientConfig::on_host(&self.name, members.map(NodeId)).with_timeout(Duration::from_secs(30))
    }

    fn reader(&self) -> LogClient {
        LogClient::new(&self.config(), "log")
    }

    /// Appends records with a session of its own, and returns their versions.
    fn append(&self, records: impl IntoIterator<Item = Vec<u8>>) -> Vec<u64> {
        let client = Client::<RecordLog>::connect(&self.config(), "log").unwrap();
        let calls: Vec<_> = records.into_iter().map(|record| client.submit(&record)).collect();
        calls.into_iter().map(|call| call.wait().unwrap().version).collect()
    }

    /// Opens a stream to node 1, over which the test acts as the reader.
    fn dial(&self) -> ControlStream {
        let to = DialTarget { node: Some(NodeId(1)), addresses: Vec::new() };
        let caller = Caller::on_host(&self.name, NodeId(99));
        caller.dial(&to, Service::Log, Duration::from_secs(20)).unwrap()
    }
}

fn records(count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|number| format!("record {number}").into_bytes())
}

/// Reads all records from a version on, page by page.
fn read_all(log: &mut LogClient, from: u64) -> Vec<(u64, Vec<u8>)> {
    let mut page = log.read(Consistency::Linearizable, from..).unwrap();
    let end = page.globally_persisted;
    let mut all = Vec::new();
    loop {
        all.extend(page.records.iter().map(|record| (record.version, record.record().unwrap())));
        if page.next > end {
            return all;
        }
        page = log.follow(page.next..=end, Duration::from_secs(1)).unwrap();
    }
}

#[test]
fn what_was_acknowledged_is_read_at_every_member() {
    let world = World::start("read", 3);
    let versions = world.append(records(200));
    let expected: Vec<_> = versions.into_iter().zip(records(200)).collect();
    let mut log = world.reader();
    let members = log.members().unwrap();
    assert_eq!(members, [1, 2, 3].map(NodeId));
    for member in members {
        assert_eq!(read_all(&mut log.at_member(member), 1), expected, "{member}");
    }
    let counts = Client::<RecordLog>::connect(&world.config(), "log").unwrap().query(&()).wait().unwrap();
    assert_eq!((counts.records, counts.last), (200, expected[199].0));
}

#[test]
fn a_page_is_bounded_but_for_its_last_record() {
    let world = World::start("page", 1);
    let long = vec![7; 3 << 20];
    world.append([b"short".to_vec(), long.clone(), long.clone()]);
    let mut log = world.reader();
    let page = log.read(Consistency::Linearizable, ..).unwrap();
    assert_eq!(page.records.len(), 2);
    let rest = log.read(Consistency::Linearizable, page.next..).unwrap();
    assert_eq!(rest.records.iter().map(|record| record.record().unwrap()).collect::<Vec<_>>(), [long]);
}

#[test]
fn the_last_records_are_found_behind_versions_that_have_none() {
    let world = World::start("last", 1);
    let versions: Vec<u64> = records(30).flat_map(|record| world.append([record])).collect();
    assert!(versions[29] - versions[0] > 29, "sessions take versions, too");
    let mut log = world.reader();
    for count in [0, 1, 10, 30, 1000] {
        let (last, next) = log.last(count, None).unwrap();
        let expected = &versions[30 - count.min(30)..];
        assert_eq!(last.iter().map(|record| record.version).collect::<Vec<_>>(), expected);
        assert!(next > versions[29]);
    }
    let (upto, next) = log.last(2, Some(versions[4])).unwrap();
    assert_eq!(upto.iter().map(|record| record.version).collect::<Vec<_>>(), versions[3..5]);
    assert_eq!(next, versions[4] + 1);
}

#[test]
fn who_follows_is_told_of_a_record_when_it_comes() {
    let world = World::start("follow", 1);
    let mut log = world.reader();
    let (_, next) = log.last(0, None).unwrap();
    let none = log.follow(next.., Duration::from_millis(1)).unwrap();
    assert_eq!((none.records.len(), none.next), (0, next));
    let appended = thread::scope(|scope| {
        let appending = scope.spawn(|| world.append([b"now".to_vec()]));
        let mut page = none;
        let deadline = Instant::now() + Duration::from_secs(30);
        while page.records.is_empty() {
            assert!(Instant::now() < deadline, "nothing came");
            page = log.follow(page.next.., Duration::from_secs(1)).unwrap();
        }
        let version = page.records[0].version;
        (version, appending.join().unwrap())
    });
    assert_eq!(vec![appended.0], appended.1);
}

#[test]
fn the_last_version_at_a_time_is_that_of_the_last_record_that_is_not_later() {
    let world = World::start("at", 1);
    world.append(records(5));
    let mut log = world.reader();
    let page = log.read(Consistency::Linearizable, ..).unwrap();
    for pair in page.records.windows(2) {
        for time in [pair[0].time, crate::Hlc(pair[1].time.0 - 1)] {
            let at = log.version_at(Consistency::Linearizable, time).unwrap();
            assert_eq!((at.version, at.time), (pair[0].version, pair[0].time));
        }
    }
    assert_eq!(log.version_at(Consistency::Linearizable, crate::Hlc(1)).unwrap().version, 0);
}

#[test]
fn parts_that_were_checked_have_the_same_digest_everywhere_and_others_have_another() {
    let world = World::start("check", 2);
    let versions = world.append(records(50));
    let mut log = world.reader();
    log.members().unwrap();
    let [mut one, mut two] = [1, 2].map(|id| log.at_member(NodeId(id)));
    // The other member may learn a little later that all of it is globally persisted.
    for log in [&mut one, &mut two] {
        log.read(Consistency::Linearizable, ..).unwrap();
    }
    let (first, last) = (versions[0], versions[49]);
    let whole = one.check(first, last).unwrap();
    assert_eq!((whole.to, whole.messages, whole.damage.len()), (last, 50, 0));
    assert!(whole.digest.is_some());
    assert_eq!(two.check(first, last).unwrap(), whole);
    assert_ne!(one.check(first, last - 1).unwrap().digest, whole.digest);
}

#[test]
fn what_can_not_be_read_is_refused_in_a_sentence() {
    let world = World::start("refuse", 1);
    for (group, shard, part) in [("other", 0, "no group"), ("log", 1, "no shard 1"), ("memory", 0, "no log")] {
        let refused = LogClient::new(&world.config(), group).of_shard(shard).read(Consistency::Linearizable, ..);
        assert!(matches!(&refused, Err(LogError::Refused { why, .. }) if why.contains(part)), "{refused:?}");
    }
    let mut nobody = LogClient::new(&ClientConfig::on_host("nobody", [NodeId(1)]), "log");
    nobody.set_timeout(Duration::from_millis(50));
    assert!(matches!(nobody.status(), Err(LogError::Unreachable { .. })));
}

#[test]
fn bytes_of_strangers_disturb_nobody() {
    let world = World::start("hostile", 1);
    world.append(records(1));
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut stream = world.dial();
        if random.bool() {
            let hello = wire::LogServiceRequest::Hello { version: wire::VERSION, group: "log".to_owned(), shard: 0 };
            frame::write(&mut stream.writer, &hello, wire::REQUEST_BYTES).unwrap();
        }
        let mut bytes = vec![0; random.usize(..300)];
        random.fill(&mut bytes);
        if random.bool() {
            // The length is one that the node accepts, so that it looks at the bytes behind it.
            let len = bytes.len().saturating_sub(4) as u32;
            bytes.iter_mut().zip(len.to_le_bytes()).for_each(|(byte, of)| *byte = of);
        }
        // The node may have hung up already.
        let _ = stream.writer.write_all(&bytes);
        drop(stream);
        assert_eq!(read_all(&mut world.reader(), 1).len(), 1, "seed {seed}");
    }
}

/// Runs servers at nodes 1 to 3, each of which greets a reader, and gives it one answer.
fn answering(cluster: &str, answer: fn(u32) -> wire::LogServiceReply) -> Vec<Server> {
    let serve = |node: u32| {
        let handler: Handler = Arc::new(move |mut stream: ControlStream| {
            let members = Members { epoch: 1, members: (1..=3).map(|node| (node, Vec::new())).collect() };
            for reply in [wire::LogServiceReply::Welcome(members), answer(node)] {
                if frame::read::<wire::LogServiceRequest>(&mut stream.reader, wire::REQUEST_BYTES).is_ok() {
                    frame::write(&mut stream.writer, &reply, wire::REPLY_BYTES).unwrap();
                }
            }
        });
        Server::on_host(cluster, NodeId(node), [(Service::Log, handler)]).unwrap()
    };
    (1..=3).map(serve).collect()
}

#[test]
fn all_members_are_asked_before_records_are_given_up_as_trimmed() {
    let cluster = format!("log-service-trimmed-{}", std::process::id());
    let config = ClientConfig::on_host(&cluster, [1, 2, 3].map(NodeId));
    // Readers begin at a random member.
    let ask = || LogClient::new(&config, "log").check(1, 9);
    let one_has_them = answering(&cluster, |node| match node {
        2 => wire::LogServiceReply::Checked(Checked { to: 9, ..Checked::default() }),
        _ => wire::LogServiceReply::Trimmed { first: 100 },
    });
    (0..24).for_each(|_| assert_eq!(ask().unwrap().to, 9));
    drop(one_has_them);
    let _nobody_has_them = answering(&cluster, |node| wire::LogServiceReply::Trimmed { first: 100 * u64::from(node) });
    (0..24).for_each(|_| assert!(matches!(ask(), Err(LogError::Trimmed { first: 100 }))));
}
