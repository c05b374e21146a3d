//! Tests of one replica: its votes, locks, timers and memory.

use std::{collections::BTreeSet, io};

use rkyv::{Archived, rancor};
use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::log::Hlc;

use crate::{
    clients::query::QueryService,
    replica::{
        replicated::{Applied, Replicated},
        snapshot::Snapshot,
    },
    transactions::{
        Keys, Refusal, Scope, TransactionAnswer, TransactionCommand, TransactionId, TransactionQuery, TransactionReply,
        TransactionService, Transactional,
    },
};

/// A counter for each of 256 keys, which may be decreased below zero by nobody; and a timer.
#[derive(Debug, Default)]
struct Counters {
    counts: Vec<(u8, i64)>,
    wake_at: Option<u64>,
    /// The sum of the counts at each wake-up.
    woken: Vec<i64>,
}

impl Counters {
    fn count(&self, key: u8) -> i64 {
        self.counts.iter().find(|(at, _)| *at == key).map_or(0, |(_, count)| *count)
    }
}

impl Replicated for Counters {
    type Command = (u8, i64);
    type Reply = i64;

    fn apply(&mut self, command: &Archived<(u8, i64)>, _at: &Applied) -> i64 {
        let (key, count) = (command.0, self.count(command.0) + command.1.to_native());
        self.counts.retain(|(at, _)| *at != key);
        self.counts.push((key, count));
        count
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes([])
    }

    fn restore(&mut self, _from: &mut dyn io::Read) -> io::Result<()> {
        Ok(())
    }

    fn wake_at(&self) -> Option<Hlc> {
        self.wake_at.map(Hlc)
    }

    fn woken(&mut self, _at: &Applied) {
        self.wake_at = None;
        self.woken.push(self.counts.iter().map(|(_, count)| count).sum());
    }
}

impl QueryService for Counters {
    type Query = u8;
    type Answer = i64;

    fn answer(&self, key: &u8) -> i64 {
        self.count(*key)
    }
}

impl TransactionService for Counters {
    fn keys(command: &Archived<(u8, i64)>, keys: &mut Keys) {
        match command.1.to_native() {
            0 => keys.read([command.0]),
            _ => keys.write([command.0]),
        }
    }

    fn query_keys(key: &u8, keys: &mut Keys) {
        keys.read([*key]);
    }

    fn check(&self, command: &Archived<(u8, i64)>) -> Result<(), i64> {
        let count = self.count(command.0);
        if count + command.1.to_native() < 0 { Err(count) } else { Ok(()) }
    }
}

/// A second, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

struct Shard {
    replica: Transactional<Counters>,
    time: u64,
}

impl Shard {
    fn new() -> Shard {
        Shard { replica: Transactional::new(0, Counters::default()), time: 1000 * SECOND }
    }

    fn at(&mut self) -> Applied {
        self.time += 1;
        Applied {
            epoch: Epoch(1),
            seq: Seq(1),
            sender: NodeId(1),
            time: Hlc(self.time),
            version: None,
            follow_up: None,
        }
    }

    fn apply(&mut self, command: &TransactionCommand) -> TransactionReply {
        let (at, bytes) = (self.at(), rkyv::to_bytes::<rancor::Error>(command).unwrap());
        self.replica.apply(rkyv::access::<Archived<TransactionCommand>, rancor::Error>(&bytes).unwrap(), &at)
    }

    fn add(&mut self, commands: &[(u8, i64)]) -> TransactionReply {
        self.apply(&TransactionCommand::Apply(encoded(commands)))
    }

    fn prepare(&mut self, number: u64, commands: &[(u8, i64)]) -> TransactionReply {
        let scope = self.scope(number);
        self.apply(&TransactionCommand::Prepare { scope, commands: encoded(commands) })
    }

    fn decide(&mut self, number: u64, commits: bool) -> TransactionReply {
        self.apply(&TransactionCommand::Decide { id: id(number), commits })
    }

