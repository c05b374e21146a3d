use super::*;
use crate::SubmitError;

const SMALL_RING: usize = 1024;

/// Fills the ring, and returns how many messages that took.
fn fill(group: &Group<Ledger>) -> usize {
    let mut sent = 0;
    loop {
        match group.try_send(&Entry::Add(1)) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, SubmitError::Full);
                return sent;
            }
        }
    }
}

#[test]
fn a_submit_resolves_with_the_reply_of_its_own_replica() {
    let mut solo = Solo::new(|_| ());
    let mut five = solo.group.submit(&Entry::Add(5));
    let mut two = solo.group.try_submit(&Entry::Add(2)).unwrap();
    assert!(five.is_accepted() && two.is_accepted());
    assert_eq!(solo.woken.load(Ordering::SeqCst), 2, "the engine hears of each");
    assert!(poll(&mut five).is_pending());
    solo.settle();
    assert_eq!(poll(&mut two), Poll::Ready(Ok(7)));
    assert_eq!(poll(&mut five), Poll::Ready(Ok(5)));
    assert!(five.is_accepted(), "it stays so");
    assert_eq!(solo.control.counts().applied, 2);
}

#[test]
fn a_send_resolves_when_it_is_accepted_and_is_delivered() {
    let mut solo = Solo::new(|_| ());
    let mut sending = solo.group.send(&Entry::Text("hello".into()));
    assert!(sending.is_accepted());
    assert_eq!(poll(&mut sending), Poll::Ready(Ok(())));
    solo.group.send(&Entry::Text("world".into())).wait().unwrap();
    solo.settle();
    let mut texts = solo.group.peek(|ledger| ledger.texts.clone());
    solo.settle();
    assert_eq!(poll(&mut texts), Poll::Ready(Ok(vec!["hello".to_owned(), "world".to_owned()])));
}

#[test]
fn who_finds_the_ring_full_waits_for_room_and_is_not_woken_for_small_change() {
    let mut solo = Solo::new(|group| _ = group.ring_bytes(SMALL_RING));
    let sent = fill(&solo.group);
    let task = Arc::new(Counting::default());
    let mut submit = solo.group.submit(&Entry::Add(100));
    assert!(!submit.is_accepted());
    assert!(poll_for(&mut submit, &task).is_pending());
    solo.step_shard();
    solo.task.step(solo.now, 1).unwrap();
    solo.step_shard();
    assert_eq!(task.count(), 0, "one message's room is no reason to wake");
    solo.settle();
    assert_eq!(task.count(), 1);
    assert!(poll_for(&mut submit, &task).is_pending());
    assert!(submit.is_accepted());
    solo.settle();
    assert_eq!(task.count(), 2, "woken for the reply");
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(sent as u64 + 100)));
}

#[test]
fn each_who_finds_room_wakes_the_next() {
    let mut solo = Solo::new(|group| _ = group.ring_bytes(SMALL_RING));
    let sent = fill(&solo.group);
    let tasks: Vec<_> = (0..20).map(|_| Arc::new(Counting::default())).collect();
    let mut sendings: Vec<_> = tasks.iter().map(|_| solo.group.send(&Entry::Add(1))).collect();
    for (sending, task) in sendings.iter_mut().zip(&tasks) {
        assert!(poll_for(sending, task).is_pending());
    }
    solo.settle();
    let woken = tasks.iter().filter(|task| task.count() > 0).count();
    assert!((1..20).contains(&woken), "{woken} of 20 were woken at once");
    let mut done = [false; 20];
    while let Some(i) = (0..20).find(|&i| !done[i] && tasks[i].count() > 0) {
        assert_eq!(poll_for(&mut sendings[i], &tasks[i]), Poll::Ready(Ok(())));
        done[i] = true;
    }
    assert_eq!(done, [true; 20]);
    solo.settle();
    assert_eq!(solo.control.counts().applied, sent as u64 + 20);
}

