use squall_fabric::sim::{SimConfig, SimFabric, SimNet};
use squall_membership::{Epoch, Incarnation, Layout};
use squall_onepipe::{HostClock, Message, Mode, OnePipe};

use super::*;

const SHARD: ShardId = ShardId(3);

fn view(epoch: u64, nodes: &[u32]) -> Arc<View> {
    let members: Vec<Member> = nodes.iter().map(|&node| Member::new(NodeId(node), Incarnation(1))).collect();
    let first = View::first(members, &Layout::default(), Default::default());
    Arc::new(View { epoch: Epoch(epoch), joined: Vec::new(), ..first })
}

/// A handle in view 5 of nodes 7, 8 and 9, whose place is taken, and the controller of its group.
fn taken() -> (OnePipeHandle, ViewController) {
    let handle = OnePipeHandle::new("orders");
    handle.slot.install(SHARD, &view(5, &[7, 8, 9]), None);
    let (config, controller) = handle.take(Waker::new(|| ()), Duration::ZERO).expect("it is free");
    assert_eq!(config.nodes, [7, 8, 9].map(NodeId));
    assert_eq!((config.tag.group, config.epoch), (3, 5));
    (handle, controller)
}

/// The next settlement of the controller: the epoch, the failed ranks, and the failure timestamp.
fn settles(controller: &mut ViewController) -> Option<(u64, Vec<usize>, u64)> {
    match controller.poll(Time::ZERO)? {
        Directive::Settle(Settlement { epoch, failed, failure_timestamp }) => Some((epoch, failed, failure_timestamp)),
        Directive::Wedge { .. } => None,
    }
}

/// The only rank of its group.
struct Alone {
    fabric: SimFabric,
    pipe: OnePipe<HostClock>,
    now: Time,
}

impl Alone {
    fn taken() -> (OnePipeHandle, Alone, ViewController) {
        let handle = OnePipeHandle::new("orders");
        handle.slot.install(SHARD, &view(5, &[7]), None);
        let (config, controller) = handle.take(Waker::new(|| ()), Duration::MAX).expect("it is free");
        let mut fabric = SimNet::new(SimConfig::fast(), 1).fabric(NodeId(7));
        let gate = controller.gate().cloned().expect("it has one");
        let pipe = OnePipe::with_gate(&mut fabric, config, HostClock::default(), gate).expect("a sound group");
        (handle, Alone { fabric, pipe, now: Time::ZERO }, controller)
    }

    /// Goes on for a while. Returns the barrier that it has accepted.
    fn goes_on(&mut self) -> Seq {
        self.now = self.now + Duration::from_micros(50);
        let message = Message { to: 0, bytes: b"a message" };
        self.pipe.scatter(self.now, Mode::Reliable, &[message]).expect("there is room");
        self.pipe.step(&mut self.fabric, self.now);
        self.pipe.deliver(Mode::Reliable, usize::MAX, &mut |_| {});
        Seq(self.pipe.barrier(Mode::Reliable))
    }

    fn attend(&mut self, controller: &mut ViewController) {
        self.pipe.attend(&mut self.fabric, self.now, controller);
    }
}

#[test]
fn how_far_a_rank_has_gone_is_known_without_asking_it() {
    let (OnePipeHandle { slot }, mut alone, mut controller) = Alone::taken();
    let passed = alone.goes_on();
    assert!(passed > Seq(0));
    assert_eq!(slot.wedge(5), passed);
    assert_eq!(alone.goes_on(), passed, "it goes no further");
    slot.install(SHARD, &view(6, &[7]), Some(passed));
    assert_eq!(slot.wedge(6), passed, "it has not heard of its epoch");
    alone.attend(&mut controller);
    assert_eq!((alone.pipe.epoch(), alone.goes_on()), (6, passed), "which was over before");
    slot.install(SHARD, &view(7, &[7]), Some(passed));
    alone.attend(&mut controller);
    let later = alone.goes_on();
    assert!(later > passed);
    drop(controller);
    assert_eq!(alone.goes_on(), later, "its controller is gone");
    assert_eq!([slot.wedge(7), slot.wedge(8)], [later; 2], "what it has delivered counts");
    slot.drop_out();
    assert_eq!(slot.wedge(9), Seq(0), "to no rank any more");
}

