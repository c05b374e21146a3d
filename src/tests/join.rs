//! A node that joins a group gets its state, and all that is delivered meanwhile.

use std::sync::{Mutex, mpsc};

use squall_fabric::sim::{SimConfig, SimFabric, SimNet};
use squall_membership::Seq;

use super::*;
use crate::{
    Outcome, ReadError, SubmitError, Unavailable,
    capture::{
        exchange::{ReplicaStatus, Wanted},
        state::{CaptureError, Captured, Frontier, Reached, RestoreError},
    },
    state_transfer::wire::OfferKind,
};

const OLD: NodeId = NodeId(1);
const NEW: NodeId = NodeId(2);
const STATE: OfferKind = OfferKind::State { epoch: Epoch(1), seq: Seq(0), chain: None };

/// One node of a [`Pair`].
struct Half {
    fabric: SimFabric,
    shard: Option<Shard>,
    task: Box<dyn Task>,
    control: Arc<dyn GroupControl>,
    group: Group<Ledger>,
    /// Whether its application is called.
    delivers: bool,
}

/// Two nodes on a simulated network.
struct Pair {
    net: SimNet,
    shard_config: ShardConfig,
    view: View,
    old: Half,
    new: Half,
}

impl Pair {
    /// The old node in a view of its own.
    fn new() -> Pair {
        let (net, config) = (SimNet::new(SimConfig::fast(), 1), config(|_| ()));
        let (lease, timeout) = (config.read_lease(), config.failure_timeout());
        let shard_config = config.group("ledger").shard_config(BulkPath::Network, lease, timeout);
        let half = |node| {
            let (group, spec) = new_group("ledger", Ledger::default(), &config);
            let (task, control) = spec.attach(
                node,
                Waker::new(|| ()),
                Now::Virtual { boot: Arc::default(), wall: Arc::default() },
                Arc::default(),
                None,
            );
            Half { fabric: net.fabric(node), shard: None, task, control, group, delivers: true }
        };
        let (old, new) = (half(OLD), half(NEW));
        let mut pair = Pair { shard_config, view: first_view(&[OLD], &[OLD]), old, new, net };
        pair.old.install(&pair.view, &pair.shard_config, false);
        pair
    }

    /// Installs a view of both, in which the new node may have to get the state.
    fn install(&mut self, complete: &[NodeId], fell_short: bool) {
        let nodes = [OLD, NEW];
        let mut view = first_view(&nodes, complete);
        view.shards[0].complete = complete.to_vec();
        view.epoch = Epoch(self.view.epoch.0 + 1);
        view.joined = nodes.into_iter().filter(|&node| self.view.rank_of(node).is_none()).collect();
        self.view = view;
        self.old.install(&self.view, &self.shard_config, false);
        self.new.install(&self.view, &self.shard_config, fell_short);
        self.settle();
    }

    /// Steps both until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..100 {
            let until = self.net.now() + Duration::from_micros(5);
            while self.net.advance(until, &mut Vec::new()) < until {}
            self.old.step(until);
            self.new.step(until);
        }
    }

    /// Checks that both replicas are alike, and returns their sum.
    fn sum(&self) -> u64 {
        let look = |half: &Half| half.group.peek(|ledger| (ledger.sum, ledger.applied, ledger.views.clone())).wait();
        let (old, new) = (look(&self.old).unwrap(), look(&self.new).unwrap());
        assert_eq!(old, new);
        old.0
    }

    fn send(&mut self, number: u64) {
        self.old.group.try_send(&Entry::Add(number)).unwrap();
        self.settle();
    }
}

impl Half {
    /// Ends the view, if there is one, and installs the next.
    fn install(&mut self, view: &View, config: &ShardConfig, fell_short: bool) {
        let mut resubmit = Vec::new();
        if let Some(mut shard) = self.shard.take() {
            let trim = shard.wedge();
            shard.clean_up(trim, true);
            while !shard.is_ended() {
                shard.step(&mut self.fabric, Time::ZERO);
                self.task.step(Time::ZERO, 512).unwrap();
            }
            resubmit = shard.undelivered().unwrap();
            shard.disconnect(&mut self.fabric);
        }
        let (submitter, shard, deliverer) = squall_ordered::create(&mut self.fabric, view, SHARD, config).unwrap();
        let view = Arc::new(view.clone());
        self.task.change(ShardChange::Install(Box::new(Installed {
            view,
            shard: SHARD,
            submitter,
            deliverer,
            resubmit,
            fell_short,
        })));
        self.shard = Some(shard);
    }