#[test]
fn who_waits_for_other_room_is_not_woken_by_the_slot_that_it_puts_back() {
    let mut solo = Solo::new(|group| _ = group.bulk_threshold(100).bulk_reserve(4096).max_waiting(2));
    let large = Entry::Text("x".repeat(3000));
    let mut first = solo.group.submit(&large);
    let task = Arc::new(Counting::default());
    let mut second = solo.group.submit(&large);
    assert!(first.is_accepted() && !second.is_accepted(), "the reserve takes one of them");
    assert!(poll_for(&mut second, &task).is_pending());
    assert_eq!(task.count(), 0);
    solo.settle();
    assert_eq!(task.count(), 1, "the reserve has room");
    assert!(poll(&mut first).is_ready());
    assert!(poll(&mut second).is_pending() && second.is_accepted());
    solo.settle();
    assert!(poll(&mut second).is_ready());
}

#[test]
fn a_waiter_that_was_woken_and_dropped_passes_the_room_on() {
    let mut solo = Solo::new(|group| _ = group.max_waiting(1));
    let mut first = solo.group.submit(&Entry::Add(1));
    solo.settle();
    let tasks = [Arc::new(Counting::default()), Arc::new(Counting::default())];
    let mut waiting = tasks.each_ref().map(|_| solo.group.submit(&Entry::Add(10)));
    for (submit, task) in waiting.iter_mut().zip(&tasks) {
        assert!(poll_for(submit, task).is_pending() && !submit.is_accepted());
    }
    assert_eq!(solo.group.try_submit(&Entry::Add(1)).err(), Some(SubmitError::Full), "all slots are in use");
    solo.group.try_send(&Entry::Add(100)).expect("a send needs no slot");
    assert_eq!(poll(&mut first), Poll::Ready(Ok(1)));
    assert_eq!(tasks.each_ref().map(|task| task.count()), [1, 0], "one slot, for one of them");
    let [woken, mut next] = waiting;
    drop(woken);
    assert_eq!(tasks[1].count(), 1);
    assert!(poll(&mut next).is_pending() && next.is_accepted());
    solo.settle();
    assert_eq!(poll(&mut next), Poll::Ready(Ok(111)), "what was dropped before it was accepted was not sent");
}

#[test]
fn who_was_woken_and_never_looks_holds_nobody_up() {
    let mut solo = Solo::new(|group| _ = group.max_waiting(1));
    let mut first = solo.group.submit(&Entry::Add(1));
    let mut idle: Vec<_> = (0..100).map(|_| solo.group.submit(&Entry::Add(1))).collect();
    idle.iter_mut().for_each(|submit| assert!(poll(submit).is_pending()));
    let task = Arc::new(Counting::default());
    let mut busy = solo.group.submit(&Entry::Add(1));
    assert!(poll_for(&mut busy, &task).is_pending());
    solo.settle();
    assert_eq!(poll(&mut first), Poll::Ready(Ok(1)));
    for _ in 0..100 {
        solo.group.try_send(&Entry::Add(0)).unwrap();
        solo.settle();
    }
    assert_eq!(task.count(), 1);
    assert!(poll(&mut busy).is_pending() && busy.is_accepted());
    solo.settle();
    assert_eq!(poll(&mut busy), Poll::Ready(Ok(2)));
}

#[test]
fn dropping_an_accepted_submit_neither_loses_nor_repeats_the_message() {
    let mut solo = Solo::new(|group| _ = group.max_waiting(1));
    drop(solo.group.submit(&Entry::Add(1)));
    assert_eq!(solo.group.try_submit(&Entry::Add(2)).err(), Some(SubmitError::Full), "its slot waits for the delivery");
    solo.settle();
    let mut second = solo.group.try_submit(&Entry::Add(4)).unwrap();
    solo.settle();
    assert_eq!(poll(&mut second), Poll::Ready(Ok(5)));
    let mut unseen = solo.group.try_submit(&Entry::Add(8)).unwrap();
    assert!(poll(&mut unseen).is_pending());
    solo.settle();
    drop(unseen);
    assert!(solo.group.try_submit(&Entry::Add(16)).is_ok(), "a reply that no caller took frees its slot too");
}