#[test]
fn a_rank_that_is_out_goes_no_further_before_it_knows() {
    let (handle, mut alone, controller) = Alone::taken();
    let passed = alone.goes_on();
    handle.slot.drop_out();
    assert_eq!(alone.goes_on(), passed);
    assert_eq!(handle.slot.wedge(6), Seq(0));
    drop(controller);
    assert_eq!(handle.slot.wedge(7), Seq(0), "it was none of theirs");
}

#[test]
#[should_panic(expected = "the controller closes another gate")]
fn a_rank_with_another_gate_than_its_controllers_is_noticed() {
    let ((_, mut alone, _settler), (_, _, mut other)) = (Alone::taken(), Alone::taken());
    alone.attend(&mut other);
}

#[test]
fn a_view_settles_whether_somebody_went_or_not() {
    let (OnePipeHandle { slot }, mut controller) = taken();
    assert_eq!(slot.wedge(5), Seq(0), "it has delivered nothing");
    slot.install(SHARD, &view(6, &[7, 9]), Some(Seq(65)));
    assert_eq!(settles(&mut controller), Some((6, vec![1], 65)));
    slot.install(SHARD, &view(7, &[7, 9, 10]), Some(Seq(65)));
    assert_eq!(settles(&mut controller), Some((7, Vec::new(), 65)), "no rank went");
    assert_eq!(controller.poll(Time::ZERO), None);
}

#[test]
fn who_was_lost_is_suspected_in_each_view_until_it_goes() {
    let (OnePipeHandle { slot }, mut controller) = taken();
    controller.suspect(5, 1);
    controller.suspect(5, 1);
    controller.suspect(5, 9);
    assert_eq!(slot.take_suspects(), [NodeId(8)]);
    slot.install(SHARD, &view(6, &[7, 8, 9]), Some(Seq(1)));
    assert_eq!(slot.take_suspects(), [NodeId(8)], "the view before was over already");
    slot.install(SHARD, &view(7, &[7, 9]), Some(Seq(1)));
    assert_eq!(slot.take_suspects(), []);
}

#[test]
fn a_node_that_was_dropped_is_out_of_its_group_and_can_be_in_another() {
    let (handle, mut controller) = taken();
    handle.slot.wedge(5);
    handle.slot.drop_out();
    assert_eq!(settles(&mut controller), Some((6, vec![0, 1, 2], 0)));
    handle.slot.install(SHARD, &view(9, &[8, 9, 7]), None);
    assert_eq!(settles(&mut controller), None, "it hears of no later view");
    assert_eq!(handle.slot.wedge(9), Seq(0));
    handle.slot.install(SHARD, &view(10, &[8, 9, 7]), Some(Seq(0)));
    let taken = handle.take(Waker::new(|| ()), Duration::ZERO);
    assert_eq!(taken.map(drop), Err(TakeError::Taken { name: "orders".into() }));
    drop(controller);
    assert!(handle.take(Waker::new(|| ()), Duration::ZERO).is_ok());
}

#[test]
fn a_restart_ends_the_group() {
    let (OnePipeHandle { slot }, mut controller) = taken();
    slot.install(SHARD, &view(6, &[7, 8, 9]), None);
    assert_eq!(settles(&mut controller), Some((6, vec![0, 1, 2], 0)));
}

#[test]
fn between_views_and_after_the_end_no_place_is_taken() {
    let handle = OnePipeHandle::new("orders");
    let take = || handle.take(Waker::new(|| ()), Duration::ZERO).map(drop);
    assert_eq!(take(), Err(TakeError::NoView { limit: Duration::ZERO }));
    handle.slot.install(SHARD, &view(1, &[7]), None);
    assert_eq!(take(), Ok(()));
    handle.slot.wedge(1);
    assert_eq!(take(), Err(TakeError::NoView { limit: Duration::ZERO }));
    handle.slot.end(&EndReason::Left);
    assert_eq!(take(), Err(TakeError::Ended(EndReason::Left)));
}
