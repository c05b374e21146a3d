//! Errors that a store could have, planted in histories. Both checkers must find each, and must find nothing without
//! it.

use squall_transactions::{
    Condition, Execution, Key, Moment, Operation, Outcome, Placement, Reply, ShardId, Transaction, Value,
    history::{Checked, History, KnownOutcome, Record, Violation},
};

use crate::serial;

/// Two keys in different shards.
const A: &str = "alice";
const B: &str = "bob";

fn placement() -> Placement {
    let placement = Placement::new(2, 2, 1).expect("it is sound");
    assert_ne!(shard(&placement, A), shard(&placement, B));
    placement
}

fn shard(placement: &Placement, key: &str) -> ShardId {
    placement.shard_of(&Key::from(key))
}

/// The times of a transaction's submission and end, and its time stamp.
struct When(u64, u64, u64);

/// Builds a history.
struct Story {
    history: History,
    /// The last transaction, and its number.
    last: (u64, Transaction),
    executions: Vec<Execution>,
}

impl Story {
    fn new() -> Story {
        let last = (u64::MAX, Transaction::new());
        Story { history: History::new(placement()), last, executions: Vec::new() }
    }

    fn record(mut self, submitted: u64, ended: u64, transaction: Transaction, seen: KnownOutcome) -> Story {
        let number = self.last.0.wrapping_add(1);
        self.last = (number, transaction.clone());
        self.history.record(Record { client: 0, number, submitted, ended, transaction, seen });
        self
    }

    fn committed(self, When(submitted, ended, stamp): When, transaction: Transaction, replies: &[Reply]) -> Story {
        let outcome = Outcome { at: moment(stamp), replies: replies.to_vec() };
        self.record(submitted, ended, transaction, KnownOutcome::Committed(outcome))
    }

    fn aborted(self, submitted: u64, ended: u64, transaction: Transaction) -> Story {
        self.record(submitted, ended, transaction, KnownOutcome::Aborted)
    }

    /// Adds a transaction whose end its client does not know.
    fn unknown(self, submitted: u64, transaction: Transaction) -> Story {
        self.record(submitted, u64::MAX, transaction, KnownOutcome::Unknown)
    }

    /// A transaction whose record is missing, since its client has failed.
    fn unheard_of(mut self, transaction: Transaction) -> Story {
        self.last = (self.last.0.wrapping_add(1), transaction);
        self
    }

    /// Both replicas have carried out the last transaction, which has one operation for each.
    fn carried_out(self, stamp: u64, replies: [Reply; 2]) -> Story {
        let [a, b] = replies;
        self.carried_out_at(A, stamp, a).carried_out_at(B, stamp, b)
    }

    /// The replica with this key has carried out its part of the last transaction.
    fn carried_out_at(mut self, key: &str, stamp: u64, reply: Reply) -> Story {
        let (number, transaction) = &self.last;
        let of_key = |operation: &&Operation| operation.key().as_str() == key;
        self.executions.push(Execution {
            at: moment(stamp),
            number: *number,
            shard: shard(&placement(), key),
            shards: [A, B].map(|key| shard(&placement(), key)).to_vec(),
            operations: transaction.operations().iter().filter(of_key).cloned().collect(),
            replies: vec![reply],
        });
        self
    }

    /// Adds the executions of both replicas to the history, if there are any.
    fn learn(&mut self) -> Result<(), Violation> {
        let executions = std::mem::take(&mut self.executions);
        let is_silent = executions.is_empty();
        let of = |member| executions.iter().filter(move |execution| execution.shard.0 == member).cloned();
        (0..2).filter(|_| !is_silent).try_for_each(|member| self.history.learn(member as usize, of(member)))
    }

    fn check(&mut self) -> Result<Checked, Violation> {
        self.learn().and_then(|()| self.history.check())
    }

    /// Checks that both checkers find no error.
    fn sound(mut self) -> Checked {
        let checked = self.check();
        assert!(serial::is_explained(&self.history.entries(), &placement()), "there is an order");
        checked.unwrap_or_else(|violation| panic!("{violation}"))
    }

    /// Checks that both checkers find an error.
    fn refused(mut self) -> Violation {
        let checked = self.check();
        assert!(!serial::is_explained(&self.history.entries(), &placement()), "there is no order");
        checked.expect_err("the order of moments is none")
    }

    /// Checks that only the checker that knows the replicas' executions finds an error.
    fn given_away(mut self) -> Violation {
        let checked = self.check();
        assert!(serial::is_explained(&self.history.entries(), &placement()), "there is an order");
        checked.expect_err("a replica gives it away")
    }
}

fn moment(stamp: u64) -> Moment {
    Moment { stamp, sender: 0 }
}

/// A transfer from one account to the other.
fn transfer() -> Transaction {
    Transaction::new().add(A, -5).add(B, 5)
}

fn look() -> Transaction {
    Transaction::new().get(A).get(B)
}

fn found(value: i64) -> Reply {
    Reply::Value(Some(Value::Number(value)))
}

const NOTHING: Reply = Reply::Value(None);

