//! Requests that wait for an element.

use std::time::Duration;

use super::*;
use crate::{keyspace::WaitEnd, server::waits::Unblocking};

/// A session whose waits are answered so by the group.
fn waiting(answers: &[Reply]) -> Bench {
    let bench = bench(Strings { room: 10, wait_answers: answers.to_vec(), ..Strings::default() });
    bench.deliver(10);
    bench
}

impl Bench {
    /// The command that was submitted at a place.
    fn command(&self, place: usize) -> StoreCommand {
        self.puppet.0.borrow().submitted[place].clone()
    }

    fn ticket(&self, place: usize) -> u64 {
        match self.command(place) {
            StoreCommand::Wait { ticket, .. } => ticket,
            other => panic!("{other:?} is no wait"),
        }
    }

    fn left_behind(&self) -> Vec<u64> {
        let waits = Arc::clone(&self.hub.waits);
        let left = std::pin::pin!(waits.next_left_behind()).poll(&mut context());
        if let Poll::Ready(tickets) = left { tickets } else { Vec::new() }
    }
}

fn served() -> Reply {
    Reply::array_of_bytes(["l", "x"])
}

#[test]
fn nothing_is_taken_behind_a_request_that_waits_and_all_before_is_answered() {
    let mut bench = waiting(&[Reply::Waiting]);
    bench.take_all(&["incr a", "blpop l 0"]);
    assert_eq!(bench.take("ping"), Taken::NotYet);
    assert_eq!(bench.answers(), [":1"]);
    assert_eq!(bench.take("incr a"), Taken::NotYet);
    assert!(bench.session.is_waiting() && bench.session.client.waits.is_set());
    bench.hub.end_wait(bench.ticket(1), WaitEnd::Served(served()));
    assert_eq!(bench.answers(), ["[\"l\", \"x\"]"]);
    assert!(!bench.session.is_waiting() && !bench.session.client.waits.is_set());
    assert_eq!(bench.ask(&["time"]), ["LOCAL"]);
    assert!(bench.left_behind().is_empty());
}

#[test]
fn a_request_that_finds_something_does_not_wait() {
    let mut bench = waiting(&[served(), Reply::Error(Error::WRONG_TYPE)]);
    assert_eq!(bench.ask(&["blpop l 0"]), ["[\"l\", \"x\"]"]);
    assert!(bench.ask(&["blpop l 0"])[0].starts_with("-WRONGTYPE"));
    assert_eq!(bench.ask(&["blpop l x"]), ["-ERR timeout is not a float or out of range"]);
    assert_eq!(bench.ask(&["blmpop -1 1 l left"]), ["-ERR timeout is negative"]);
    assert_eq!(bench.submitted(), 2, "what is wrong for certain is not sent");
    assert!(bench.left_behind().is_empty());
}

#[test]
fn a_wait_is_cancelled_when_its_time_has_passed() {
    let mut bench = waiting(&[Reply::Waiting, Reply::Integer(1)]);
    bench.take_all(&["blpop l 1.5"]);
    assert!(bench.answers().is_empty());
    bench.puppet.0.borrow_mut().passed = Duration::from_millis(1499);
    assert!(bench.answers().is_empty());
    bench.puppet.0.borrow_mut().passed = Duration::from_millis(1500);
    assert_eq!(bench.answers(), ["nil[]"]);
    assert_eq!(bench.command(1), StoreCommand::CancelWaits { at_ms: 1, tickets: vec![bench.ticket(0)] });
    assert!(bench.left_behind().is_empty());
}

#[test]
fn what_was_served_before_it_was_cancelled_is_answered() {
    let mut bench = waiting(&[Reply::Waiting, Reply::Integer(0)]);
    bench.take_all(&["blpop l 1"]);
    bench.deliver(1);
    assert!(bench.answers().is_empty());
    bench.puppet.0.borrow_mut().passed = Duration::from_secs(1);
    assert!(bench.answers().is_empty());
    assert_eq!(bench.submitted(), 2);
    bench.hub.end_wait(bench.ticket(0), WaitEnd::Served(served()));
    bench.deliver(2);
    assert_eq!(bench.answers(), ["[\"l\", \"x\"]"]);
}

