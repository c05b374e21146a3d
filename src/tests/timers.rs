//! Replicas that are woken in the group's time.

use std::time::{Instant, SystemTime};

use super::*;
use crate::{Hlc, Node, Spin, config::Backend};

/// A replica that is woken at a time, and remembers when it was.
#[derive(Debug, Default)]
struct Alarm {
    wake_at: Option<Hlc>,
    /// Whether it asks for the present again and again.
    insists: bool,
    woken: Vec<Hlc>,
    applied: usize,
}

impl Replicated for Alarm {
    /// The time at which it is to be woken, in nanoseconds.
    type Command = u64;
    type Reply = ();

    fn apply(&mut self, wake_at: &Archived<u64>, _: &Applied) {
        self.wake_at = Some(Hlc(wake_at.to_native()));
        self.applied += 1;
    }

    fn wake_at(&self) -> Option<Hlc> {
        self.wake_at
    }

    fn woken(&mut self, at: &Applied) {
        assert!(self.wake_at.is_some_and(|wake_at| wake_at <= at.time), "it is too early");
        self.woken.push(at.time);
        if !self.insists {
            self.wake_at = None;
        }
    }
}

const MS: u64 = 1_000_000;

fn alarm(insists: bool, mode: Mode) -> Solo<Alarm> {
    Solo::with(Alarm { insists, ..Alarm::default() }, |group| _ = group.mode(mode))
}

/// Lets time pass, in steps of half a millisecond.
fn pass(solo: &mut Solo<Alarm>, ms: u64) {
    (0..2 * ms).for_each(|_| solo.advance(Duration::from_micros(500)));
}

fn woken(solo: &mut Solo<Alarm>) -> Vec<Hlc> {
    let mut woken = solo.group.peek(|alarm| alarm.woken.clone());
    solo.settle();
    let Poll::Ready(Ok(woken)) = poll(&mut woken) else { panic!("it peeks") };
    woken
}

#[test]
fn a_replica_is_woken_once_and_not_too_early() {
    let mut solo = alarm(false, Mode::Ordered);
    drop(solo.group.submit(&(20 * MS)));
    solo.settle();
    let due = solo.task.deadline().expect("it waits for the time");
    assert!(due <= Time::from_nanos(20 * MS), "{due:?}");
    solo.advance(Duration::from_nanos(20 * MS - 1));
    assert_eq!(woken(&mut solo), []);
    pass(&mut solo, 3);
    let times = woken(&mut solo);
    assert!(times.len() == 1 && times[0] >= Hlc(20 * MS), "{times:?}");
    pass(&mut solo, 100);
    assert_eq!(woken(&mut solo).len(), 1);
    assert_eq!(solo.task.deadline(), None, "it waits for nothing");
}

#[test]
fn a_replica_that_always_wants_to_be_woken_is_woken_once_a_millisecond() {
    let mut solo = alarm(true, Mode::Ordered);
    drop(solo.group.submit(&0));
    (0..100).for_each(|_| solo.advance(Duration::from_micros(100)));
    let times = woken(&mut solo);
    assert!((8..=11).contains(&times.len()), "{times:?}");
}

#[test]
fn a_tick_that_comes_twice_or_too_early_wakes_none() {
    let mut solo = alarm(false, Mode::Ordered);
    let tick = |solo: &mut Solo<Alarm>| {
        drop(solo.group.submit_bytes(&[]));
        solo.settle();
    };
    tick(&mut solo);
    drop(solo.group.submit(&(20 * MS)));
    solo.settle();
    tick(&mut solo);
    assert_eq!(woken(&mut solo), []);
    solo.advance(Duration::from_millis(21));
    tick(&mut solo);
    assert_eq!(woken(&mut solo).len(), 1);
}

#[test]
fn a_wake_up_time_is_kept_through_a_view_change() {
    let mut solo = alarm(false, Mode::Ordered);
    drop(solo.group.submit(&(20 * MS)));
    solo.settle();
    // Time goes on while no view is there to order anything.
    let undelivered = solo.end_view();
    solo.now = solo.now + Duration::from_millis(30);
    solo.install_next(undelivered, |_| ());
    pass(&mut solo, 2);
    assert_eq!(woken(&mut solo).len(), 1);
}

#[test]
fn a_member_of_an_unordered_group_is_never_woken() {
    let mut solo = alarm(true, Mode::Unordered);
    drop(solo.group.submit(&0));
    solo.advance(Duration::from_millis(5));
    assert_eq!(woken(&mut solo), []);
}

#[test]
fn commands_without_bytes_are_told_apart_from_ticks() {
    #[derive(Default)]
    struct Bell(u64, u64);

    impl Replicated for Bell {
        type Command = ();
        type Reply = u64;

        fn apply(&mut self, _: &Archived<()>, _: &Applied) -> u64 {
            self.0 += 1;
            self.0
        }

        fn wake_at(&self) -> Option<Hlc> {
            (self.1 == 0).then_some(Hlc(0))
        }

        fn woken(&mut self, _: &Applied) {
            self.1 += 1;
        }
    }

    let mut solo = Solo::with(Bell::default(), |_| ());
    let mut submit = solo.group.submit(&());
    solo.advance(Duration::from_millis(2));
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(1)));
    let mut seen = solo.group.peek(|bell| (bell.0, bell.1));
    solo.settle();
    assert_eq!(poll(&mut seen), Poll::Ready(Ok((1, 1))));
}

#[test]
fn a_node_that_sleeps_wakes_for_a_timer() {
    let config = Config::builder(format!("timers-{}", std::process::id()), 1).members([1]).spin(Spin::Never);
    let mut node = Node::builder(config.backend(Backend::Shm).build().unwrap());
    let group = node.group("alarm", Alarm::default());
    let node = node.start().expect("it starts");
    let at = Hlc::from(SystemTime::now() + Duration::from_millis(50));
    group.submit(&at.0).wait().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let woken = loop {
        let woken = group.peek(|alarm| alarm.woken.clone()).wait().unwrap();
        if !woken.is_empty() {
            break woken;
        }
        assert!(Instant::now() < until, "it is not woken");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(woken.len() == 1 && woken[0] >= at, "{woken:?}, {at:?}");
    node.shutdown();
}