    fn scope(&self, number: u64) -> Scope {
        Scope { id: id(number), shards: vec![0, 1], expires: 1010 * SECOND }
    }

    fn settle(&mut self, number: u64) -> TransactionReply {
        self.apply(&TransactionCommand::Settle(self.scope(number)))
    }

    fn forget(&mut self, number: u64, by_coordinator: bool) {
        self.apply(&TransactionCommand::Forget { ids: vec![id(number)], by_coordinator });
    }

    fn query(&self, key: u8, ignores_locks: bool) -> TransactionAnswer {
        let query = TransactionQuery::Ask { query: vec![key], ignores_locks };
        let bytes = rkyv::to_bytes::<rancor::Error>(&query).unwrap();
        self.replica.answer(rkyv::access::<Archived<TransactionQuery>, rancor::Error>(&bytes).unwrap())
    }

    fn stale(&self) -> usize {
        self.stale_from(0).len()
    }

    fn stale_from(&self, start: u64) -> Vec<Scope> {
        let bytes = rkyv::to_bytes::<rancor::Error>(&TransactionQuery::Stale { start }).unwrap();
        match self.replica.answer(rkyv::access::<Archived<TransactionQuery>, rancor::Error>(&bytes).unwrap()) {
            TransactionAnswer::Stale(scopes) => scopes,
            other => panic!("{other:?}"),
        }
    }
}

fn id(number: u64) -> TransactionId {
    TransactionId { coordinator: 7, number }
}

fn encoded(commands: &[(u8, i64)]) -> Vec<Vec<u8>> {
    commands.iter().map(|command| rkyv::to_bytes::<rancor::Error>(command).unwrap().to_vec()).collect()
}

fn applied(replies: &[i64]) -> TransactionReply {
    TransactionReply::Applied(replies.iter().map(|reply| reply.to_le_bytes().to_vec()).collect())
}

const SETTLED: TransactionReply = TransactionReply::Refused(Refusal::Settled);

fn is_busy(reply: &TransactionReply, number: u64) -> bool {
    matches!(reply, TransactionReply::Refused(Refusal::Busy(holder)) if holder.scope.id == id(number))
}

#[test]
fn commands_of_one_shard_are_applied_together_or_not_at_all() {
    let mut shard = Shard::new();
    assert_eq!(shard.add(&[(1, 5), (2, 7)]), applied(&[5, 7]));
    let refused = shard.add(&[(1, 1), (2, -8)]);
    let expected = Refusal::Service { command: 1, reply: 7i64.to_le_bytes().to_vec() };
    assert_eq!(refused, TransactionReply::Refused(expected));
    assert_eq!(shard.add(&[(1, 0), (2, 0)]), applied(&[5, 7]));
    // The check of the second would not see the first.
    assert_eq!(shard.add(&[(1, -5), (1, -5)]), TransactionReply::Refused(Refusal::Overlap { command: 1 }));
    let invalid = shard.apply(&TransactionCommand::Apply(vec![vec![1]]));
    assert_eq!(invalid, TransactionReply::Refused(Refusal::Invalid));
    assert!(shard.replica.table_is_empty());
}

#[test]
fn a_prepared_transaction_locks_its_keys_until_it_is_decided() {
    let mut shard = Shard::new();
    shard.add(&[(1, 5)]);
    assert_eq!(shard.prepare(1, &[(1, -5), (2, 0)]), TransactionReply::Prepared);
    assert!(is_busy(&shard.add(&[(1, 0)]), 1) && is_busy(&shard.add(&[(2, 1)]), 1));
    assert!(is_busy(&shard.prepare(2, &[(2, 1)]), 1));
    assert_eq!(shard.add(&[(2, 0), (3, 1)]), applied(&[0, 1]));
    assert!(matches!(shard.query(1, false), TransactionAnswer::Busy(_)));
    assert!(matches!(shard.query(1, true), TransactionAnswer::Answered(_)));
    assert!(matches!(shard.query(2, false), TransactionAnswer::Answered(_)));
    assert_eq!(shard.decide(1, true), applied(&[0, 0]));
    assert_eq!(shard.prepare(3, &[(1, 1)]), TransactionReply::Prepared);
    assert_eq!(shard.decide(3, false), TransactionReply::Done);
    assert_eq!(shard.add(&[(1, 0)]), applied(&[0]));
}

