//! Calls to all members and to chosen ones, message by message.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::super::{
    core::ClientCore,
    effect::{Ask, CallId, ClientEffect, MemberCall},
    error::ClientError,
};
use crate::{
    calls::session::{Refusal, SessionId},
    clients::{
        contacts::Contacts,
        wire::{Consistency, Members, ToClient, ToNode, WireOutcome},
    },
};

const NOW: Time = Time::from_nanos(1);
const LATER: Time = Time::from_nanos(1 << 50);
const SESSION: SessionId = SessionId { number: 1, key: 2 };
const MEMBERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

fn target(node: u32) -> DialTarget {
    DialTarget { node: Some(NodeId(node)), addresses: vec![format!("10.0.0.{node}:1")] }
}

fn members(epoch: u64, nodes: &[u32]) -> Members {
    Members { epoch, members: nodes.iter().map(|&node| (node, target(node).addresses)).collect() }
}

fn welcome(core: &mut ClientCore, epoch: u64, nodes: &[u32], out: &mut Vec<ClientEffect>) {
    core.connected(NOW, out);
    core.heard(NOW, ToClient::Holders(members(epoch, nodes)), out);
    welcomed(core, epoch, nodes, out);
}

fn welcomed(core: &mut ClientCore, epoch: u64, nodes: &[u32], out: &mut Vec<ClientEffect>) {
    let (session_timeout_ms, request_bytes) = (1 << 40, 1000);
    core.heard(NOW, ToClient::Welcome { members: members(epoch, nodes), session_timeout_ms, request_bytes }, out);
}

/// Makes a client that has the first call under way, which all of three members are to answer.
fn asked_all(out: &mut Vec<ClientEffect>) -> (ClientCore, SessionId) {
    let mut core = ClientCore::new("bank".into(), Contacts::new(vec![target(1)], 0), Rng::with_seed(1));
    core.call(NOW, CallId(0), Ask::All(vec![7]), LATER, out);
    welcome(&mut core, 1, &[1, 2, 3], out);
    let session = open(&mut core, out);
    (core, session)
}

/// Opens the session that the client has asked for.
fn open(core: &mut ClientCore, out: &mut Vec<ClientEffect>) -> SessionId {
    let key = out.iter().find_map(|effect| match effect {
        ClientEffect::Send(ToNode::Open { key }) => Some(*key),
        _ => None,
    });
    let session = SessionId { number: 5, key: key.expect("it opens a session") };
    core.heard(NOW, ToClient::Opened { session, window: 8 }, out);
    session
}

fn ok(byte: u8) -> Result<Vec<u8>, ClientError> {
    Ok(vec![byte])
}

fn answered(number: u64) -> ToClient {
    ToClient::Answered { number, result: WireOutcome::Reply(vec![9]) }
}

/// Returns the requests that were sent, each with its acknowledged mark.
fn requests(out: &[ClientEffect]) -> Vec<(u64, u64)> {
    let request = |effect: &ClientEffect| match effect {
        ClientEffect::Send(ToNode::Request { number, acknowledged, .. }) => Some((*number, *acknowledged)),
        _ => None,
    };
    out.iter().filter_map(request).collect()
}

/// Returns the members that were asked, each with the call.
fn asked(out: &[ClientEffect]) -> Vec<(u32, MemberCall, Ask)> {
    let asked = |effect: &ClientEffect| match effect {
        ClientEffect::AskAt { call, member, ask, .. } => Some((member.node?.0, *call, ask.clone())),
        _ => None,
    };
    out.iter().filter_map(asked).collect()
}

