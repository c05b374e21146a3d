//! One node's part in a group, from view to view.

use super::*;
use crate::{Outcome, ReadError, SubmitError, Unavailable};

/// The views of which the replica was told.
fn views(solo: &Solo<Ledger>) -> Vec<(Epoch, usize)> {
    solo.group.peek(|ledger| ledger.views.clone()).wait().unwrap()
}

fn texts(solo: &Solo<Ledger>) -> Vec<String> {
    solo.group.peek(|ledger| ledger.texts.clone()).wait().unwrap()
}

fn text(text: &str) -> Entry {
    Entry::Text(text.to_owned())
}

#[test]
fn handles_outlive_a_view_and_replicas_are_told_of_the_next_in_order() {
    let mut solo = Solo::new(|_| ());
    let mut first = solo.group.submit(&Entry::Add(1));
    solo.settle();
    solo.next_view();
    let mut second = solo.group.submit(&Entry::Add(2));
    solo.settle();
    assert_eq!((poll(&mut first), poll(&mut second)), (Poll::Ready(Ok(1)), Poll::Ready(Ok(3))));
    assert_eq!(views(&solo), [(Epoch(1), 0), (Epoch(2), 1)]);
}

#[test]
fn what_a_view_did_not_deliver_goes_first_in_the_next_with_the_same_submit() {
    let mut solo = Solo::new(|_| ());
    let mut accepted = solo.group.submit(&Entry::Add(1));
    solo.group.try_send(&text("a")).unwrap();
    let undelivered = solo.end_view();
    assert_eq!(undelivered.len(), 2);
    let mut between = solo.group.submit(&text("c"));
    assert_eq!(solo.group.try_send(&text("d")), Err(SubmitError::Full), "between two views there is no room");
    let task = Arc::new(Counting::default());
    assert!(poll_for(&mut between, &task).is_pending() && !between.is_accepted());
    solo.install_next(undelivered, |_| ());
    assert_eq!(task.count(), 1, "a caller that waits is woken in the new view");
    solo.group.try_send(&text("b")).unwrap();
    assert!(poll(&mut between).is_pending() && between.is_accepted());
    solo.settle();
    assert_eq!(poll(&mut accepted), Poll::Ready(Ok(1)));
    assert_eq!(texts(&solo), ["a", "b", "c"]);
    assert_eq!(views(&solo), [(Epoch(1), 0), (Epoch(2), 0)]);
}

#[test]
fn new_messages_wait_until_all_old_ones_are_sent() {
    let mut solo = Solo::new(|group| _ = group.ring_bytes(1024));
    let fill = |solo: &Solo<Ledger>, from: usize| {
        (from..).take_while(|i| solo.group.try_send(&text(&format!("message {i}"))).is_ok()).count()
    };
    let mut sent = fill(&solo, 0);
    let undelivered = solo.end_view();
    // The ring of the next view takes as many messages. Its first message is not delivered before the view after that
    // begins.
    solo.install_next(undelivered, |_| ());
    sent += fill(&solo, sent);
    let mut undelivered = solo.end_view();
    let more = undelivered.clone();
    undelivered.extend(more);
    solo.install_next(undelivered, |_| ());
    assert_eq!(solo.group.try_send(&text("new")), Err(SubmitError::Full));
    let mut waiting = solo.group.send(&text("new"));
    assert!(poll(&mut waiting).is_pending());
    for _ in 0..sent {
        solo.step();
    }
    assert_eq!(poll(&mut waiting), Poll::Ready(Ok(())), "there is room again");
    solo.settle();
    let expected = (0..sent).chain(0..sent).map(|i| format!("message {i}")).chain(["new".to_owned()]);
    assert_eq!(texts(&solo), expected.collect::<Vec<_>>());
}

#[test]
fn bulk_messages_are_sent_again_in_their_place() {
    let mut solo = Solo::new(|group| _ = group.bulk_threshold(100).bulk_reserve(1 << 20));
    let large = "x".repeat(5000);
    for message in ["a", &large, "b"] {
        solo.group.try_send(&text(message)).unwrap();
    }
    solo.next_view();
    solo.settle();
    assert_eq!(texts(&solo), ["a", &large, "b"]);
}

