//! Single rules, with a run for each.

use std::time::Duration;

use squall_fabric::{Fabric, sim::SimNet};
use squall_onepipe::{Message, Mode, OnePipe, OnePipeConfig, SkewedClock, Topology};

use crate::{
    exposed::Exposed,
    world::{Rank, World, check, config, fast},
};

/// A flat group whose clocks agree, and whose barriers are told only when a rank waits for them.
fn group(n: usize, clock: SkewedClock) -> World {
    let config = OnePipeConfig { activity: Duration::ZERO, ..config(n) };
    let mut world = World::create(fast(), 3, &config, &vec![clock; n]);
    world.is_draining = true;
    world
}

#[test]
fn what_is_sent_before_the_first_step_has_one_timestamp_everywhere() {
    for mode in Mode::ALL {
        let mut world = group(2, SkewedClock { origin: 3 << 48, ..SkewedClock::default() });
        world.scatter(0, mode, &[0, 1], 40).expect("there is room");
        world.drain("sent before connecting");
        check::all(&world);
    }
}

#[test]
fn what_is_sent_after_days_of_silence_has_one_timestamp_everywhere() {
    let hierarchy = Topology::Hierarchy { racks: vec![vec![0], vec![1], vec![2]], degree: 1 };
    for (mode, topology) in Mode::ALL.into_iter().flat_map(|mode| [(mode, Topology::Flat), (mode, hierarchy.clone())]) {
        let config = OnePipeConfig { topology, activity: Duration::ZERO, ..config(3) };
        let mut world = World::new(fast(), 3, &config, &[SkewedClock::default(); 3]);
        world.is_draining = true;
        for hours in [0, 50, 50] {
            world.pass(Duration::from_secs(hours * 3600));
            for from in [0, 2, 1] {
                world.scatter(from, mode, &[0, 1, 2], 40).expect("there is room");
                world.pass(Duration::from_micros(30));
            }
            world.drain("after the silence");
            check::all(&world);
        }
    }
}

/// A rank that was removed is not waited for, whatever it has said.
#[test]
fn a_group_becomes_quiet_without_a_rank_whose_clock_is_hours_ahead() {
    for topology in [Topology::Flat, Topology::Hierarchy { racks: vec![vec![2], vec![0], vec![1]], degree: 1 }] {
        let config = OnePipeConfig {
            topology,
            activity: Duration::ZERO,
            beacon_interval: Duration::from_millis(1),
            ..config(3)
        };
        let clock = |hours: i64| SkewedClock { offset: hours * 3_600_000_000_000, ..SkewedClock::default() };
        let mut world = World::new(fast(), 3, &config, &[clock(0), clock(0), clock(10)]);
        world.is_draining = true;
        world.scatter(2, Mode::Reliable, &[0, 1], 40).expect("there is room");
        world.pass(Duration::from_millis(10));
        world.court.accuse(2);
        world.drain("without the one that is ahead");
        check::all(&world);
    }
}

#[test]
fn what_is_stamped_while_a_clock_shows_nothing_is_waited_for() {
    for mode in Mode::ALL {
        let mut world = group(2, SkewedClock { offset: -1_000_000, ..SkewedClock::default() });
        world.scatter(0, mode, &[1], 40).expect("there is room");
        world.drain("sent at the clocks' beginning");
        check::all(&world);
    }
}

/// Room of recalled messages is told, though nothing is delivered.
#[test]
fn what_waits_for_the_room_of_recalled_messages_is_sent() {
    for receiver in [0, 1] {
        let mut world = group(3, SkewedClock::default());
        world.connect();
        let longest = world.pipe(0).max_message();
        for _ in 0..4 {
            world.scatter(0, Mode::Reliable, &[receiver, 2], longest).expect("there is room");
        }
        world.scatter(0, Mode::Reliable, &[receiver], longest).expect("it may wait");
        // Rank 2 has acknowledged nothing of what came.
        world.crash(2);
        world.drain("after the failure");
        check::all(&world);
        assert_eq!(world.logs[receiver].received[Mode::Reliable as usize].len(), 1);
    }
}

/// Steps a rank, delivers at most `max` messages of each mode, and returns their lengths.
fn turn(world: &mut World, rank: usize, max: usize) -> Vec<usize> {
    let now = world.net.now();
    let Some(Rank { fabric, pipe, .. }) = &mut world.ranks[rank] else { return Vec::new() };
    let (mut completions, mut lengths) = (Vec::new(), Vec::new());
    fabric.poll(now, &mut completions);
    for completion in &completions {
        pipe.on_completion(fabric, now, completion);
    }
    pipe.step(fabric, now);
    for mode in Mode::ALL {
        pipe.deliver(mode, max, &mut |delivery| lengths.push(delivery.bytes.len()));
    }
    lengths
}

