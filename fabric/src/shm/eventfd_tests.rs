//! Eventfds, whose count and flags a peer may change.

use std::{sync::mpsc, thread, time::Duration};

use rustix::fs::{OFlags, fcntl_setfl};

use super::{
    hostile_tests::{PATIENCE, World},
    ring::{Descriptor, Kind, Origin},
    signals::PeerSignal,
};
use crate::{Fabric, Op, RegionKind, Slice, Time, Token, Wait};

/// Runs a part of a test, which shall not block.
fn within(world: World, run: impl FnOnce(&mut World) + Send + 'static) -> World {
    let (done, result) = mpsc::channel();
    thread::spawn(move || {
        let mut world = world;
        run(&mut world);
        let _ = done.send(world);
    });
    result.recv_timeout(PATIENCE).expect("the node goes on")
}

#[test]
fn eventfds_that_a_peer_fills_or_empties_or_lets_block_hold_up_nobody() {
    let mut world = World::new("eventfds");
    let into = world.node.register(RegionKind::Bulk, 64).unwrap();
    let (end, mut ring) = world.connected(&[]);
    for round in 0..2 {
        for eventfd in [&*world.bell.eventfd, &world.given] {
            fcntl_setfl(eventfd, OFlags::NONBLOCK).unwrap();
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
            if round == 0 {
                rustix::io::write(eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            }
            fcntl_setfl(eventfd, OFlags::empty()).unwrap();
        }
        // The node has to signal this peer when it has pulled.
        world.node.post(end, Op::Recv { into: Slice { region: &into, offset: 0, len: 8 } }, Token(1)).unwrap();
        let send = Descriptor { kind: Kind::Send { imm: None }, from: Origin::Inline, len: 8 };
        world.bell.arm();
        world.push(&mut ring, &send, &[1; 8]);
        let before = world.node.stats().doorbells_rung;
        world = within(world, World::poll);
        assert_eq!(world.node.stats().doorbells_rung, before + 1);
        world.bell.disarm();
        // It sleeps, and is signaled by this peer, or by its own threads.
        world = within(world, |world| {
            let until = || Time::boot_clock() + Duration::from_millis(20);
            let signal = PeerSignal::new(world.given.try_clone().unwrap()).unwrap();
            let waker = world.node.waker();
            for wake in [&|| signal.give(), &|| waker.wake(), &|| {}] as [&dyn Fn(); 3] {
                world.node.arm();
                wake();
                world.node.wait(until());
            }
        });
    }
    world.check_undisturbed();
}