#[test]
fn reads_that_wait_are_asked_again_in_the_next_view_and_each_is_answered_once() {
    let config = config(|_| ());
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let mut old = solo.group.read(|ledger| ledger.views.len());
    solo.settle();
    assert!(poll(&mut old).is_pending(), "node 2 does not answer");
    let undelivered = solo.end_view();
    let mut between = solo.group.read(|ledger| ledger.views.len());
    solo.install_next(undelivered, |view| {
        view.members.pop();
        view.shards[0] = ShardView::whole(SHARD, vec![NodeId(1)], vec![NodeId(1)]);
    });
    let mut new = solo.group.read(|ledger| ledger.views.len());
    solo.settle();
    for read in [&mut old, &mut between, &mut new] {
        assert_eq!(poll(read), Poll::Ready(Ok(2)));
    }
    assert_eq!(solo.control.counts().reads, 3);
}

#[test]
fn a_reader_that_holds_the_replica_delays_the_announcement_and_not_the_view() {
    let mut solo = Solo::new(|_| ());
    solo.settle();
    let (looking, looks) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let group = solo.group.clone();
    let reader = std::thread::spawn(move || {
        let look = move |_: &Ledger| {
            looking.send(()).unwrap();
            _ = goes_on.recv();
        };
        assert_eq!(group.peek(look).wait(), Ok(()));
    });
    looks.recv().unwrap();
    let mut accepted = solo.group.submit(&Entry::Add(1));
    solo.next_view();
    let mut waiting = solo.group.submit(&Entry::Add(1));
    assert!(!waiting.is_accepted(), "callers come in once the replica knows of the view");
    drop(go_on);
    reader.join().unwrap();
    solo.settle();
    assert!(poll(&mut waiting).is_pending() && waiting.is_accepted());
    solo.settle();
    assert_eq!((poll(&mut accepted), poll(&mut waiting)), (Poll::Ready(Ok(1)), Poll::Ready(Ok(2))));
}

#[test]
fn a_stall_fails_whatever_waits_and_ends_with_the_next_view() {
    let mut solo = Solo::new(|group| _ = group.ring_bytes(1024).max_waiting(8));
    let unavailable = |outcome| SubmitError::Unavailable { why: Unavailable::NoQuorum, outcome };
    let unknown = || unavailable(Outcome::Unknown { held_by: Vec::new() });
    let tasks: Vec<_> = (0..3).map(|_| Arc::new(Counting::default())).collect();
    let (mut told, mut slow) = (solo.group.submit(&Entry::Add(1)), solo.group.submit(&Entry::Add(2)));
    assert!(poll_for(&mut told, &tasks[0]).is_pending() && poll(&mut slow).is_pending());
    solo.shard.wedge();
    while solo.group.try_send(&Entry::Add(0)).is_ok() {}
    let mut waiting = solo.group.submit(&Entry::Add(4));
    assert!(poll_for(&mut waiting, &tasks[1]).is_pending());
    let mut read = solo.group.read(|_| ());
    assert!(poll_for(&mut read, &tasks[2]).is_pending());

    solo.task.change(ShardChange::Stalled);
    solo.task.change(ShardChange::Stalled);
    assert!(tasks.iter().all(|task| task.count() == 1), "all are woken");
    assert_eq!(poll(&mut told), Poll::Ready(Err(unknown())));
    assert_eq!(poll(&mut waiting), Poll::Ready(Err(unavailable(Outcome::NotAccepted))));
    assert!(unavailable(Outcome::NotAccepted).is_not_applied() && !unknown().is_not_applied());
    let error = ReadError::Unavailable { why: Unavailable::NoQuorum };
    assert_eq!(poll(&mut read), Poll::Ready(Err(error.clone())));
    assert_eq!(solo.group.submit(&Entry::Add(4)).wait(), Err(unavailable(Outcome::NotAccepted)));
    assert_eq!(solo.group.read(|_| ()).wait(), Err(error));
    assert_eq!(solo.group.peek(|ledger| ledger.sum).wait(), Ok(0), "a stale look is possible");

    solo.next_view();
    let mut after = solo.group.submit(&Entry::Add(8));
    solo.settle();
    assert_eq!(poll(&mut slow), Poll::Ready(Ok(3)), "a caller that has not asked meanwhile gets its reply");
    assert!(poll(&mut after).is_pending(), "it waits behind what was sent before");
    solo.settle();
    assert_eq!(poll(&mut after), Poll::Ready(Ok(11)));
    let mut read = solo.group.read(|ledger| ledger.sum);
    solo.settle();
    assert_eq!(poll(&mut read), Poll::Ready(Ok(11)));
}