    fn step(&mut self, now: Time) {
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        let Some(shard) = &mut self.shard else { return };
        for completion in &completions {
            shard.on_completion(&mut self.fabric, completion);
        }
        shard.step(&mut self.fabric, now);
        if self.delivers && self.task.is_due() {
            self.task.step(now, 512).unwrap();
        }
    }

    /// Captures the state, and returns its epoch and its bytes.
    fn captured(&mut self) -> Result<(Epoch, Vec<u8>), CaptureError> {
        capture(&*self.control, &mut *self.task)
    }
}

fn capture(control: &dyn GroupControl, task: &mut dyn Task) -> Result<(Epoch, Vec<u8>), CaptureError> {
    let (reply, answer) = mpsc::channel();
    control.capture(Wanted::State, Box::new(move |captured| reply.send(captured).unwrap()));
    assert!(task.is_due() && control.wants_delivery());
    task.step(Time::ZERO, 512).unwrap();
    let captured = answer.try_recv().expect("the next step answers")?;
    let (epoch, mut bytes) = (captured.epoch, Vec::new());
    captured.write(&mut bytes).unwrap();
    Ok((epoch, bytes))
}

#[test]
fn a_joiner_gets_the_state_and_what_was_delivered_since() {
    let mut pair = Pair::new();
    pair.send(1);
    pair.install(&[OLD], false);
    assert_eq!(pair.old.control.replica_status(), ReplicaStatus::Complete);
    let ReplicaStatus::Incomplete { .. } = pair.new.control.replica_status() else { panic!("it has no state") };
    pair.send(10);
    let (epoch, state) = pair.old.captured().unwrap();
    assert_eq!(epoch, Epoch(2));
    pair.send(100);

    let joining = SubmitError::Unavailable { why: Unavailable::Joining, outcome: Outcome::NotAccepted };
    let error = ReadError::Unavailable { why: Unavailable::Joining };
    assert_eq!(pair.new.group.submit(&Entry::Add(1)).wait(), Err(joining.clone()));
    assert_eq!(pair.new.group.read(|_| ()).wait(), Err(error));
    assert_eq!(pair.new.captured().err(), Some(CaptureError::NotComplete));

    pair.new.control.restore(STATE, &mut state.as_slice()).unwrap();
    pair.settle();
    assert_eq!(pair.new.control.replica_status(), ReplicaStatus::Complete);
    assert_eq!(pair.sum(), 111);
    assert_eq!(pair.new.group.submit(&Entry::Add(1)).wait(), Err(joining), "it is no sender in this view");
    let mut read = pair.new.group.read(|ledger| ledger.sum);
    pair.settle();
    assert_eq!(poll(&mut read), Poll::Ready(Ok(111)), "a member that has the state answers");
    pair.send(1000);

    pair.install(&[OLD, NEW], false);
    let mut submit = pair.new.group.submit(&Entry::Add(10_000));
    pair.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(11_111)));
    assert_eq!(pair.sum(), 11_111);
}

#[test]
fn a_state_of_the_view_before_is_followed_by_the_view_and_its_messages() {
    let mut pair = Pair::new();
    pair.install(&[OLD], false);
    pair.send(1);
    let (_, state) = pair.old.captured().unwrap();
    pair.send(10);
    pair.install(&[OLD], false);
    pair.send(100);
    pair.new.control.restore(STATE, &mut state.as_slice()).unwrap();
    pair.settle();
    assert_eq!(pair.new.control.replica_status(), ReplicaStatus::Complete);
    assert_eq!(pair.sum(), 111);
}

#[test]
fn a_state_that_is_ahead_is_not_applied_to_twice() {
    let mut pair = Pair::new();
    pair.install(&[OLD], false);
    pair.new.delivers = false;
    pair.send(1);
    pair.send(10);
    let (_, state) = pair.old.captured().unwrap();
    pair.new.control.restore(STATE, &mut state.as_slice()).unwrap();
    pair.new.delivers = true;
    pair.send(100);
    assert_eq!(pair.new.control.replica_status(), ReplicaStatus::Complete);
    assert_eq!(pair.sum(), 111);
}

