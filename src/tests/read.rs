use super::*;
use crate::{Mode, ReadError};

#[test]
fn a_read_sees_what_was_acknowledged_before_it() {
    let mut solo = Solo::new(|_| ());
    let mut submit = solo.group.submit(&Entry::Add(3));
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(3)));
    let task = Arc::new(Counting::default());
    let mut reads: Vec<_> = (0..3).map(|i| solo.group.read(move |ledger| (i, ledger.sum))).collect();
    for read in &mut reads {
        assert!(poll_for(read, &task).is_pending());
    }
    solo.settle();
    assert_eq!(task.count(), 1);
    for (i, read) in reads.iter_mut().enumerate() {
        assert_eq!(poll(read), Poll::Ready(Ok((i, 3))));
    }
    assert_eq!(solo.control.counts().reads, 3);
}

#[test]
fn a_read_waits_for_the_others_and_a_peek_does_not() {
    let config = config(|_| ());
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let (mut read, mut peek) = (solo.group.read(|ledger| ledger.sum), solo.group.peek(|ledger| ledger.sum));
    assert_eq!(poll(&mut peek), Poll::Ready(Ok(0)));
    solo.settle();
    assert!(poll(&mut read).is_pending(), "node 2 was never heard of");
}

#[test]
fn under_a_lease_a_read_is_answered_here_once_everything_received_is_applied() {
    let config = Config::builder("test", 1).members([1]).build().unwrap();
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let mut solo = Solo::start(group, spec, &config, &[NodeId(1)], &[NodeId(1)]);
    solo.settle();
    let here = std::thread::current().id();
    let mut read = solo.group.read(move |ledger| (ledger.sum, std::thread::current().id()));
    assert_eq!(poll(&mut read), Poll::Ready(Ok((0, here))));
    let _submit = solo.group.submit(&Entry::Add(3));
    solo.step_shard();
    let mut read = solo.group.read(|ledger| ledger.sum);
    assert!(poll(&mut read).is_pending(), "what this member has received, another may have applied");
    solo.settle();
    assert_eq!(poll(&mut read), Poll::Ready(Ok(3)));
    assert_eq!(solo.control.counts().reads, 2);
    solo.shard.wedge();
    let mut read = solo.group.read(|ledger| ledger.sum);
    assert!(poll(&mut read).is_pending(), "a member that is wedged has no lease");
}

#[test]
fn while_one_looks_others_wait_for_the_delivering_thread_and_it_waits_for_him() {
    let mut solo = Solo::new(|_| ());
    let mut submit = solo.group.submit(&Entry::Add(3));
    solo.step_shard();
    let (group, woken) = (solo.group.clone(), Arc::clone(&solo.woken));
    let before = woken.load(Ordering::SeqCst);
    let (send, inner) = std::sync::mpsc::channel();
    let mut outer = std::thread::scope(|scope| {
        let (looking, looks) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel();
        let reader = scope.spawn(move || {
            group.peek(move |ledger| {
                looking.send(()).unwrap();
                goes_on.recv().unwrap();
                ledger.sum
            })
        });
        looks.recv().unwrap();
        send.send(solo.group.peek(|ledger| ledger.sum)).unwrap();
        assert!(!solo.task.is_due(), "the replica is not there");
        go_on.send(()).unwrap();
        reader.join().unwrap()
    });
    assert_eq!(poll(&mut outer), Poll::Ready(Ok(0)));
    assert!(woken.load(Ordering::SeqCst) > before, "the delivering thread is woken");
    assert!(solo.task.is_due() && solo.control.wants_delivery());
    let mut late = solo.group.peek(|ledger| ledger.sum);
    assert!(poll(&mut late).is_pending(), "it is the delivering thread's turn");
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(3)));
    assert_eq!([poll(&mut inner.recv().unwrap()), poll(&mut late)], [Poll::Ready(Ok(3)), Poll::Ready(Ok(3))]);
}