#[test]
fn a_shard_that_executes_out_of_order() {
    let both = |first: [i64; 2], second: [i64; 2]| {
        Story::new().committed(When(1, 9, 101), transfer(), &first.map(Reply::Sum)).committed(
            When(2, 8, 102),
            transfer(),
            &second.map(Reply::Sum),
        )
    };
    both([-5, 5], [-10, 10]).sound();
    let violation = both([-5, 10], [-10, 5]).refused();
    assert!(matches!(violation, Violation::Reply { told: Some(Reply::Sum(10)), expected: Reply::Sum(5), .. }));
    // Another order than that of time stamps explains this, so only the store's own rule is broken.
    let other_way = both([-10, 10], [-5, 5]);
    assert!(serial::is_explained(&other_way.history.entries(), &placement()));
    assert!(matches!(other_way.history.check(), Err(Violation::Reply { .. })));
}

#[test]
fn a_part_that_is_dropped_at_one_shard() {
    let then_look = |replies: [Reply; 2]| {
        let story = Story::new().committed(When(1, 2, 101), transfer(), &[-5, 5].map(Reply::Sum));
        story.committed(When(3, 4, 102), look(), &replies)
    };
    then_look([found(-5), found(5)]).sound();
    assert!(matches!(then_look([found(-5), NOTHING]).refused(), Violation::Reply { at, .. } if at == moment(102)));
    assert!(matches!(then_look([NOTHING, found(5)]).refused(), Violation::Reply { at, .. } if at == moment(102)));
}

#[test]
fn a_part_of_a_dead_clients_transaction_that_is_dropped() {
    let then_look = |replies: [Reply; 2]| {
        let story = Story::new().unknown(1, transfer()).carried_out(101, [-5, 5].map(Reply::Sum));
        story.committed(When(3, 4, 102), look(), &replies).carried_out(102, replies)
    };
    assert_eq!(then_look([found(-5), found(5)]).sound(), Checked { committed: 1, untold: 1, aborted: 0 });
    then_look([found(-5), NOTHING]).refused();
    Story::new().unknown(1, transfer()).committed(When(3, 4, 102), look(), &[NOTHING, NOTHING]).sound();
}

#[test]
fn a_stale_read() {
    let then_look = |when: When, replies: [Reply; 2]| {
        let story = Story::new().committed(When(1, 2, 102), transfer(), &[-5, 5].map(Reply::Sum));
        story.committed(when, look(), &replies)
    };
    // While the transfer is under way, both are right.
    then_look(When(1, 4, 103), [found(-5), found(5)]).sound();
    then_look(When(1, 4, 101), [NOTHING, NOTHING]).sound();
    let violation = then_look(When(3, 4, 103), [NOTHING, NOTHING]).refused();
    assert!(matches!(violation, Violation::Reply { .. }));
    let violation = then_look(When(3, 4, 101), [NOTHING, NOTHING]).refused();
    assert_eq!(violation, Violation::AgainstTime { ended: moment(102), submitted: moment(101) });
}

#[test]
fn a_transaction_that_counts_though_it_was_recalled() {
    let then_look =
        |replies: [Reply; 2]| Story::new().aborted(1, 2, transfer()).committed(When(3, 4, 102), look(), &replies);
    assert_eq!(then_look([NOTHING, NOTHING]).sound(), Checked { committed: 1, untold: 0, aborted: 1 });
    then_look([found(-5), found(5)]).refused();
    then_look([found(-5), NOTHING]).refused();
    // This is an error even if no other transaction has seen it.
    let mut story = Story::new().aborted(1, 2, transfer()).carried_out(103, [-5, 5].map(Reply::Sum));
    assert_eq!(story.check(), Err(Violation::Recalled(moment(103))));
}

#[test]
fn a_condition_that_is_not_kept_to() {
    let booking = Transaction::new().check(A, Condition::Absent).put(A, 1);
    let kept = [Reply::Held(false), Reply::Skipped];
    let twice = |second: [Reply; 2]| {
        let story = Story::new().committed(When(1, 2, 101), booking.clone(), &[Reply::Held(true), Reply::Done]);
        story.committed(When(3, 4, 102), booking.clone(), &second)
    };
    twice(kept).sound();
    twice([Reply::Held(true), Reply::Done]).refused();
}

#[test]
fn an_answer_that_is_missing() {
    let told = |replies: &[Reply]| Story::new().committed(When(1, 2, 101), look(), replies);
    told(&[NOTHING, NOTHING]).sound();
    told(&[NOTHING]).refused();
}

#[test]
fn two_transactions_at_one_moment() {
    let story = Story::new().committed(When(1, 2, 101), transfer(), &[-5, 5].map(Reply::Sum));
    let story = story.committed(When(3, 4, 101), transfer(), &[-10, 10].map(Reply::Sum));
    assert_eq!(story.history.check(), Err(Violation::SameMoment(moment(101))));
}

