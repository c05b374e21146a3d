//! The rules that must hold in every run. A failure names its seed.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::{
    super::{
        core::ClientCore,
        effect::{Ask, CallId, ClientEffect},
        error::ClientError,
    },
    world::{Limits, World},
};
use crate::clients::{
    contacts::Contacts,
    wire::{Consistency, Members, ToClient, ToNode},
};

const WIDE: Limits = Limits { window: 16, reply_bytes: 1 << 20 };

/// Runs commands with trouble of some kinds, and then calm.
fn run(seed: u64, limits: Limits, trouble: u32, limit: Duration) -> World {
    let mut world = World::new(seed, limits);
    let mut made = 0;
    for _ in 0..3000 {
        if world.random.u32(..20) == 0 {
            world.submit(made, limit);
            made += 1;
        }
        match world.random.u32(..1000) {
            0..8 if trouble > 0 => world.cut(false),
            8..16 if trouble > 0 => world.cut(true),
            16..18 if trouble > 0 => world.send_away(),
            18..20 if trouble > 1 => world.expire(),
            _ => world.step(),
        }
    }
    world.settle();
    assert_eq!(world.results.len() as u64, made, "seed {seed}: a call never ended");
    world
}

fn applied(world: &World) -> BTreeMap<Vec<u8>, usize> {
    let mut applied = BTreeMap::new();
    for command in world.applied() {
        *applied.entry(command.clone()).or_default() += 1;
    }
    applied
}

/// Checks that every command is applied at most once, and that the result of its call is true.
fn check(seed: u64, world: &World) {
    let applied = applied(world);
    assert!(applied.values().all(|&times| times == 1), "seed {seed}: {applied:?}");
    for (CallId(id), (_, result)) in &world.results {
        let times = applied.get(id.to_le_bytes().as_slice()).copied().unwrap_or(0);
        match result {
            Ok(reply) => {
                assert_eq!(times, 1, "seed {seed}: command {id} was answered");
                let place = u64::from_le_bytes(reply[..8].try_into().unwrap());
                assert_eq!(world.applied()[place as usize - 1], reply[8..], "seed {seed}: the reply is another's");
            }
            Err(error) if error.is_not_applied() => assert_eq!(times, 0, "seed {seed}: command {id}: {error}"),
            Err(_) => {}
        }
    }
}

#[test]
fn without_trouble_all_commands_are_answered() {
    for seed in 0..20 {
        let world = run(seed, WIDE, 0, Duration::from_secs(60));
        check(seed, &world);
        assert!(world.results.values().all(|(_, result)| result.is_ok()), "seed {seed}");
    }
}

#[test]
fn members_that_die_and_connections_that_break_cost_time_and_nothing_else() {
    for seed in 0..100 {
        let world = run(seed, WIDE, 1, Duration::from_secs(3600));
        check(seed, &world);
        assert!(world.results.values().all(|(_, result)| result.is_ok()), "seed {seed}: {:?}", world.results);
    }
}

#[test]
fn a_narrow_window_and_little_room_for_replies_delay_commands_and_lose_none() {
    for seed in 0..100 {
        let world = run(seed, Limits { window: 3, reply_bytes: 20 }, 1, Duration::from_secs(3600));
        check(seed, &world);
        assert!(world.results.values().all(|(_, result)| result.is_ok()), "seed {seed}: {:?}", world.results);
    }
}

#[test]
fn what_is_said_of_a_command_is_true_when_sessions_end_and_deadlines_pass() {
    for seed in 0..200 {
        let limit = Duration::from_millis(seed % 7 * 30 + 20);
        let world = run(seed, WIDE, 2, limit);
        check(seed, &world);
    }
}

#[test]
fn every_call_ends_by_its_deadline_when_nobody_is_there() {
    let mut world = World::new(1, WIDE);
    world.submit(0, Duration::from_millis(100));
    for _ in 0..400 {
        world.step();
        world.cut(true);
    }
    let (at, result) = &world.results[&CallId(0)];
    assert!(matches!(result, Err(ClientError::Deadline { .. })), "{result:?}");
    assert!(at.as_nanos() <= 102_000_000, "{at:?}");
}