#[test]
fn a_command_for_all_is_acknowledged_once_each_member_has_answered_or_is_gone() {
    let mut out = Vec::new();
    let (mut core, session) = asked_all(&mut out);
    assert!(out.contains(&ClientEffect::Sent(CallId(0), [1, 2, 3].map(NodeId).to_vec())), "{out:?}");
    let of = MemberCall::Of(CallId(0));
    assert_eq!(asked(&out), [1, 2, 3].map(|node| (node, of, Ask::Answer(session, 0))));
    let last = out.last().expect("there are some");
    assert!(matches!(last, ClientEffect::Send(ToNode::Request { .. })), "members are listened to before: {out:?}");
    core.heard(NOW, answered(0), &mut out);
    core.told_at(NOW, NodeId(1), of, ok(9), &mut out);
    core.told_at(NOW, NodeId(1), of, ok(8), &mut out);
    core.call(NOW, CallId(1), Ask::Command(vec![8]), LATER, &mut out);
    assert_eq!(requests(&out), [(0, 0), (1, 0)], "members 2 and 3 must keep the first answer");
    // On a new connection it is not sent again, as it was answered.
    out.clear();
    core.broken(NOW, "cut".into(), &mut out);
    welcome(&mut core, 1, &[1, 2, 3], &mut out);
    assert_eq!(requests(&out), [(1, 0)]);
    core.told_at(NOW, NodeId(2), of, ok(9), &mut out);
    core.heard(NOW, ToClient::Holders(members(2, &[1, 2])), &mut out);
    let gone = |effect: &&ClientEffect| matches!(effect, ClientEffect::Reply(_, NodeId(3), Err(ClientError::Gone(_))));
    assert_eq!(out.iter().filter(gone).count(), 1, "{out:?}");
    assert!(
        out.contains(&ClientEffect::Forget(NodeId(3))) && out.contains(&ClientEffect::Resolve(CallId(0), Ok(vec![])))
    );
    out.clear();
    core.call(NOW, CallId(2), Ask::Command(vec![8]), LATER, &mut out);
    assert_eq!(requests(&out), [(2, 1)]);
}

#[test]
fn a_command_for_all_whose_session_has_ended_is_not_sent_under_another_number() {
    let mut out = Vec::new();
    let (mut core, _) = asked_all(&mut out);
    core.heard(NOW, ToClient::Refused { number: 0, why: Refusal::Unknown }, &mut out);
    let resolved = out.iter().find_map(|effect| match effect {
        ClientEffect::Resolve(CallId(0), result) => Some(result.clone()),
        _ => None,
    });
    assert!(matches!(&resolved, Some(Err(ClientError::Rejected(_)))), "{resolved:?}");
    out.clear();
    let (mut core, _) = asked_all(&mut out);
    core.heard(NOW, answered(0), &mut out);
    core.call(NOW, CallId(1), Ask::Command(vec![8]), LATER, &mut out);
    core.heard(NOW, ToClient::Refused { number: 1, why: Refusal::Unknown }, &mut out);
    assert!(out.contains(&ClientEffect::Resolve(CallId(0), Err(ClientError::SessionEnded))), "{out:?}");
}