#[test]
fn reads_refused_in_a_stall_are_not_answered_by_the_clean_up_that_ends_it() {
    let mut solo = Solo::new(|_| ());
    let mut read = solo.group.read(|_| ());
    solo.step_shard();
    solo.shard.wedge();
    solo.task.change(ShardChange::Stalled);
    assert!(matches!(poll(&mut read), Poll::Ready(Err(ReadError::Unavailable { .. }))));
    // The shard counted it, and says now that it may be answered.
    solo.next_view();
    assert_eq!(solo.control.counts().reads, 0);
}

#[test]
fn a_dropped_node_learns_the_fate_of_each_message() {
    let config = config(|_| ());
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let fates = [Fate::Delivered, Fate::NotDelivered, Fate::Unknown];
    let submits = fates.map(|_| solo.group.submit(&Entry::Add(1)));
    solo.step_shard();
    let mut late = solo.group.submit(&Entry::Add(1));
    solo.shard.wedge();
    let mut undelivered = solo.shard.undelivered().unwrap();
    undelivered[3].place = None;
    let list = undelivered.into_iter().zip(fates.into_iter().chain([Fate::Unknown])).collect();
    let epoch = Epoch(7);
    solo.task.change(outside(list, Unavailable::Dropped { epoch }));
    let error = |outcome| SubmitError::Unavailable { why: Unavailable::Dropped { epoch }, outcome };
    let outcomes = [Outcome::Delivered, Outcome::NotDelivered, Outcome::Unknown { held_by: Vec::new() }];
    for (mut submit, outcome) in submits.into_iter().zip(outcomes) {
        assert_eq!(poll(&mut submit), Poll::Ready(Err(error(outcome))));
    }
    assert_eq!(poll(&mut late), Poll::Ready(Err(error(Outcome::NotDelivered))), "it had no turn");
    assert_eq!(solo.group.submit(&Entry::Add(1)).wait(), Err(error(Outcome::NotAccepted)));
    let error = ReadError::Unavailable { why: Unavailable::Dropped { epoch } };
    assert_eq!(solo.group.read(|_| ()).wait(), Err(error));
}

#[test]
fn what_was_delivered_after_the_list_was_made_has_its_reply() {
    let mut solo = Solo::new(|_| ());
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.step_shard();
    solo.shard.wedge();
    let undelivered = solo.shard.undelivered().unwrap();
    assert_eq!(undelivered.len(), 1);
    solo.task.step(solo.now, 512).unwrap();
    solo.task.change(outside(with_fate(undelivered, Fate::Unknown), Unavailable::Dropped { epoch: Epoch(2) }));
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(1)));
}