#[test]
fn queries_are_asked_again_on_the_next_connection() {
    for seed in 0..50 {
        let mut world = World::new(seed, WIDE);
        for id in 0..100 {
            world.query(id, Duration::from_secs(3600));
            world.step();
            world.step();
            if id % 5 == 0 {
                world.cut(true);
            }
        }
        world.settle();
        for id in 0..100 {
            assert_eq!(world.results[&CallId(id)].1, Ok(id.to_le_bytes().to_vec()), "seed {seed}");
        }
    }
}

#[test]
fn a_command_that_the_group_would_not_take_is_refused_before_it_is_sent() {
    let mut world = World::new(1, WIDE);
    world.call(0, Ask::Command(vec![0; 1001]), Duration::from_secs(60));
    world.submit(1, Duration::from_secs(60));
    world.settle();
    assert!(matches!(world.results[&CallId(0)].1, Err(ClientError::Rejected(_))));
    assert!(world.results[&CallId(1)].1.is_ok());
}

#[test]
fn a_client_pings_three_times_in_the_silence_after_which_it_gives_a_member_up() {
    let contacts = Contacts::new(vec![DialTarget::on_host(NodeId(1))], 0);
    let silence = Duration::from_secs(9);
    let mut core = ClientCore::new("bank".into(), contacts, Rng::with_seed(1)).with_silence(silence);
    let (start, mut out) = (Time::from_nanos(1), Vec::new());
    core.call(start, CallId(1), Ask::Command(vec![1]), Time::from_nanos(1 << 60), &mut out);
    core.connected(start, &mut out);
    let welcome =
        ToClient::Welcome { members: Members::default(), session_timeout_ms: 1 << 40, request_bytes: 1 << 20 };
    core.heard(start, welcome, &mut out);
    let (mut pings, mut gone) = (Vec::new(), None);
    while let Some(now) = core.deadline().filter(|_| gone.is_none()) {
        out.clear();
        core.tick(now, &mut out);
        if out.contains(&ClientEffect::Send(ToNode::Ping)) {
            pings.push(now.since(start).as_secs());
        }
        gone = out.contains(&ClientEffect::HangUp).then(|| now.since(start));
    }
    assert_eq!((pings, gone), (vec![3, 6], Some(silence)));
}

#[test]
fn a_call_that_a_certificate_does_not_permit_fails_at_once_and_others_go_on() {
    let contacts = Contacts::new(vec![DialTarget::on_host(NodeId(1))], 0);
    let mut core = ClientCore::new("bank".into(), contacts, Rng::with_seed(1));
    let (now, later, mut out) = (Time::from_nanos(1), Time::from_nanos(1 << 40), Vec::new());
    let command = |core: &mut ClientCore, id, out: &mut Vec<ClientEffect>| {
        core.call(now, CallId(id), Ask::Command(vec![1]), later, out);
    };
    let denied = |only_commands| ToClient::Denied { only_commands, why: "so".into() };
    let resolved = |out: &mut Vec<ClientEffect>| -> Vec<_> {
        let resolved =
            |effect| if let ClientEffect::Resolve(id, result) = effect { Some((id.0, result)) } else { None };
        out.drain(..).filter_map(resolved).collect()
    };
    let error = || Err(ClientError::Denied("so".into()));
    command(&mut core, 0, &mut out);
    core.connected(now, &mut out);
    let (session_timeout_ms, request_bytes) = (1 << 20, 1000);
    let welcome = ToClient::Welcome { members: Members::default(), session_timeout_ms, request_bytes };
    core.heard(now, welcome, &mut out);
    core.heard(now, denied(true), &mut out);
    assert_eq!(resolved(&mut out), [(0, error())]);
    core.call(now, CallId(1), Ask::Query(Consistency::Local, vec![2]), later, &mut out);
    core.heard(now, ToClient::Told { number: 1, answer: Ok(vec![3]) }, &mut out);
    assert_eq!(resolved(&mut out), [(1, Ok(vec![3]))]);
    // It asks again, as the certificate may be another by now, and waits for nothing else.
    command(&mut core, 2, &mut out);
    assert!(out.iter().any(|effect| matches!(effect, ClientEffect::Send(ToNode::Open { .. }))), "{out:?}");
    core.heard(now, denied(true), &mut out);
    assert_eq!(resolved(&mut out), [(2, error())]);
    core.call(now, CallId(3), Ask::Query(Consistency::Local, vec![2]), later, &mut out);
    core.heard(now, denied(false), &mut out);
    assert!(out.contains(&ClientEffect::HangUp));
    assert_eq!(resolved(&mut out), [(3, error())]);
}
