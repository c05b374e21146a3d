use super::*;
use crate::{Outcome, ReadError, SubmitError};

const REASON: EndReason = EndReason::Panicked;

fn ended(outcome: Outcome) -> SubmitError {
    SubmitError::Ended { reason: REASON, outcome }
}

#[test]
fn the_end_fails_whatever_waits_and_whatever_comes_later() {
    let mut solo = Solo::new(|group| _ = group.ring_bytes(1024).max_waiting(4));
    let mut delivered = solo.group.submit(&Entry::Add(1));
    solo.settle();
    let tasks: Vec<_> = (0..3).map(|_| Arc::new(Counting::default())).collect();
    let mut accepted = solo.group.submit(&Entry::Add(1));
    assert!(poll_for(&mut accepted, &tasks[0]).is_pending());
    while solo.group.try_send(&Entry::Add(1)).is_ok() {}
    let mut waiting = solo.group.submit(&Entry::Add(1));
    assert!(poll_for(&mut waiting, &tasks[1]).is_pending() && !waiting.is_accepted());
    let mut read = solo.group.read(|_| ());
    assert!(poll_for(&mut read, &tasks[2]).is_pending());

    solo.end(&REASON, Fate::NotDelivered);
    assert!(tasks.iter().all(|task| task.count() == 1), "all are woken");
    assert_eq!(poll(&mut delivered), Poll::Ready(Ok(1)), "what was delivered stays so");
    assert_eq!(poll(&mut accepted), Poll::Ready(Err(ended(Outcome::NotDelivered))));
    assert_eq!(poll(&mut waiting), Poll::Ready(Err(ended(Outcome::NotAccepted))));
    assert_eq!(poll(&mut read), Poll::Ready(Err(ReadError::Ended { reason: REASON })));

    assert_eq!(solo.group.submit(&Entry::Add(1)).wait(), Err(ended(Outcome::NotAccepted)));
    assert_eq!(solo.group.try_send(&Entry::Add(1)), Err(ended(Outcome::NotAccepted)));
    assert_eq!(solo.group.read(|_| ()).wait(), Err(ReadError::Ended { reason: REASON }));
    assert_eq!(solo.group.peek(|ledger| ledger.sum).wait(), Ok(1), "the last state can still be seen");
}

#[test]
fn what_was_accepted_and_cut_off_without_a_clean_up_is_unknown() {
    let mut solo = Solo::new(|_| ());
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.step_shard();
    solo.end(&EndReason::ShutDown, Fate::Unknown);
    let Poll::Ready(Err(error)) = poll(&mut submit) else { panic!("{submit:?}") };
    let outcome = Outcome::Unknown { held_by: Vec::new() };
    assert_eq!(error, SubmitError::Ended { reason: EndReason::ShutDown, outcome });
    assert!(!error.is_not_applied());
}

#[test]
fn an_unordered_submit_that_is_cut_off_names_who_has_it() {
    let config = config(|group| _ = group.mode(Mode::Unordered));
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.settle();
    assert!(poll(&mut submit).is_pending(), "node 2 does not have it");
    solo.end(&EndReason::ShutDown, Fate::Unknown);
    let outcome = Outcome::Unknown { held_by: vec![NodeId(1)] };
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::Ended { reason: EndReason::ShutDown, outcome })));
}

#[test]
fn an_end_that_knows_of_no_message_forgets_none() {
    let solo = Solo::new(|_| ());
    let task = Arc::new(Counting::default());
    let mut polled = solo.group.submit(&Entry::Add(1));
    assert!(poll_for(&mut polled, &task).is_pending());
    let mut fresh = solo.group.submit(&Entry::Add(1));
    let (mut read, dropped) = (solo.group.read(|_| ()), solo.group.submit(&Entry::Add(1)));
    drop(dropped);
    // As after a panic of the delivering thread.
    let Solo { task: delivery, .. } = solo;
    drop(delivery);
    assert_eq!(task.count(), 1);
    let lost = SubmitError::Ended { reason: EndReason::ShutDown, outcome: Outcome::Unknown { held_by: Vec::new() } };
    assert_eq!(poll(&mut polled), Poll::Ready(Err(lost.clone())));
    assert_eq!(poll(&mut fresh), Poll::Ready(Err(lost)));
    assert_eq!(poll(&mut read), Poll::Ready(Err(ReadError::Ended { reason: EndReason::ShutDown })));
}

#[test]
fn who_meets_a_closed_ring_before_the_reason_is_known_waits_for_it() {
    let mut solo = Solo::new(|_| ());
    solo.shard.wedge();
    solo.shard.close();
    assert_eq!(solo.group.try_send(&Entry::Add(1)), Err(SubmitError::Full));
    let mut sending = solo.group.send(&Entry::Add(1));
    assert!(poll(&mut sending).is_pending());
    solo.end(&REASON, Fate::NotDelivered);
    assert_eq!(poll(&mut sending), Poll::Ready(Err(ended(Outcome::NotAccepted))));
}

/// Holds the replica of `solo` until the returned sender is dropped and the thread joined.
fn look_on(solo: &Solo<Ledger>) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let group = solo.group.clone();
    let (looking, looks) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let look = move |_: &Ledger| {
            looking.send(()).unwrap();
            _ = goes_on.recv();
        };
        assert_eq!(group.peek(look).wait(), Ok(()));
    });
    looks.recv().unwrap();
    (go_on, reader)
}

#[test]
fn after_the_end_the_last_state_is_shown_also_to_two_at_once() {
    let mut solo = Solo::new(|_| ());
    solo.settle();
    solo.end(&REASON, Fate::NotDelivered);
    let (go_on, reader) = look_on(&solo);
    let group = solo.group.clone();
    let (begin, begins) = std::sync::mpsc::channel();
    let second = std::thread::spawn(move || {
        begin.send(()).unwrap();
        group.peek(|ledger| ledger.sum).wait()
    });
    begins.recv().unwrap();
    drop(go_on);
    reader.join().unwrap();
    assert_eq!(second.join().unwrap(), Ok(0));
}

#[test]
fn what_the_delivering_thread_wanted_before_the_end_keeps_nobody_off_after_it() {
    let mut solo = Solo::new(|_| ());
    solo.settle();
    let (go_on, reader) = look_on(&solo);
    let mut waits = solo.group.peek(|ledger| ledger.sum);
    assert!(poll(&mut waits).is_pending());
    assert!(!solo.task.is_due(), "the replica is not there");
    drop(go_on);
    reader.join().unwrap();
    // The end comes before the delivering thread's next look.
    solo.end(&REASON, Fate::NotDelivered);
    assert_eq!(solo.group.peek(|ledger| ledger.sum).wait(), Ok(0));
}