#[test]
fn commands_that_are_refused_are_tried_one_at_a_time_until_members_answer() {
    let mut out = Vec::new();
    let (mut core, _) = asked_all(&mut out);
    (1..=7).for_each(|id| core.call(NOW, CallId(id), Ask::All(vec![7]), LATER, &mut out));
    core.heard(NOW, answered(0), &mut out);
    let refused = |number| ToClient::Refused { number, why: Refusal::Replies };
    (1..=7).for_each(|number| core.heard(NOW, refused(number), &mut out));
    let (mut now, mut tried) = (NOW, vec![NOW]);
    while tried.len() < 10 {
        now = core.deadline().expect("it goes on");
        out.clear();
        core.heard(now, ToClient::Pong, &mut out);
        if !requests(&out).is_empty() {
            assert_eq!(requests(&out), [(1, 0)]);
            tried.push(now);
            core.heard(now, refused(1), &mut out);
        }
    }
    let pauses: Vec<u128> = tried.windows(2).map(|two| two[1].since(two[0]).as_millis()).collect();
    assert_eq!(pauses, [20, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    // Once the mark has moved, each answer lets two more be sent.
    out.clear();
    MEMBERS.iter().for_each(|&node| core.told_at(now, node, MemberCall::Of(CallId(0)), ok(9), &mut out));
    assert_eq!(requests(&out), [(1, 1), (2, 1)]);
    core.heard(now, answered(1), &mut out);
    core.heard(now, answered(2), &mut out);
    assert_eq!(requests(&out)[2..], [3, 4, 5, 6].map(|number| (number, 1)));
}

#[test]
fn a_command_for_all_waits_for_a_report_of_members_and_takes_one_of_an_earlier_view_if_there_is_no_other() {
    let mut core = ClientCore::new("bank".into(), Contacts::new(vec![target(1)], 0), Rng::with_seed(1));
    let mut out = Vec::new();
    core.learn(members(9, &[1, 2, 3]));
    core.call(NOW, CallId(0), Ask::All(vec![7]), LATER, &mut out);
    core.call(NOW, CallId(1), Ask::At(NodeId(2), Consistency::Local, vec![1]), LATER, &mut out);
    core.connected(NOW, &mut out);
    welcomed(&mut core, 8, &[], &mut out);
    open(&mut core, &mut out);
    assert_eq!((requests(&out), core.deadline().is_some()), (vec![], true), "nobody would answer");
    core.heard(NOW, ToClient::Holders(members(8, &[1, 2])), &mut out);
    assert!(out.contains(&ClientEffect::Sent(CallId(0), [1, 2].map(NodeId).to_vec())), "{out:?}");
    assert_eq!(requests(&out), [(0, 0)]);
    out.clear();
    core.heard(NOW, ToClient::Holders(members(9, &[1, 2, 3])), &mut out);
    core.heard(NOW, ToClient::Holders(members(8, &[1, 2])), &mut out);
    core.call(NOW, CallId(2), Ask::All(vec![7]), LATER, &mut out);
    assert!(out.contains(&ClientEffect::Sent(CallId(2), MEMBERS.to_vec())), "a node that is behind: {out:?}");
}

#[test]
fn a_member_that_leaves_a_group_founded_anew_is_gone() {
    let mut out = Vec::new();
    let mut core = ClientCore::new("bank".into(), Contacts::new(vec![target(1)], 0), Rng::with_seed(1));
    core.call(NOW, CallId(0), Ask::Nearest(Consistency::Local, vec![1]), LATER, &mut out);
    welcome(&mut core, 500, &[1, 2, 3], &mut out);
    // All are tried in vain.
    (0..3).for_each(|_| core.broken(NOW, "cut".into(), &mut out));
    welcome(&mut core, 1, &[1, 2], &mut out);
    core.call(NOW, CallId(1), Ask::All(vec![7]), LATER, &mut out);
    open(&mut core, &mut out);
    assert!(out.contains(&ClientEffect::Sent(CallId(1), [1, 2].map(NodeId).to_vec())), "{out:?}");
    core.heard(NOW, ToClient::Holders(members(2, &[1])), &mut out);
    let gone = |effect: &ClientEffect| matches!(effect, ClientEffect::Reply(_, NodeId(2), Err(ClientError::Gone(_))));
    assert!(out.iter().any(gone), "{out:?}");
}

#[test]
fn a_late_refusal_to_listen_ends_no_call_of_the_next_session() {
    let (mut core, mut out) = (ClientCore::pinned("bank".into(), target(2), Rng::with_seed(1)), Vec::new());
    let next = SessionId { number: 2, ..SESSION };
    core.call(NOW, CallId(0), Ask::Answer(SESSION, 4), LATER, &mut out);
    welcome(&mut core, 1, &[1, 2], &mut out);
    core.call(NOW, CallId(1), Ask::Answer(next, 5), LATER, &mut out);
    assert!(out.contains(&ClientEffect::Send(ToNode::Listen { session: next, first: 5 })), "{out:?}");
    out.clear();
    core.heard(NOW, ToClient::Refused { number: 4, why: Refusal::Unknown }, &mut out);
    assert_eq!(out, []);
    core.heard(NOW, ToClient::Refused { number: 5, why: Refusal::Unknown }, &mut out);
    assert!(out.contains(&ClientEffect::Resolve(CallId(1), Err(ClientError::SessionEnded))), "{out:?}");
}

#[test]
fn a_connection_to_one_member_listens_once_and_rests_when_it_has_no_call() {
    let (mut core, mut out) = (ClientCore::pinned("bank".into(), target(2), Rng::with_seed(1)), Vec::new());
    for number in [4, 5, 6, 7] {
        core.call(NOW, CallId(number), Ask::Answer(SESSION, number), LATER, &mut out);
    }
    assert!(out.contains(&ClientEffect::Dial(target(2))));
    welcome(&mut core, 1, &[1, 2], &mut out);
    core.heard(NOW, answered(4), &mut out);
    core.heard(NOW, answered(9), &mut out);
    core.heard(NOW, ToClient::NotApplied { number: 6 }, &mut out);
    let listens = |out: &[ClientEffect]| -> Vec<u64> {
        let listen = |effect: &ClientEffect| match effect {
            ClientEffect::Send(ToNode::Listen { session: SESSION, first }) => Some(*first),
            _ => None,
        };
        out.iter().filter_map(listen).collect()
    };
    assert_eq!(listens(&out), [4]);
    assert!(out.contains(&ClientEffect::Resolve(CallId(4), ok(9))));
    let is_gone = |effect: &ClientEffect| matches!(effect, ClientEffect::Resolve(CallId(6), Err(ClientError::Gone(_))));
    assert!(out.iter().any(is_gone), "{out:?}");
    // It listens again on another connection, from the first that has no answer.
    out.clear();
    core.broken(NOW, "cut".into(), &mut out);
    welcome(&mut core, 1, &[1, 2], &mut out);
    assert_eq!(listens(&out), [5]);
    core.heard(NOW, ToClient::Refused { number: 5, why: Refusal::Unknown }, &mut out);
    assert!(out.contains(&ClientEffect::Resolve(CallId(7), Err(ClientError::SessionEnded))), "{out:?}");
    let mut now = NOW;
    while let Some(at) = core.deadline() {
        now = at;
        core.heard(now, ToClient::Pong, &mut out);
    }
    assert!(out.contains(&ClientEffect::HangUp) && now.since(NOW) == Duration::from_secs(30), "{now:?}");
    out.clear();
    core.call(now, CallId(10), Ask::Answer(SESSION, 10), LATER, &mut out);
    assert_eq!(out, [ClientEffect::Dial(target(2))]);
}

#[test]
fn a_query_goes_to_the_member_that_was_chosen_and_fails_if_there_is_none() {
    let mut core = ClientCore::new("bank".into(), Contacts::new(vec![target(1)], 0), Rng::with_seed(1));
    let mut out = Vec::new();
    for (id, node) in [(0, 2), (1, 9), (2, 3)] {
        core.call(NOW, CallId(id), Ask::At(NodeId(node), Consistency::Local, vec![id as u8]), LATER, &mut out);
    }
    assert_eq!(asked(&out), [], "the members are not known yet");
    welcome(&mut core, 1, &[1, 2, 3], &mut out);
    let query = |id, node| (node, MemberCall::Of(CallId(id)), Ask::Query(Consistency::Local, vec![id as u8]));
    assert_eq!(asked(&out), [query(0, 2), query(2, 3)]);
    core.told_at(NOW, NodeId(2), MemberCall::Of(CallId(0)), ok(5), &mut out);
    core.heard(NOW, ToClient::Holders(members(2, &[1, 2])), &mut out);
    let resolved = |id| out.iter().find(|effect| matches!(effect, ClientEffect::Resolve(of, _) if *of == CallId(id)));
    assert_eq!(resolved(0), Some(&ClientEffect::Resolve(CallId(0), ok(5))));
    for id in [1, 2] {
        assert!(matches!(resolved(id), Some(ClientEffect::Resolve(_, Err(ClientError::Query(_))))), "{out:?}");
    }
}

#[test]
fn the_nearest_member_is_asked_and_the_next_one_when_it_fails() {
    let mut core = ClientCore::new("bank".into(), Contacts::new(vec![target(1)], 0), Rng::with_seed(1));
    let mut out = Vec::new();
    let nearest = Ask::Nearest(Consistency::Local, vec![1]);
    core.call(NOW, CallId(0), nearest.clone(), LATER, &mut out);
    welcome(&mut core, 1, &[1, 2, 3], &mut out);
    assert_eq!(asked(&out), [1, 2, 3].map(|node| (node, MemberCall::Probe, Ask::Probe)));
    let query = |id, node| (node, MemberCall::Of(CallId(id)), Ask::TryQuery(Consistency::Local, vec![1]));
    let mut probed = |node: u32, nanos: Option<u64>| {
        out.clear();
        let way = nanos.map(|nanos| nanos.to_le_bytes().to_vec()).ok_or(ClientError::Query("no".into()));
        core.told_at(NOW, NodeId(node), MemberCall::Probe, way, &mut out);
        asked(&out)
    };
    assert_eq!(probed(2, Some(500)), [query(0, 2)], "it is the first that answers");
    assert_eq!(probed(3, Some(100)), []);
    assert_eq!(probed(1, None), []);
    out.clear();
    core.call(NOW, CallId(1), nearest, LATER, &mut out);
    assert_eq!(asked(&out), [(1, MemberCall::Probe, Ask::Probe), query(1, 3)]);
    for (node, next) in [(3, Some(2)), (2, None)] {
        out.clear();
        let failed = Err(ClientError::Gone("broken".into()));
        core.told_at(NOW, NodeId(node), MemberCall::Of(CallId(1)), failed, &mut out);
        assert_eq!(asked(&out), next.map(|next| query(1, next)).into_iter().collect::<Vec<_>>());
    }
    // The last one is asked once it has answered the probe, or not.
    core.told_at(NOW, NodeId(1), MemberCall::Probe, Err(ClientError::Query("no".into())), &mut out);
    assert_eq!(asked(&out), [query(1, 1)]);
    let failed = Err(ClientError::Gone("the last".into()));
    core.told_at(NOW, NodeId(1), MemberCall::Of(CallId(1)), failed, &mut out);
    let is_last = |effect: &ClientEffect| matches!(effect, ClientEffect::Resolve(CallId(1), Err(why)) if why.to_string().contains("the last"));
    assert!(out.iter().any(is_last), "{out:?}");
    out.clear();
    core.call(NOW, CallId(2), Ask::Nearest(Consistency::Local, vec![1]), LATER, &mut out);
    core.told_at(NOW, NodeId(3), MemberCall::Probe, Ok(100_u64.to_le_bytes().to_vec()), &mut out);
    out.clear();
    let refused = ClientError::Query("no such query".into());
    core.told_at(NOW, NodeId(3), MemberCall::Of(CallId(2)), Err(refused.clone()), &mut out);
    assert_eq!(out, [ClientEffect::Resolve(CallId(2), Err(refused))], "no other would answer it");
}

#[test]
fn a_member_of_this_host_is_nearest_without_a_measurement() {
    let mut core = ClientCore::new("bank".into(), Contacts::new(vec![target(1)], 0), Rng::with_seed(1));
    let mut out = Vec::new();
    core.call(NOW, CallId(0), Ask::Nearest(Consistency::Local, vec![1]), LATER, &mut out);
    core.connected(NOW, &mut out);
    let addresses = |address: &str| vec![address.to_owned()];
    let here = vec![(1, addresses("10.0.0.1:1")), (2, addresses("[::1]:2")), (3, addresses("127.0.0.1:3"))];
    core.heard(NOW, ToClient::Holders(Members { epoch: 1, members: here }), &mut out);
    let queried = asked(&out).into_iter().filter(|(_, call, _)| *call != MemberCall::Probe).map(|(node, ..)| node);
    assert_eq!(queried.collect::<Vec<_>>(), [2]);
}