#[test]
fn replicas_that_differ() {
    let execution = |stamp, number, amount| Execution {
        at: moment(stamp),
        number,
        shard: ShardId(0),
        shards: vec![ShardId(0)],
        operations: Transaction::new().add(A, amount).operations().to_vec(),
        replies: vec![Reply::Sum(amount)],
    };
    let (first, second) = (execution(101, 0, 1), execution(102, 1, 1));
    let learn = |others: &[Execution]| {
        let mut history = History::new(placement());
        history.learn(0, [first.clone(), second.clone()]).expect("they are in order");
        history.learn(1, others.to_vec())
    };
    assert_eq!(learn(&[first.clone(), second.clone()]), Ok(()));
    let out_of_order = Violation::OutOfOrder { shard: ShardId(0), earlier: moment(101), later: moment(102) };
    assert_eq!(learn(&[second.clone(), first.clone()]), Err(out_of_order));
    let torn = Violation::Torn { shard: ShardId(0), at: moment(102) };
    let wrong_answer = Execution { replies: vec![Reply::Sum(2)], ..second.clone() };
    let wrong_shards = Execution { shards: vec![ShardId(0), ShardId(1)], ..second.clone() };
    for other in [execution(102, 1, 2), execution(102, 2, 1), wrong_answer, wrong_shards] {
        assert_eq!(learn(&[other]), Err(torn.clone()));
    }
}

#[test]
fn a_wrong_answer_that_no_client_has_seen() {
    let stories: [fn() -> Story; 2] = [
        || Story::new().unknown(1, transfer()),
        // The client was told by another replica, which has failed since.
        || Story::new().committed(When(1, 2, 101), transfer(), &[-5, 5].map(Reply::Sum)),
    ];
    for story in stories {
        story().carried_out(101, [-5, 5].map(Reply::Sum)).sound();
        let violation = story().carried_out(101, [-5, 6].map(Reply::Sum)).given_away();
        assert!(matches!(violation, Violation::Reply { told: Some(Reply::Sum(6)), expected: Reply::Sum(5), .. }));
    }
}

#[test]
fn a_transaction_that_is_carried_out_twice() {
    let touch = Transaction::new().get(A).get(B);
    let once = || Story::new().unknown(1, touch.clone()).carried_out(101, [NOTHING, NOTHING]);
    once().sound();
    let violation = once().carried_out(102, [NOTHING, NOTHING]).given_away();
    assert_eq!(violation, Violation::Twice { first: moment(101), second: moment(102) });
}

#[test]
fn a_transaction_that_is_carried_out_at_one_shard_and_not_at_another() {
    let partial = |stamp, key| {
        let shard = shard(&placement(), key);
        Violation::Partial { at: moment(stamp), shard, member: shard.0 as usize }
    };
    let [a, b] = [-5, 5].map(Reply::Sum);
    let stories: [fn() -> Story; 3] = [
        || Story::new().unheard_of(transfer()),
        || Story::new().unknown(1, transfer()),
        || Story::new().committed(When(1, 2, 101), transfer(), &[-5, 5].map(Reply::Sum)),
    ];
    for story in stories {
        story().carried_out(101, [a.clone(), b.clone()]).sound();
        assert_eq!(story().carried_out_at(A, 101, a.clone()).given_away(), partial(101, B));
        assert_eq!(story().carried_out_at(B, 101, b.clone()).given_away(), partial(101, A));
    }
    let untold = || Story::new().unknown(1, transfer());
    // The client was told another moment than the replicas'.
    let [.., committed] = stories;
    assert!(
        matches!(committed().carried_out(102, [a, b]).given_away(), Violation::Partial { at, .. } if at == moment(101))
    );
    // A replica carries out another operation than it was asked for.
    let mut story = untold();
    story.last.1 = Transaction::new().add(A, -5).add(B, 6);
    assert_eq!(story.carried_out(101, [-5, 6].map(Reply::Sum)).given_away(), partial(101, A.max(B)));
}

#[test]
fn a_committed_transaction_that_one_of_two_replicas_has_not_carried_out() {
    let placement = Placement::new(2, 1, 2).expect("it is sound");
    let transaction = Transaction::new().put(A, 1);
    let (at, number, shard) = (moment(101), 0, ShardId(0));
    let execution = Execution {
        at,
        number,
        shard,
        shards: vec![shard],
        operations: transaction.operations().to_vec(),
        replies: vec![Reply::Done],
    };
    let check = |learnt: &[usize], done: &[usize]| {
        let mut history = History::new(placement.clone());
        let seen = KnownOutcome::Committed(Outcome { at, replies: vec![Reply::Done] });
        let transaction = transaction.clone();
        history.record(Record { client: 0, number, submitted: 1, ended: 2, transaction, seen });
        for member in learnt {
            history.learn(*member, done.contains(member).then(|| execution.clone())).expect("it is in order");
        }
        assert!(serial::is_explained(&history.entries(), &placement));
        history.check().map(|checked| checked.committed)
    };
    assert_eq!(check(&[0, 1], &[0, 1]), Ok(1));
    assert_eq!(check(&[0], &[0]), Ok(1), "of the other one nothing is known");
    assert_eq!(check(&[0, 1], &[0]), Err(Violation::Partial { at, shard, member: 1 }));
    assert_eq!(check(&[1], &[]), Err(Violation::Partial { at, shard, member: 1 }));
}