#[test]
fn a_read_that_is_dropped_is_not_carried_out() {
    let mut solo = Solo::new(|_| ());
    let called = Arc::new(AtomicUsize::new(0));
    let look = |called: &Arc<AtomicUsize>| {
        let called = Arc::clone(called);
        move |_: &Ledger| _ = called.fetch_add(1, Ordering::SeqCst)
    };
    drop(solo.group.read(look(&called)));
    let mut kept = solo.group.read(look(&called));
    solo.settle();
    assert_eq!(poll(&mut kept), Poll::Ready(Ok(())));
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

#[test]
fn a_read_that_panics_harms_nobody_else() {
    let mut solo = Solo::new(|_| ());
    let mut bad = solo.group.read(|ledger| assert_eq!(ledger.sum, 1, "on purpose"));
    let mut good = solo.group.read(|ledger| ledger.sum);
    solo.settle();
    assert_eq!(poll(&mut bad), Poll::Ready(Err(ReadError::Panicked)));
    assert_eq!(poll(&mut good), Poll::Ready(Ok(0)));
}

#[test]
fn an_unordered_group_has_peeks_only() {
    let mut solo = Solo::new(|group| _ = group.mode(Mode::Unordered));
    assert_eq!(solo.group.read(|ledger| ledger.sum).wait(), Err(ReadError::Unordered));
    let mut submit = solo.group.submit(&Entry::Add(2));
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(2)));
    let mut peek = solo.group.peek(|ledger| ledger.sum);
    assert_eq!(poll(&mut peek), Poll::Ready(Ok(2)));
}

#[test]
fn a_read_before_the_start_fails_at_once() {
    let (group, _spec) = new_group("ledger", Ledger::default(), &config(|_| ()));
    assert_eq!(group.read(|_| ()).wait(), Err(ReadError::NotStarted));
    assert_eq!(group.peek(|_| ()).wait(), Err(ReadError::NotStarted));
}

/// Columns only grow, and no clock says `u64::MAX`: a peer that echoes it is faulty, and no member becomes alone by it.
#[test]
fn a_peer_that_echoes_too_much_makes_nobody_alone() {
    let (mut solo, row, config) = with_a_peer();
    // Sent, received, delivered, stamp, then the echoes of members 0 and 1.
    row.store(8 * 4, u64::MAX);
    solo.now = Time::from_nanos(1_000_000_000);
    let _first = solo.group.read(|ledger| ledger.sum);
    solo.settle();
    solo.step_shard();
    solo.now = solo.now + 10 * config.read_lease();
    solo.clock.store(solo.now.as_nanos(), Ordering::Relaxed);
    let mut read = solo.group.read(|ledger| ledger.sum);
    assert!(poll(&mut read).is_pending(), "ten leases later, and the other one has vouched for nothing");
}

/// Runs `then` while a reader looks, and returns its result once the reader is done.
fn while_one_looks<R>(solo: &mut Solo<Ledger>, then: impl FnOnce(&mut Solo<Ledger>) -> R) -> R {
    let group = solo.group.clone();
    std::thread::scope(|scope| {
        let (looking, looks) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let reader = scope.spawn(move || {
            let look = move |_: &Ledger| {
                looking.send(()).unwrap();
                _ = goes_on.recv();
            };
            assert_eq!(group.peek(look).wait(), Ok(()));
        });
        looks.recv().unwrap();
        let result = then(solo);
        drop(go_on);
        reader.join().unwrap();
        result
    })
}

#[test]
fn deadlines_are_kept_while_one_looks_and_do_not_keep_the_thread_busy() {
    let config = config(|_| ());
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let mut submit = solo.group.submit(&Entry::Add(1)).deadline(Duration::from_millis(1));
    assert!(poll(&mut submit).is_pending());
    solo.settle();
    assert!(solo.task.deadline().is_some());
    while_one_looks(&mut solo, |solo| {
        solo.now = solo.now + Duration::from_millis(2);
        solo.task.step(solo.now, 512).unwrap();
        assert!(poll(&mut submit).is_ready(), "it is late, whoever looks");
        assert!(solo.task.deadline().is_none(), "else the thread steps again and again, and finds nothing to do");
    });
}