#[test]
fn a_deadline_ends_the_waiting_and_not_the_message() {
    let limit = Duration::from_millis(10);
    let mut solo = Solo::new(|_| ());
    let mut submit = solo.group.submit(&Entry::Add(1)).deadline(limit);
    let task = Arc::new(Counting::default());
    assert!(poll_for(&mut submit, &task).is_pending());
    assert!(solo.control.wants_delivery());
    // The message does not come through: only the task runs.
    assert!(solo.task.is_due());
    solo.task.step(solo.now, 512).unwrap();
    assert_eq!(solo.task.deadline(), Some(Time::ZERO + limit));
    solo.now = Time::ZERO + limit;
    solo.task.step(solo.now, 512).unwrap();
    assert_eq!(task.count(), 1);
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::Deadline)));
    solo.settle();
    assert_eq!(solo.control.counts().applied, 1);
}

#[test]
fn a_reply_that_comes_with_the_deadline_counts() {
    let mut solo = Solo::new(|_| ());
    let mut submit = solo.group.submit(&Entry::Add(1)).deadline(Duration::from_millis(10));
    assert!(poll(&mut submit).is_pending());
    solo.task.step(solo.now, 512).unwrap();
    solo.advance(Duration::from_millis(10));
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(1)));
}

#[test]
fn a_deadline_without_room_says_that_nothing_was_sent() {
    let mut solo = Solo::new(|group| _ = group.ring_bytes(SMALL_RING));
    let sent = fill(&solo.group);
    let mut submit = solo.group.submit(&Entry::Add(1)).deadline(Duration::from_millis(10));
    assert!(poll(&mut submit).is_pending());
    solo.task.step(solo.now, 512).unwrap();
    solo.now = solo.now + Duration::from_millis(10);
    solo.task.step(solo.now, 512).unwrap();
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::Full)));
    let blocked = solo.group.submit(&Entry::Add(1)).deadline(Duration::from_millis(1));
    assert_eq!(blocked.wait(), Err(SubmitError::Full), "a thread's deadline is in its own time");
    solo.settle();
    assert_eq!(solo.control.counts().applied, sent as u64);
    let late = solo.group.submit(&Entry::Add(1)).deadline(Duration::from_millis(1));
    assert_eq!(late.wait(), Err(SubmitError::Deadline));
}

#[test]
fn a_task_is_woken_once_for_a_batch_of_replies() {
    let mut solo = Solo::new(|_| ());
    let task = Arc::new(Counting::default());
    let mut submits: Vec<_> = (0..50).map(|_| solo.group.submit(&Entry::Add(1))).collect();
    let waker = TaskWaker::from(Arc::clone(&task));
    for submit in &mut submits {
        assert!(Pin::new(submit).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    solo.settle();
    assert_eq!(task.count(), 1);
    for (i, submit) in submits.iter_mut().enumerate() {
        assert_eq!(poll(submit), Poll::Ready(Ok(i as u64 + 1)));
    }
}

#[test]
fn waiting_inside_apply_is_an_error_and_submitting_is_fine() {
    let own = Arc::new(OnceLock::new());
    let inside = |group: &Group<Ledger>| {
        assert_eq!(group.submit(&Entry::Add(10)).wait(), Err(SubmitError::InsideApply));
        assert_eq!(group.read(|_| ()).wait(), Err(crate::ReadError::InsideApply));
        group.try_send(&Entry::Add(100)).unwrap();
        group.send(&Entry::Add(1000)).wait().expect("what was accepted at once needs no waiting");
        assert_eq!(poll(&mut group.submit(&Entry::Add(10_000))), Poll::Ready(Err(SubmitError::InsideApply)));
        assert_eq!(
            poll(&mut group.read(|_| -> () { panic!("it is not called") })),
            Poll::Ready(Err(crate::ReadError::InsideApply))
        );
    };
    let ledger = Ledger { own: Arc::clone(&own), inside: Some(inside), ..Ledger::default() };
    let mut solo = Solo::with(ledger, |_| ());
    own.set(solo.group.clone()).unwrap();
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(1)));
    let mut sum = solo.group.peek(|ledger| ledger.sum);
    solo.settle();
    assert_eq!(poll(&mut sum), Poll::Ready(Ok(11_111)), "an accepted message goes its way");
}