#[test]
fn another_client_ends_a_wait_as_it_likes() {
    for (how, answer) in
        [(Unblocking::Timeout, "nil[]"), (Unblocking::Error, "-UNBLOCKED client unblocked via CLIENT UNBLOCK")]
    {
        let mut bench = waiting(&[Reply::Waiting, Reply::Integer(1)]);
        bench.take_all(&["blpop l 0"]);
        assert!(!bench.session.client.waits.unblock(how), "it does not wait yet");
        assert!(bench.answers().is_empty());
        assert!(bench.session.client.waits.unblock(how));
        assert_eq!(bench.answers(), [answer]);
    }
}

#[test]
fn who_is_sent_away_waits_no_more() {
    let mut bench = waiting(&[Reply::Waiting, Reply::Integer(1)]);
    bench.take_all(&["blpop l 0"]);
    assert!(bench.answers().is_empty());
    bench.session.client.leave();
    assert_eq!(bench.answers(), ["-UNBLOCKED this replica stops: ask another one"]);
    assert_eq!(bench.session.poll_next(&mut context()), Poll::Ready(SessionStep::Close));
}

#[test]
fn who_goes_leaves_an_open_ticket_behind() {
    let mut bench = waiting(&[Reply::Waiting]);
    bench.take_all(&["blpop l 0"]);
    let ticket = bench.ticket(0);
    assert!(bench.answers().is_empty() && bench.left_behind().is_empty());
    let Bench { session, puppet, hub, operations } = bench;
    drop(session);
    let gone = Bench { session: with_room(0).session, puppet, hub, operations };
    assert_eq!(gone.left_behind(), [ticket]);
}

#[test]
fn a_wait_whose_end_is_not_known_is_cancelled_and_said_to_be_unknown() {
    let mut bench = waiting(&[Reply::Waiting]);
    bench.take_all(&["blpop l 0"]);
    assert!(bench.answers().is_empty());
    bench.hub.tell_of_gap();
    assert!(bench.answers()[0].starts_with("-UNKNOWN "));
    assert_eq!(bench.left_behind().len(), 1);
}

#[test]
fn who_waits_at_a_replica_that_its_group_has_dropped_is_told_and_waits_no_more() {
    let mut bench = waiting(&[Reply::Waiting]);
    bench.take_all(&["blpop l 0"]);
    assert!(bench.answers().is_empty());
    bench.hub.waits.end_all(&WaitEnd::Outside);
    assert!(bench.answers()[0].starts_with("-UNKNOWN the group goes on without this replica"));
    assert!(!bench.session.client.waits.is_set());
    assert_eq!(bench.left_behind().len(), 1, "it ends in the order once the replica is back");
}

#[test]
fn a_wait_that_a_view_has_ended_took_nothing() {
    let mut bench = waiting(&[Reply::Waiting]);
    bench.take_all(&["blpop l 0"]);
    assert!(bench.answers().is_empty());
    bench.hub.end_wait(bench.ticket(0), WaitEnd::Dropped);
    assert!(bench.answers()[0].starts_with("-UNBLOCKED this replica was dropped from its group"));
    assert!(bench.left_behind().is_empty());
}

#[test]
fn what_is_on_disk_is_answered_once_it_is_there() {
    let mut bench = waiting(&[Reply::Waiting]);
    bench.puppet.0.borrow_mut().is_durable = true;
    bench.take_all(&["blpop l 0"]);
    assert!(bench.answers().is_empty());
    bench.puppet.0.borrow_mut().holds_watches = true;
    bench.hub.end_wait(bench.ticket(0), WaitEnd::Served(served()));
    assert!(bench.answers().is_empty());
    bench.puppet.0.borrow_mut().holds_watches = false;
    assert_eq!(bench.answers(), ["[\"l\", \"x\"]"]);
}

#[test]
fn in_a_transaction_a_request_is_queued_and_does_not_wait() {
    let mut bench = with_room(10);
    bench.deliver(10);
    assert_eq!(bench.ask(&["multi", "blpop l 0", "exec"]), ["OK", "QUEUED", "[:0]"]);
    assert!(bench.left_behind().is_empty());
}