#[test]
fn a_gap_makes_older_states_useless() {
    let mut pair = Pair::new();
    pair.install(&[OLD], false);
    let ReplicaStatus::Incomplete { fetch: first } = pair.new.control.replica_status() else {
        panic!("it has no state")
    };
    let (_, state) = pair.old.captured().unwrap();
    pair.install(&[OLD], true);
    let ReplicaStatus::Incomplete { fetch: second } = pair.new.control.replica_status() else {
        panic!("it has no state")
    };
    assert_ne!(first, second, "what was fetched before is of no use");
    pair.new.control.restore(STATE, &mut state.as_slice()).unwrap();
    pair.settle();
    let ReplicaStatus::Incomplete { fetch: third } = pair.new.control.replica_status() else {
        panic!("there is a gap")
    };
    assert_ne!(second, third);
    let (_, state) = pair.old.captured().unwrap();
    pair.new.control.restore(STATE, &mut state.as_slice()).unwrap();
    pair.settle();
    assert_eq!(pair.new.control.replica_status(), ReplicaStatus::Complete);
    assert_eq!(pair.sum(), 0);
}

/// Installs a view of two in which this node needs a state, and the other never shows up.
fn joiner<S: Service>(solo: &mut Solo<S>) {
    solo.shard.wedge();
    solo.task.change(outside(Vec::new(), Unavailable::Dropped { epoch: Epoch(2) }));
    assert_eq!(solo.control.replica_status(), ReplicaStatus::Outside);
    solo.view.epoch = Epoch(2);
    solo.install_next(Vec::new(), |view| {
        view.members.push(Member::new(NodeId(9), Incarnation(1)));
        view.shards[0].members.push(NodeId(9));
        (view.shards[0].complete, view.shards[0].senders) = (vec![NodeId(9)], vec![NodeId(9)]);
    });
}

fn state(epoch: u64, application: &[u8]) -> Vec<u8> {
    let reached =
        Reached { frontier: Frontier { epoch: Epoch(epoch), turns: vec![0] }, time: squall_ordered::log::Hlc(0) };
    let mut bytes = Vec::new();
    Captured::new(reached, Snapshot::of_bytes(application), None).unwrap().write(&mut bytes).unwrap();
    bytes
}

fn ledger(sum: u64) -> Vec<u8> {
    [sum, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_dropped_node_comes_back_with_the_same_handles_and_another_state() {
    let mut solo = Solo::new(|_| ());
    solo.group.try_send(&Entry::Add(5)).unwrap();
    solo.settle();
    joiner(&mut solo);
    assert_eq!(solo.group.peek(|ledger| ledger.sum).wait(), Ok(5), "a stale look shows what it had");
    solo.control.restore(STATE, &mut state(3, &ledger(70)).as_slice()).unwrap();
    solo.settle();
    assert_eq!(solo.control.replica_status(), ReplicaStatus::Complete);
    assert_eq!(solo.group.peek(|ledger| ledger.sum).wait(), Ok(70));
    let nodes = vec![NodeId(1)];
    let undelivered = solo.end_view();
    solo.install_next(undelivered, |view| {
        view.members.pop();
        view.shards[0] = ShardView::whole(SHARD, nodes.clone(), nodes);
    });
    let mut submit = solo.group.submit(&Entry::Add(1));
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(71)));
}

#[test]
fn what_is_no_state_changes_nothing_and_a_broken_one_can_be_replaced() {
    let mut solo = Solo::new(|_| ());
    let complete = solo.control.restore(STATE, &mut state(1, &ledger(1)).as_slice());
    assert!(matches!(complete, Err(RestoreError::NotNeeded)));
    joiner(&mut solo);
    let good = state(3, &ledger(7));
    for len in 0..good.len() {
        let cut = solo.control.restore(STATE, &mut &good[..len]);
        assert!(matches!(cut, Err(RestoreError::Failed(_))), "{len} bytes: {cut:?}");
    }
    for byte in [0, 8, 15] {
        let mut bad = good.clone();
        bad[byte] ^= 0x80;
        let refused = solo.control.restore(STATE, &mut bad.as_slice());
        assert!(matches!(refused, Err(RestoreError::Foreign(_))), "byte {byte}: {refused:?}");
    }
    solo.settle();
    assert!(matches!(solo.control.replica_status(), ReplicaStatus::Incomplete { .. }));
    solo.control.restore(STATE, &mut good.as_slice()).unwrap();
    solo.settle();
    assert_eq!(solo.control.replica_status(), ReplicaStatus::Complete);
}

