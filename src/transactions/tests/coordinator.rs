//! Tests of the rules where an order of messages is needed that is rare in the world of messages.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::Time;
use squall_ordered::log::Hlc;

use crate::{
    clients::client::ClientError,
    transactions::{
        Refusal, Scope, TransactionAnswer, TransactionCommand, TransactionId, TransactionReply,
        coordinator::{Coordinator, Effect},
        request::{Ask, RequestFailure, ShardCommands},
        round::{Next, Round},
    },
};

const START: Time = Time::ZERO;

fn coordinator() -> Coordinator {
    Coordinator::new(1, 2, START, Hlc(0), Rng::with_seed(1))
}

fn scope(shards: &[u32]) -> Scope {
    Scope { id: TransactionId { coordinator: 7, number: 1 }, shards: shards.to_vec(), expires: 30_000_000_000 }
}

/// The commands that are to be sent, with their calls and shards.
fn sent(coordinator: &mut Coordinator) -> Vec<(u64, u32, TransactionCommand)> {
    let command = |effect| match effect {
        Effect::Command { call, shard, command, .. } => Some((call, shard, command)),
        _ => None,
    };
    coordinator.take_effects().into_iter().filter_map(command).collect()
}

/// Has a transaction settled that a shard names as stale, and returns the calls.
fn settle(coordinator: &mut Coordinator, now: Time, scope: Scope) -> Vec<u64> {
    coordinator.watch(0);
    let effects = coordinator.take_effects();
    let [Effect::Query { call, .. }] = effects[..] else { panic!("{effects:?}") };
    coordinator.answered(now, call, Ok(TransactionAnswer::Stale(vec![scope])));
    sent(coordinator).into_iter().map(|(call, ..)| call).collect()
}

#[test]
fn answers_to_a_round_that_was_given_up_count_for_no_other() {
    let mut coordinator = coordinator();
    let first = settle(&mut coordinator, START, scope(&[0, 1]));
    coordinator.replied(START, first[0], Ok(TransactionReply::Prepared));
    let now = START + Duration::from_secs(41);
    coordinator.tick(now);
    let second = settle(&mut coordinator, now, scope(&[0, 1]));
    coordinator.replied(now, second[0], Ok(TransactionReply::Prepared));
    coordinator.replied(now, first[1], Ok(TransactionReply::Prepared));
    assert!(sent(&mut coordinator).is_empty(), "the second question has no answer yet");
    coordinator.replied(now, second[1], Ok(TransactionReply::Prepared));
    let decides = sent(&mut coordinator);
    assert!(decides.iter().all(|(.., command)| matches!(command, TransactionCommand::Decide { commits: true, .. })));
    coordinator.replied(now, decides[0].0, Ok(TransactionReply::Applied(Vec::new())));
    assert!(sent(&mut coordinator).is_empty(), "one shard has not carried it out");
    coordinator.replied(now, decides[1].0, Ok(TransactionReply::Applied(Vec::new())));
    let forgets = sent(&mut coordinator);
    assert!(
        forgets.len() == 2 && forgets.iter().all(|(.., command)| matches!(command, TransactionCommand::Forget { .. }))
    );
}

#[test]
fn a_vote_is_no_answer_to_the_outcome() {
    let mut round = Round::settlement(scope(&[0, 1]), START);
    round.heard(0, Ok(TransactionReply::Prepared));
    assert_eq!(round.heard(1, Ok(TransactionReply::Prepared)), [Next::Send(0), Next::Send(1)]);
    round.heard(0, Ok(TransactionReply::Applied(Vec::new())));
    for late in [TransactionReply::Prepared, TransactionReply::Refused(Refusal::Full)] {
        assert_eq!((round.heard(1, Ok(late)), round.is_over()), (Vec::new(), false));
    }
    round.heard(1, Ok(TransactionReply::Applied(Vec::new())));
    assert!(round.is_over());
}

#[test]
fn a_transaction_of_shards_that_do_not_exist_is_left_alone() {
    assert!(settle(&mut coordinator(), START, scope(&[0, 999])).is_empty());
}

#[test]
fn what_one_shard_has_carried_out_is_forgotten_by_all_though_another_has_forgotten_it_before() {
    let mut coordinator = coordinator();
    let calls = settle(&mut coordinator, START, scope(&[0, 1]));
    coordinator.replied(START, calls[0], Ok(TransactionReply::Gone));
    coordinator.replied(START, calls[1], Ok(TransactionReply::Committed));
    let shards: Vec<_> = sent(&mut coordinator)
        .into_iter()
        .map(|(_, shard, command)| (shard, matches!(command, TransactionCommand::Forget { .. })))
        .collect();
    assert_eq!(shards, [(0, true), (1, true)]);
}

#[test]
fn a_coordinator_gets_the_replies_of_what_was_carried_out_before_it_asked() {
    let parts = vec![vec![vec![1]]; 2];
    let mut round = Round::attempt(scope(&[0, 1]), parts, 1, START);
    let unanswered = || Err(ClientError::Deadline { sent: true, trouble: String::new() });
    assert_eq!(round.heard(0, unanswered()), [Next::Again(0, 0)]);
    round.heard(1, Ok(TransactionReply::Prepared));
    assert_eq!(round.heard(0, Ok(TransactionReply::Committed)), [Next::Send(0), Next::Send(1)]);
    round.heard(0, Ok(TransactionReply::Applied(vec![vec![5]])));
    round.heard(1, Ok(TransactionReply::Applied(vec![vec![6]])));
    assert!(round.is_over());
    assert_eq!(round.take_replies(), Ok(vec![vec![vec![5]], vec![vec![6]]]));
}

#[test]
fn a_shard_that_keeps_no_vote_is_asked_again_and_ever_less_often() {
    let mut round = Round::settlement(scope(&[0, 1]), START);
    for (times, refusal) in (0..).zip([Refusal::Full, Refusal::Expired { time: 5 }, Refusal::Full]) {
        assert_eq!(round.heard(0, Ok(TransactionReply::Refused(refusal))), [Next::Again(0, times)]);
    }
    assert_eq!(round.outcome, None);
}

#[test]
fn a_reply_of_one_shard_that_is_too_long_may_be_a_refusal() {
    let mut coordinator = coordinator();
    let ask = Ask::Commands(vec![ShardCommands { shard: 1, commands: vec![vec![1]] }]);
    coordinator.request(START, ask, Duration::from_secs(1));
    let calls = sent(&mut coordinator);
    coordinator.replied(START, calls[0].0, Err(ClientError::NoReply));
    let effects = coordinator.take_effects();
    assert!(matches!(effects[..], [Effect::Resolve { result: Err(RequestFailure::Unknown(1, _)), .. }]), "{effects:?}");
}
