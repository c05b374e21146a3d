//! Errors that a store could have, planted in histories: both checkers must find each, and nothing without it.

mod serial;

use squall_transactions::{
    Condition, Execution, Key, Moment, Outcome, Placement, Reply, ShardId, Transaction, Value,
    history::{Checked, History, Record, Seen, Violation},
};

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

/// When a transaction was submitted and over, and its time stamp.
struct When(u64, u64, u64);

/// Builds a history.
struct Story {
    history: History,
    number: u64,
}

impl Story {
    fn new() -> Story {
        Story { history: History::new(placement()), number: 0 }
    }

    fn record(&mut self, submitted: u64, ended: u64, transaction: Transaction, seen: Seen) -> u64 {
        let number = self.number;
        self.number += 1;
        self.history.record(Record { client: 0, number, submitted, ended, transaction, seen });
        number
    }

    fn committed(mut self, When(submitted, ended, stamp): When, transaction: Transaction, replies: &[Reply]) -> Story {
        let outcome = Outcome { at: moment(stamp), replies: replies.to_vec() };
        self.record(submitted, ended, transaction, Seen::Committed(outcome));
        self
    }

    fn aborted(mut self, submitted: u64, ended: u64, transaction: Transaction) -> Story {
        self.record(submitted, ended, transaction, Seen::Aborted);
        self
    }

    /// A transaction of whose end its client does not know; by its time stamp, if a replica has carried it out.
    fn unknown(mut self, submitted: u64, transaction: Transaction, stamp: Option<u64>) -> Story {
        let number = self.record(submitted, u64::MAX, transaction.clone(), Seen::Unknown);
        self.learn(number, &transaction, stamp).expect("each replica keeps to the order");
        self
    }

    fn learn(&mut self, number: u64, transaction: &Transaction, stamp: Option<u64>) -> Result<(), Violation> {
        let operations = transaction.operations().iter().zip(stamp);
        let executions = operations.map(|(operation, stamp)| Execution {
            at: moment(stamp),
            number,
            shard: shard(&placement(), operation.key().as_str()),
            operations: vec![operation.clone()],
            replies: vec![Reply::Done],
        });
        self.history.learn(executions.collect::<Vec<_>>())
    }

    /// Both checkers find nothing.
    fn sound(self) -> Checked {
        assert!(serial::is_explained(&self.history.entries(), &placement()), "there is an order");
        self.history.check().unwrap_or_else(|violation| panic!("{violation}"))
    }

    /// Both checkers find an error.
    fn refused(self) -> Violation {
        assert!(!serial::is_explained(&self.history.entries(), &placement()), "there is no order");
        self.history.check().expect_err("the order of moments is none")
    }
}

fn moment(stamp: u64) -> Moment {
    Moment { stamp, sender: 0 }
}

/// From the one account to the other.
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
    // Another order than that of time stamps explains this. It is the store's own rule that is broken.
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
        Story::new().unknown(1, transfer(), Some(101)).committed(When(3, 4, 102), look(), &replies)
    };
    assert_eq!(then_look([found(-5), found(5)]).sound(), Checked { committed: 1, untold: 1, aborted: 0 });
    then_look([found(-5), NOTHING]).refused();
    Story::new().unknown(1, transfer(), None).committed(When(3, 4, 102), look(), &[NOTHING, NOTHING]).sound();
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
    // Even if nobody has seen it yet.
    let mut story = then_look([NOTHING, NOTHING]);
    story.learn(0, &transfer(), Some(103)).expect("it is in order");
    assert_eq!(story.history.check(), Err(Violation::Recalled(moment(103))));
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
        operations: Transaction::new().add(A, amount).operations().to_vec(),
        replies: vec![Reply::Done],
    };
    let (first, second) = (execution(101, 0, 1), execution(102, 1, 1));
    let learn = |others: &[Execution]| {
        let mut history = History::new(placement());
        history.learn([first.clone(), second.clone()]).expect("they are in order");
        history.learn(others.to_vec())
    };
    assert_eq!(learn(&[first.clone(), second.clone()]), Ok(()));
    let out_of_order = Violation::OutOfOrder { shard: ShardId(0), earlier: moment(101), later: moment(102) };
    assert_eq!(learn(&[second.clone(), first.clone()]), Err(out_of_order));
    let torn = Violation::Torn { shard: ShardId(0), at: moment(102) };
    for other in [execution(102, 1, 2), execution(102, 2, 1)] {
        assert_eq!(learn(&[other]), Err(torn.clone()));
    }
}