#[test]
fn a_state_of_a_view_to_come_waits_for_it() {
    let mut solo = Solo::new(|_| ());
    joiner(&mut solo);
    solo.control.restore(STATE, &mut state(4, &ledger(7)).as_slice()).unwrap();
    solo.settle();
    assert!(matches!(solo.control.replica_status(), ReplicaStatus::Incomplete { .. }));
    solo.next_view();
    solo.settle();
    assert_eq!(solo.control.replica_status(), ReplicaStatus::Complete);
}

/// Two numbers, restored one after the other.
#[derive(Debug, Default, PartialEq, Eq)]
struct Halves(u64, u64);

impl Replicated for Halves {
    type Command = u64;
    type Reply = ();

    fn apply(&mut self, _: &Archived<u64>, _: &Applied) {}

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        for half in [&mut self.0, &mut self.1] {
            let mut word = [0; 8];
            from.read_exact(&mut word)?;
            *half = u64::from_le_bytes(word);
        }
        Ok(())
    }
}

#[test]
fn who_has_its_state_takes_no_second_one_that_may_break_off() {
    let mut solo = Solo::with(Halves::default(), |_| ());
    joiner(&mut solo);
    // It is of a view to come, so the node still lacks something.
    solo.control.restore(STATE, &mut state(4, &ledger(7)).as_slice()).unwrap();
    let second = state(4, &ledger(9));
    for settled in [false, true] {
        let cut = solo.control.restore(STATE, &mut &second[..second.len() - 8]);
        assert!(matches!(cut, Err(RestoreError::NotNeeded)), "settled: {settled}: {cut:?}");
        solo.settle();
    }
    solo.next_view();
    solo.settle();
    assert_eq!(solo.control.replica_status(), ReplicaStatus::Complete);
    assert_eq!(solo.group.peek(|halves| (halves.0, halves.1)).wait(), Ok((7, 0)));
}

/// A replica that carries no state, and panics if its text is `panic`.
struct Told(&'static str);

impl Replicated for Told {
    type Command = u64;
    type Reply = ();

    fn apply(&mut self, _: &Archived<u64>, _: &Applied) {}

    fn snapshot(&self) -> Snapshot {
        assert_ne!(self.0, "panic", "this replica panics");
        Snapshot::unsupported()
    }

    fn restore(&mut self, _: &mut dyn io::Read) -> io::Result<()> {
        assert_ne!(self.0, "panic", "this replica panics");
        Ok(())
    }
}

#[test]
fn a_state_that_can_not_be_captured_is_a_clear_error_and_harms_nobody() {
    for (told, error) in [("refuse", CaptureError::Unsupported), ("panic", CaptureError::Panicked)] {
        let mut solo = Solo::with(Told(told), |_| ());
        assert_eq!(capture(&*solo.control, &mut *solo.task).err(), Some(error), "{told}");
        let mut submit = solo.group.submit(&1);
        solo.settle();
        assert_eq!(poll(&mut submit), Poll::Ready(Ok(())));
    }
}

#[test]
fn a_panic_in_restore_is_told_and_nobody_sees_the_replica_again() {
    let mut solo = Solo::with(Told("panic"), |_| ());
    joiner(&mut solo);
    for _ in 0..2 {
        assert!(matches!(solo.control.restore(STATE, &mut state(3, &[]).as_slice()), Err(RestoreError::Panicked)));
    }
    let mut peek = solo.group.peek(|_| ());
    solo.settle();
    assert!(poll(&mut peek).is_pending());
    solo.end(&EndReason::Panicked, Fate::Unknown);
    assert_eq!(poll(&mut peek), Poll::Ready(Err(ReadError::Ended { reason: EndReason::Panicked })));
}

#[test]
fn who_asks_for_the_state_at_the_end_gets_an_answer() {
    let mut solo = Solo::new(|_| ());
    let answers = Arc::new(Mutex::new(Vec::new()));
    let ask = |solo: &Solo<Ledger>| {
        let answers = Arc::clone(&answers);
        solo.control.capture(Wanted::State, Box::new(move |captured| answers.lock().unwrap().push(captured.err())));
    };
    ask(&solo);
    solo.end(&EndReason::ShutDown, Fate::Unknown);
    ask(&solo);
    let error = Some(CaptureError::Ended(EndReason::ShutDown));
    assert_eq!(*answers.lock().unwrap(), [error.clone(), error]);
}