#[test]
fn a_shard_that_is_inadequate_or_suspended_refuses_new_work_by_name() {
    let mut solo = Solo::new(|_| ());
    let mut accepted = solo.group.submit(&Entry::Add(1));
    let undelivered = solo.end_view();
    solo.install_next(undelivered, |view| view.shards[0].state = ShardState::Inadequate);
    let refused = |why: Unavailable| SubmitError::Unavailable { why, outcome: Outcome::NotAccepted };
    assert_eq!(solo.group.submit(&Entry::Add(1)).wait(), Err(refused(Unavailable::Inadequate)));
    let error = ReadError::Unavailable { why: Unavailable::Inadequate };
    assert_eq!(solo.group.read(|_| ()).wait(), Err(error));
    solo.settle();
    assert_eq!(poll(&mut accepted), Poll::Ready(Ok(1)), "what was accepted before is delivered");
    let last_holders = vec![NodeId(4), NodeId(5)];
    let undelivered = solo.end_view();
    solo.install_next(undelivered, |view| {
        let since = OrderEnd::START;
        let holders = last_holders.iter().map(|&node| Holder { node, voter: VoterId(node.0.into()), since });
        view.shards[0].state =
            ShardState::Suspended { after: Epoch(2), last_holders: holders.collect(), acknowledged: 0 };
    });
    let error = solo.group.submit(&Entry::Add(1)).wait().unwrap_err();
    assert!(error.to_string().contains("when one of node 4, node 5 returns"), "{error}");
    assert_eq!(error, refused(Unavailable::Suspended { last_holders, all_back: false }));
    assert!(error.is_not_applied());
    let undelivered = solo.end_view();
    solo.install_next(undelivered, |view| {
        let own = Holder { node: view.members[0].node, voter: view.members[0].voter, since: OrderEnd::START };
        view.shards[0].state = ShardState::Suspended { after: Epoch(3), last_holders: vec![own], acknowledged: 0 };
    });
    let error = solo.group.submit(&Entry::Add(1)).wait().unwrap_err();
    assert!(error.to_string().contains("it is lost"), "{error}");
    let undelivered = solo.end_view();
    solo.install_next(undelivered, |view| view.shards[0].state = ShardState::Active);
    let mut again = solo.group.submit(&Entry::Add(1));
    solo.settle();
    assert_eq!(poll(&mut again), Poll::Ready(Ok(2)));
}

#[test]
fn a_message_that_can_not_be_sent_any_more_fails() {
    let mut solo = Solo::new(|_| ());
    let mut submit = solo.group.submit(&Entry::Add(1));
    let undelivered = solo.end_view();
    solo.install_next(undelivered, |view| view.shards[0].senders.clear());
    let outcome = Outcome::NotDelivered;
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::ViewEnded { epoch: Epoch::FIRST, outcome })));
    assert_eq!(solo.group.submit(&Entry::Add(1)).wait(), Err(SubmitError::NotASender));
}

#[test]
fn an_unordered_message_is_not_sent_again_and_names_who_has_it() {
    let config = config(|group| _ = group.mode(Mode::Unordered));
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.settle();
    solo.next_view();
    let outcome = Outcome::Unknown { held_by: vec![NodeId(1)] };
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::ViewEnded { epoch: Epoch::FIRST, outcome })));
}

#[test]
fn an_unordered_message_of_a_dropped_node_may_be_delivered_by_whoever_has_it() {
    let config = config(|group| _ = group.mode(Mode::Unordered));
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.step_shard();
    solo.shard.wedge();
    let undelivered = solo.shard.undelivered().unwrap();
    let why = Unavailable::Dropped { epoch: Epoch(2) };
    // No trim says how far others go.
    solo.task.change(outside(with_fate(undelivered, Fate::NotDelivered), why.clone()));
    let outcome = Outcome::Unknown { held_by: vec![NodeId(1)] };
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::Unavailable { why, outcome })));
}

#[test]
fn a_panic_in_view_changed_leaves_nobody_waiting() {
    struct Panics;

    impl Replicated for Panics {
        type Command = u64;
        type Reply = ();

        fn apply(&mut self, _: &Archived<u64>, _: &Applied) {}

        fn view_changed(&mut self, change: &ViewChange) {
            assert_eq!(change.epoch, Epoch::FIRST, "this replica panics");
        }
    }

    let mut solo = Solo::with(Panics, |_| ());
    let submit = solo.group.submit(&1);
    let read = solo.group.read(|_| ());
    let undelivered = solo.end_view();
    let panics = std::panic::AssertUnwindSafe(|| solo.install_next(undelivered, |_| ()));
    assert!(std::panic::catch_unwind(panics).is_err());
    drop(solo);
    assert!(matches!(submit.wait(), Err(SubmitError::Ended { .. })));
    assert!(matches!(read.wait(), Err(ReadError::Ended { .. })));
}
