//! The examples of the page on the clients' protocol are what a node reads and writes.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    changes::ChangePlace,
    wire::{self, Consistency, Members, ToClient, ToNode, ToldChange, VERSION, WatchEnd, WatchStart, WireOutcome},
};
use crate::calls::session::{Refusal, SessionId};

const PAGE: &str = include_str!("../../docs/src/internals/client-protocol.md");

const SESSION: SessionId = SessionId { number: 7, key: 300 };

/// The number and the name of a variant. A new one is a new arm here, an example below, and a section of the page.
fn section_of_client(message: &ToNode) -> (usize, &'static str) {
    match message {
        ToNode::Hello { .. } => (0, "Hello"),
        ToNode::Open { .. } => (1, "Open"),
        ToNode::Resume { .. } => (2, "Resume"),
        ToNode::Request { .. } => (3, "Request"),
        ToNode::Touch { .. } => (4, "Touch"),
        ToNode::Close { .. } => (5, "Close"),
        ToNode::Query { .. } => (6, "Query"),
        ToNode::Ping => (7, "Ping"),
        ToNode::Listen { .. } => (8, "Listen"),
        ToNode::Watch { .. } => (9, "Watch"),
        ToNode::More { .. } => (10, "More"),
        ToNode::Unwatch { .. } => (11, "Unwatch"),
    }
}

fn section_of_node(message: &ToClient) -> (usize, &'static str) {
    match message {
        ToClient::Welcome { .. } => (0, "Welcome"),
        ToClient::Members(_) => (1, "Members"),
        ToClient::Away { .. } => (2, "Away"),
        ToClient::Opened { .. } => (3, "Opened"),
        ToClient::NotOpened { .. } => (4, "NotOpened"),
        ToClient::Answered { .. } => (5, "Answered"),
        ToClient::Refused { .. } => (6, "Refused"),
        ToClient::Rejected { .. } => (7, "Rejected"),
        ToClient::Told { .. } => (8, "Told"),
        ToClient::Pong => (9, "Pong"),
        ToClient::Denied { .. } => (10, "Denied"),
        ToClient::Shards(_) => (11, "Shards"),
        ToClient::Holders(_) => (12, "Holders"),
        ToClient::NotApplied { .. } => (13, "NotApplied"),
        ToClient::Watching { .. } => (14, "Watching"),
        ToClient::Changes { .. } => (15, "Changes"),
        ToClient::WatchEnded { .. } => (16, "WatchEnded"),
    }
}

fn place(number: u64) -> ChangePlace {
    ChangePlace { number, time_ns: 993 + number }
}

fn watch(start: WatchStart, credit: i64) -> ToNode {
    ToNode::Watch { number: 9, prefix: b"a".to_vec(), start, credit }
}

fn refused() -> WatchEnd {
    WatchEnd::Refused("no query".to_owned())
}

fn of_client() -> Vec<ToNode> {
    vec![
        ToNode::Hello { version: VERSION, group: "bank/3/json".to_owned() },
        ToNode::Open { key: 300 },
        ToNode::Resume { session: SESSION },
        ToNode::Request { session: SESSION, number: 130, acknowledged: 128, command: b"[5]".to_vec() },
        ToNode::Touch { session: SESSION, acknowledged: 131 },
        ToNode::Close { session: SESSION },
        ToNode::Query { number: 9, consistency: Consistency::Local, query: br#""a""#.to_vec() },
        ToNode::Ping,
        ToNode::Listen { session: SESSION, first: 130 },
        watch(WatchStart::Now, 1 << 16),
        watch(WatchStart::Behind(place(7)), -5),
        watch(WatchStart::Query(vec![5]), 1 << 16),
        ToNode::More { number: 9, credit: 40 },
        ToNode::Unwatch { number: 9 },
    ]
}

fn of_node() -> Vec<ToClient> {
    let members = || Members { epoch: 5, members: vec![(1, vec!["10.0.0.1:7700".to_owned()]), (2, Vec::new())] };
    let outcomes =
        [WireOutcome::Reply(b"42".to_vec()), WireOutcome::NoCommand, WireOutcome::NoReply, WireOutcome::Skipped];
    let mut all = vec![
        ToClient::Welcome { members: members(), session_timeout_ms: 60_000, request_bytes: 1 << 20 },
        ToClient::Members(members()),
        ToClient::Away { why: "it leaves".to_owned(), members: members() },
        ToClient::Opened { session: SESSION, window: 1024 },
        ToClient::NotOpened { key: 300, why: "too many".to_owned() },
    ];
    all.extend(outcomes.map(|result| ToClient::Answered { number: 130, result }));
    let refusals = [Refusal::Unknown, Refusal::Window, Refusal::Replies];
    all.extend(refusals.map(|why| ToClient::Refused { number: 130, why }));
    all.extend([
        ToClient::Rejected { number: 130, why: "too long".to_owned() },
        ToClient::Told { number: 9, answer: Ok(b"null".to_vec()) },
        ToClient::Told { number: 9, answer: Err("no query".to_owned()) },
        ToClient::Pong,
        ToClient::Denied { only_commands: true, why: "only queries".to_owned() },
        ToClient::Shards(8),
        ToClient::Holders(members()),
        ToClient::NotApplied { number: 130 },
        ToClient::Watching { number: 9, at: place(7), answer: None },
        ToClient::Watching { number: 9, at: place(7), answer: Some(vec![5]) },
        ToClient::Changes {
            number: 9,
            upto: place(8),
            changes: vec![ToldChange { at: place(8), key: b"a".to_vec(), change: vec![5] }],
        },
    ]);
    let ends = [WatchEnd::TooFarBehind { needed: 3, oldest: 5 }, WatchEnd::OtherHistory(7), refused()];
    all.extend(ends.map(|why| ToClient::WatchEnded { number: 9, why }));
    all
}

/// Checks that each message stands in a section of its own, with its frame's bytes, and is read from these.
fn check<T: Serialize + DeserializeOwned + Debug + PartialEq>(
    chapter: &str,
    messages: &[T],
    section: fn(&T) -> (usize, &'static str),
) {
    let (_, chapter) = PAGE.split_once(&format!("\n## {chapter}\n")).expect("there is the chapter");
    let chapter = chapter.split("\n## ").next().expect("there is a first part");
    let mut sections = chapter.split("\n### ").skip(1);
    let mut current = "";
    let mut next = 0;
    for message in messages {
        let (number, name) = section(message);
        if number == next {
            current = sections.next().expect("there is a section for each variant");
            next += 1;
        }
        assert!(current.starts_with(&format!("{number}: {name}\n")), "{name} has no section {number}: {current}");
        let mut bytes = Vec::new();
        wire::write(&mut bytes, message).unwrap();
        assert_eq!(&wire::read::<T>(&mut &bytes[..], 0).unwrap(), message);
        let lines = bytes.chunks(32).map(|line| {
            let bytes: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            bytes.join(" ")
        });
        let example = format!("{message:?}\n{}\n", lines.collect::<Vec<_>>().join("\n"));
        assert!(current.contains(&example), "the page is to have this:\n{example}");
    }
    assert_eq!(sections.next(), None, "a section of a message that there is not");
}

#[test]
fn all_messages_stand_in_the_page_with_their_bytes() {
    check("Messages of a client", &of_client(), section_of_client);
    check("Messages of a node", &of_node(), section_of_node);
}