#[test]
fn a_full_ring_inside_apply_sends_nothing() {
    let own = Arc::new(OnceLock::new());
    let inside = |group: &Group<Ledger>| {
        fill(group);
        assert_eq!(group.send(&Entry::Add(1)).wait(), Err(SubmitError::InsideApply));
        let (mut sending, mut submit) = (group.send(&Entry::Add(1)), group.submit(&Entry::Add(1)));
        assert_eq!(poll(&mut sending), Poll::Ready(Err(SubmitError::InsideApply)));
        assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::InsideApply)));
        assert!(!sending.is_accepted() && !submit.is_accepted());
    };
    let ledger = Ledger { own: Arc::clone(&own), inside: Some(inside), ..Ledger::default() };
    let mut solo = Solo::with(ledger, |group| _ = group.ring_bytes(SMALL_RING));
    own.set(solo.group.clone()).unwrap();
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(1)));
}

#[test]
fn what_is_no_command_is_skipped() {
    let mut solo = Solo::new(|_| ());
    let mut garbage = solo.group.submit_bytes(&[0xff; 40]);
    let mut short = solo.group.submit_bytes(&[1]);
    let mut good = solo.group.submit(&Entry::Add(1));
    solo.settle();
    assert_eq!(poll(&mut garbage), Poll::Ready(Err(SubmitError::Invalid)));
    assert_eq!(poll(&mut short), Poll::Ready(Err(SubmitError::Invalid)));
    assert_eq!(poll(&mut good), Poll::Ready(Ok(1)));
    let counts = solo.control.counts();
    assert_eq!((counts.applied, counts.skipped), (1, 2));
}

#[test]
fn what_can_never_be_sent_fails_at_once() {
    for (reserve, most) in [(0, 256), (4096, 4096)] {
        let solo = Solo::new(|group| _ = group.ring_bytes(SMALL_RING).bulk_reserve(reserve));
        let text = Entry::Text("x".repeat(most + 1));
        let mut submit = solo.group.submit(&text);
        let Poll::Ready(Err(SubmitError::TooLarge { bytes, max })) = poll(&mut submit) else { panic!("{submit:?}") };
        assert!(!submit.is_accepted());
        assert!(bytes > most && max == most);
        assert!(matches!(solo.group.try_send(&text), Err(SubmitError::TooLarge { .. })));
    }

    let config = config(|_| ());
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    assert_eq!(group.submit(&Entry::Add(1)).wait(), Err(SubmitError::NotStarted));
    assert_eq!(group.send(&Entry::Add(1)).wait(), Err(SubmitError::NotStarted));
    let solo = Solo::start(group, spec, &config, &[NodeId(1), NodeId(2)], &[NodeId(2)]);
    assert_eq!(solo.group.submit(&Entry::Add(1)).wait(), Err(SubmitError::NotASender));
}

/// To wait for such turns, or to give up as many, would take for ever.
#[test]
fn a_peer_that_claims_more_turns_than_there_are_is_faulty_and_has_none() {
    for turns in [1, u64::MAX] {
        let (mut solo, row, _) = with_a_peer();
        // The first word is the number of turns, of which its ring has none.
        row.store(0, turns);
        for faulty in [1, 0] {
            solo.shard.step(&mut solo.fabric, solo.now);
            let blamed = solo.shard.take_faulty();
            assert!(blamed.len() == faulty && blamed.iter().all(|(node, _)| *node == NodeId(2)), "{turns}: {blamed:?}");
        }
        assert_eq!(solo.shard.row(squall_membership::Rank(0)).sent, 0, "turns were given up for none");
    }
}