#[test]
fn small_messages_that_keep_coming_do_not_starve_a_large_one() {
    for mode in Mode::ALL {
        let mut world = group(2, SkewedClock::default());
        world.connect();
        let longest = world.pipe(0).max_message();
        let send = |world: &mut World, bytes: usize| {
            let (now, payload) = (world.net.now(), vec![0; bytes]);
            let pipe = &mut world.ranks[0].as_mut().expect("it is alive").pipe;
            pipe.scatter(now, mode, &[Message { to: 1, bytes: &payload }]).is_ok()
        };
        // The ring is full of small ones: there is room again for two of them in each round.
        const BEFORE: usize = 1024 / 40;
        (0..BEFORE).for_each(|_| assert!(send(&mut world, 24)));
        assert!(send(&mut world, longest));
        let mut rounds = 0;
        let mut lengths = Vec::new();
        while !lengths.contains(&longest) {
            rounds += 1;
            assert!(
                rounds < 60 && lengths.len() < BEFORE + 5,
                "the large one is starved: {} went before it",
                lengths.len()
            );
            turn(&mut world, 0, 0);
            (0..8).for_each(|_| _ = send(&mut world, 24));
            let later = world.net.now() + Duration::from_micros(20);
            while world.net.advance(later, &mut Vec::new()) < later {}
            lengths.extend(turn(&mut world, 1, 2));
        }
    }
}

/// Lets some ranks go on for a while, and the others hang.
fn go_on(world: &mut World, ranks: &[usize]) {
    for _ in 0..100 {
        ranks.iter().for_each(|&rank| _ = turn(world, rank, usize::MAX));
        let later = world.net.now() + Duration::from_micros(20);
        while world.net.advance(later, &mut Vec::new()) < later {}
    }
}

fn send(world: &mut World, from: usize, mode: Mode, to: usize, bytes: usize) {
    let (now, payload) = (world.net.now(), vec![0; bytes]);
    let pipe = &mut world.ranks[from].as_mut().expect("it is alive").pipe;
    pipe.scatter(now, mode, &[Message { to, bytes: &payload }]).expect("it may wait");
}

fn waits(world: &World, mode: Mode) -> [Option<usize>; 2] {
    [0, 1].map(|rank| world.pipe(rank).waits_for(mode))
}

#[test]
fn a_rank_that_hangs_is_named() {
    for mode in Mode::ALL {
        let mut world = group(3, SkewedClock::default());
        world.connect();
        assert_eq!(waits(&world, mode), [None; 2]);
        send(&mut world, 0, mode, 1, 40);
        go_on(&mut world, &[0, 1]);
        assert_eq!(waits(&world, mode), [Some(2); 2], "its barrier is missing");
        go_on(&mut world, &[0, 1, 2]);
        assert_eq!(waits(&world, mode), [None; 2]);
    }
}

#[test]
fn in_a_hierarchy_the_neighbour_is_named_behind_which_a_rank_hangs() {
    for mode in Mode::ALL {
        let topology = Topology::Hierarchy { racks: vec![vec![0], vec![1], vec![2]], degree: 1 };
        let config = OnePipeConfig { topology, activity: Duration::ZERO, ..config(3) };
        let mut world = World::create(fast(), 3, &config, &[SkewedClock::default(); 3]);
        world.is_draining = true;
        world.connect();
        send(&mut world, 1, mode, 0, 40);
        go_on(&mut world, &[0, 1]);
        assert_eq!(waits(&world, mode), [Some(1), Some(2)]);
        go_on(&mut world, &[0, 1, 2]);
        assert_eq!(waits(&world, mode), [None; 2]);
    }
}

/// The receiver's barrier is far ahead when it hangs, so its acknowledgements are missing, or the room of messages that
/// it does not take.
#[test]
fn a_receiver_that_hangs_is_named() {
    let ahead = SkewedClock { offset: 60_000_000_000, ..SkewedClock::default() };
    let clocks = [SkewedClock::default(), SkewedClock::default(), ahead];
    let config = OnePipeConfig { activity: Duration::ZERO, ..config(3) };
    for mode in Mode::ALL {
        let mut world = World::create(fast(), 3, &config, &clocks);
        world.is_draining = true;
        world.connect();
        // The timestamp that rank 0 wants makes rank 2 tell its barrier.
        send(&mut world, 0, mode, 1, 40);
        go_on(&mut world, &[0, 1, 2]);
        let longest = world.pipe(0).max_message();
        (0..5).for_each(|_| send(&mut world, 0, mode, 2, longest));
        go_on(&mut world, &[0, 1]);
        assert_eq!(world.pipe(0).waits_for(mode), Some(2));
        go_on(&mut world, &[0, 1, 2]);
        assert_eq!(waits(&world, mode), [None; 2]);
    }
}

#[test]
fn no_two_ranks_are_given_the_same_memory() {
    let config = config(4);
    let mut fabric = Exposed::new(SimNet::new(fast(), 1).fabric(config.nodes[0]));
    OnePipe::create(&mut fabric, config.clone(), SkewedClock::default()).expect("a sound configuration");
    assert_eq!(fabric.shared(&config.nodes[1..]), 0);
}