#[test]
fn a_vote_never_changes() {
    let mut shard = Shard::new();
    assert_eq!(shard.settle(1), SETTLED);
    assert_eq!([shard.prepare(1, &[(1, 1)]), shard.settle(1), shard.decide(1, false)], [SETTLED; 3]);
    assert_eq!(shard.prepare(2, &[(1, 1)]), TransactionReply::Prepared);
    assert_eq!(
        [shard.settle(2), shard.prepare(2, &[(1, 1)])],
        [TransactionReply::Prepared, TransactionReply::Prepared]
    );
    assert_eq!(shard.decide(2, true), applied(&[1]));
    // All that comes late gets the same outcome, and applies nothing.
    let late = [shard.decide(2, true), shard.settle(2), shard.decide(2, false)];
    assert_eq!(late, [applied(&[1]), TransactionReply::Committed, applied(&[1])]);
    assert_eq!(shard.add(&[(1, 0)]), applied(&[1]));
}

#[test]
fn what_all_shards_have_carried_out_is_forgotten_by_its_coordinator_or_after_its_expiry() {
    let mut shard = Shard::new();
    for number in [1, 2] {
        shard.prepare(number, &[(1, 1)]);
        shard.forget(number, true);
        assert_eq!(shard.settle(number), TransactionReply::Prepared, "a vote is not forgotten");
        shard.decide(number, true);
    }
    shard.forget(1, false);
    assert_eq!(shard.settle(1), TransactionReply::Committed, "its coordinator may ask still");
    shard.forget(1, true);
    shard.time = 1010 * SECOND + 1;
    shard.forget(2, false);
    assert_eq!([shard.settle(1), shard.settle(2)], [TransactionReply::Gone, TransactionReply::Gone]);
    assert!(shard.replica.table_is_empty());
}

#[test]
fn a_refusal_is_kept_until_the_transaction_has_expired() {
    let mut shard = Shard::new();
    shard.settle(1);
    shard.time = 1010 * SECOND - 2;
    assert_eq!(shard.prepare(1, &[(1, 1)]), SETTLED);
    assert!(!shard.replica.table_is_empty());
    shard.time = 1010 * SECOND;
    let refused = shard.prepare(1, &[(1, 1)]);
    assert_eq!(refused, TransactionReply::Refused(Refusal::Expired { time: 1010 * SECOND + 1 }));
    assert!(shard.replica.table_is_empty());
    assert_eq!(shard.settle(1), TransactionReply::Gone);
}

#[test]
fn a_transaction_that_expires_too_late_is_refused() {
    let mut shard = Shard::new();
    shard.time -= 200 * SECOND;
    for refused in [shard.prepare(1, &[(1, 1)]), shard.settle(1)] {
        assert!(matches!(refused, TransactionReply::Refused(Refusal::Expired { .. })), "{refused:?}");
    }
    assert!(shard.replica.table_is_empty(), "no vote is kept for longer than a transaction can need it");
}

#[test]
fn a_transaction_that_its_shards_could_not_settle_is_refused() {
    let mut shard = Shard::new();
    for shards in [vec![], vec![0], vec![1, 2], vec![1, 0], vec![0, 0, 1], (0..2000).collect()] {
        let scope = Scope { shards, ..shard.scope(1) };
        let prepare = TransactionCommand::Prepare { scope: scope.clone(), commands: encoded(&[(1, 1)]) };
        for command in [prepare, TransactionCommand::Settle(scope)] {
            assert_eq!(shard.apply(&command), TransactionReply::Refused(Refusal::Invalid), "{command:?}");
        }
    }
    assert_eq!(shard.add(&[(1, 1)]), applied(&[1]), "nothing is locked");
    assert!(shard.replica.table_is_empty());
}

