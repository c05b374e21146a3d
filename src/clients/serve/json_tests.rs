//! Clients that speak JSON, of nodes in this process.

use std::{collections::BTreeMap, time::Duration};

use rkyv::Archived;
use squall_fabric::NodeId;

use super::{
    ServeOptions,
    tests::{Counter, cluster, dial},
};
use crate::{
    Applied, Config, Node, QueryService, Replicated,
    calls::session::SessionId,
    clients::{
        client::{ClientConfig, ClientError, Codec, RawShards},
        query::JsonForm,
        wire::{self, Consistency, ToClient, ToNode, VERSION, WireOutcome},
    },
};

/// Counts by name.
#[derive(Default)]
struct Tally(BTreeMap<String, u64>);

impl Replicated for Tally {
    type Command = (String, u64);
    type Reply = Option<u64>;

    fn apply(&mut self, add: &Archived<(String, u64)>, _at: &Applied) -> Option<u64> {
        let sum = self.0.entry(add.0.to_string()).or_default();
        *sum = sum.checked_add(add.1.to_native())?;
        Some(*sum)
    }
}

impl QueryService for Tally {
    type Query = String;
    type Answer = BTreeMap<String, u64>;
    const JSON: Option<JsonForm> = Some(JsonForm::of::<Self>());

    fn answer(&self, prefix: &Archived<String>) -> BTreeMap<String, u64> {
        let named = self.0.iter().filter(|(name, _)| name.starts_with(prefix.as_str()));
        named.map(|(name, sum)| (name.clone(), *sum)).collect()
    }
}

/// Starts a node with a group that speaks JSON, and one that does not.
fn start(test: &str) -> Node {
    let mut node = Node::builder(Config::builder(cluster(test), 1).members([1]).build().unwrap());
    let options = ServeOptions { request_bytes: 1000, ..ServeOptions::default() };
    node.serve("tally", Tally::default(), options);
    node.serve("counter", Counter(0), options);
    node.start().expect("the view is formed")
}

fn connect(test: &str, group: &str, codec: Codec) -> Result<RawShards, ClientError> {
    let config = ClientConfig::on_host(cluster(test), [NodeId(1)]).with_timeout(Duration::from_secs(60));
    RawShards::connect(&config, group, codec)
}

#[test]
fn commands_and_answers_travel_as_json() {
    let _node = start("json");
    let tally = connect("json", "tally", Codec::Json).unwrap();
    assert_eq!((tally.len(), tally.shard_of(b"any")), (1, 0));
    let tally = tally.shard(0).unwrap();
    let submit = |command: &str| tally.submit(command.into()).wait().map(|reply| String::from_utf8(reply).unwrap());
    assert_eq!(submit(r#"["ann", 5]"#).as_deref(), Ok("5"));
    assert_eq!(submit(r#" [ "ann" , 18446744073709551610 ] "#).as_deref(), Ok("18446744073709551615"));
    assert_eq!(submit(r#"["ann", 1]"#).as_deref(), Ok("null"));
    let answer = tally.query(Consistency::Linearizable, br#""a""#.into()).wait();
    assert_eq!(answer.as_deref(), Ok(&br#"{"ann":18446744073709551615}"#[..]));
    for (command, why) in [
        (r#"["ann", -1]"#, "column 10"),
        (r#"["ann", 1]]"#, "trailing"),
        ("", "EOF"),
        (&format!("[{:?}, 1]", "ä".repeat(496)), "divide it"),
    ] {
        let refused = submit(command);
        assert!(matches!(&refused, Err(ClientError::Rejected(said)) if said.contains(why)), "{command}: {refused:?}");
    }
    let refused = tally.query(Consistency::Local, b"5".into()).wait();
    assert!(matches!(&refused, Err(ClientError::Query(why)) if why.contains("expected a string")), "{refused:?}");
    assert_eq!(submit(r#"["bob", 7]"#).as_deref(), Ok("7"), "the session goes on");
}

#[test]
fn a_group_without_the_codec_denies_it_and_has_its_own_form() {
    let _node = start("json-none");
    let denied = connect("json-none", "counter", Codec::Json).unwrap_err();
    assert!(matches!(&denied, ClientError::Denied(why) if why.contains("no form in JSON")), "{denied}");
    let counter = connect("json-none", "counter", Codec::Rkyv).unwrap();
    let reply = counter.shard(0).unwrap().submit(5_i64.to_le_bytes().into()).wait();
    assert_eq!(reply.as_deref(), Ok(&5_i64.to_le_bytes()[..]));
    let mut stream = dial("json-none");
    let hello = ToNode::Hello { version: VERSION, group: "tally/0/cbor".to_owned() };
    wire::write(&mut stream.writer, &hello).unwrap();
    let told = wire::read::<ToClient>(&mut stream.reader, 1000).unwrap();
    assert!(matches!(&told, ToClient::Denied { only_commands: false, why } if why.contains("cbor")), "{told:?}");
}

#[test]
fn a_session_keeps_one_reply_for_copies_in_any_form() {
    let _node = start("json-copies");
    let hear = |from: &mut _| loop {
        match wire::read::<ToClient>(from, 1000).unwrap() {
            ToClient::Holders(_) | ToClient::Welcome { .. } => {}
            other => break other,
        }
    };
    let mut session: Option<SessionId> = None;
    for (codec, command, reply) in [
        ("json", br#"["ann", 5]"#.to_vec(), b"5".to_vec()),
        ("rkyv", rkyv::to_bytes::<rkyv::rancor::Error>(&("ann".to_owned(), 5_u64)).unwrap().to_vec(), Vec::new()),
        ("json", br#"["ann", 5]"#.to_vec(), b"5".to_vec()),
    ] {
        let mut stream = dial("json-copies");
        let hello = ToNode::Hello { version: VERSION, group: format!("tally/0/{codec}") };
        wire::write(&mut stream.writer, &hello).unwrap();
        let session = *session.get_or_insert_with(|| {
            wire::write(&mut stream.writer, &ToNode::Open { key: 7 }).unwrap();
            let ToClient::Opened { session, .. } = hear(&mut stream.reader) else { panic!("no session") };
            session
        });
        wire::write(&mut stream.writer, &ToNode::Resume { session }).unwrap();
        let request = ToNode::Request { session, number: 0, acknowledged: 0, command };
        wire::write(&mut stream.writer, &request).unwrap();
        let ToClient::Answered { number: 0, result: WireOutcome::Reply(bytes) } = hear(&mut stream.reader) else {
            panic!("no reply")
        };
        match codec {
            "json" => assert_eq!(bytes, reply),
            _ => assert_eq!(crate::clients::query::decode::<Option<u64>>(&bytes), Ok(Some(5))),
        }
    }
}