#[test]
fn any_stale_transaction_is_named_at_some_time() {
    let mut shard = Shard::new();
    for number in 0..150 {
        assert_eq!(shard.prepare(number, &[(number as u8, 1)]), TransactionReply::Prepared);
    }
    for number in 0..70 {
        shard.decide(number, true);
    }
    shard.time = 1010 * SECOND;
    shard.add(&[(200, 1)]);
    let (mut seen, mut most) = (BTreeSet::new(), 0);
    for start in 0..80 {
        let scopes = shard.stale_from(start);
        most = most.max(scopes.len());
        seen.extend(scopes.into_iter().map(|scope| scope.id.number));
    }
    assert_eq!((seen.len(), most), (150, 128), "old locks and what was carried out, of each as many as an answer has");
}

#[test]
fn old_locks_and_expired_transactions_are_said_to_be_stale_in_time() {
    let mut shard = Shard::new();
    shard.prepare(1, &[(1, 1)]);
    let Some(Hlc(wake_at)) = shard.replica.wake_at() else { panic!("it wants to be woken") };
    assert_eq!((shard.stale(), wake_at), (0, shard.time + SECOND / 10));
    shard.time = wake_at;
    let at = shard.at();
    shard.replica.woken(&at);
    assert_eq!((shard.stale(), shard.replica.wake_at()), (1, None));
    shard.decide(1, true);
    assert_eq!((shard.stale(), shard.replica.wake_at()), (0, Some(Hlc(1010 * SECOND + 1))));
    shard.time = 1010 * SECOND;
    let at = shard.at();
    shard.replica.woken(&at);
    assert_eq!((shard.stale(), shard.replica.wake_at()), (1, None));
}

#[test]
fn a_timer_waits_for_locks_and_further_locks_wait_for_it() {
    let mut shard = Shard::new();
    shard.prepare(1, &[(1, 1)]);
    let due = shard.time + 10;
    shard.replica.set_timer(due);
    assert_eq!(shard.replica.wake_at(), Some(Hlc(shard.time + SECOND / 10)), "not of the service");
    shard.time = due;
    assert!(is_busy(&shard.prepare(2, &[(2, 1)]), 1));
    assert_eq!(shard.prepare(1, &[(1, 1)]), TransactionReply::Prepared);
    let at = shard.at();
    shard.replica.woken(&at);
    assert!(shard.replica.woken.is_empty());
    shard.decide(1, true);
    assert_eq!(shard.replica.wake_at(), Some(Hlc(due)));
    // It comes before the next locks, at the latest.
    assert_eq!(shard.prepare(3, &[(2, 1)]), TransactionReply::Prepared);
    assert_eq!(shard.replica.woken, [1]);
}

#[test]
fn a_full_table_refuses_transactions_and_forgets_no_vote() {
    let mut shard = Shard::new();
    for number in 0..1 << 16 {
        assert_eq!(shard.settle(number), SETTLED);
    }
    let full = TransactionReply::Refused(Refusal::Full);
    assert_eq!([shard.prepare(1 << 16, &[(1, 1)]), shard.settle(1 << 16)], [full.clone(), full]);
    assert_eq!(shard.settle(5), SETTLED);
    assert_eq!(shard.add(&[(1, 1)]), applied(&[1]));
    shard.time = 1010 * SECOND;
    assert_eq!(shard.add(&[(1, 1)]), applied(&[2]));
    assert!(shard.replica.table_is_empty());
}

impl Transactional<Counters> {
    fn table_is_empty(&self) -> bool {
        self.remembered() == 0
    }

    fn set_timer(&mut self, at: u64) {
        self.service_mut().wake_at = Some(at);
    }
}
