//! The times of transfers on a network that is only as slow as its rates say.

use std::{sync::Arc, time::Duration};

use squall_fabric::{
    NodeId, Time,
    sim::{LinkProperties, SimConfig},
};
use squall_rdmc::{Buffer, GroupConfig, schedule::Algorithm};

use crate::world::{World, config};

const RATE: u64 = 12_500_000_000;
const BLOCK: usize = 1 << 20;

/// One block's time on the link, in seconds.
fn block_time() -> f64 {
    BLOCK as f64 / RATE as f64
}

/// The seconds until the last receiver has a phantom message of `k` blocks.
fn transfer(n: usize, k: usize, algorithm: Algorithm, prepare: impl FnOnce(&World)) -> f64 {
    let config = GroupConfig { algorithm, block_bytes: BLOCK, phantom: true, ..config(n) };
    let mut world = World::new(SimConfig::ideal(RATE, Duration::from_micros(1)), 1, &config);
    world.connect();
    prepare(&world);
    let began = world.net.now();
    let root = world.root();
    let buffer = Buffer::phantom(&mut root.fabric, k * BLOCK).expect("a size");
    root.group().send(Arc::new(buffer), k * BLOCK).expect("the root may");
    world.kick();
    while world.alive().skip(1).any(|member| member.received.is_empty()) {
        assert!(world.step(), "all receive it");
    }
    let last: Time = world.net.now();
    last.since(began).as_secs_f64()
}

#[test]
fn a_pipeline_takes_little_more_than_its_steps() {
    for (n, k) in [(2_usize, 256), (4, 256), (16, 256), (16, 16), (13, 256), (64, 100)] {
        let steps = n.next_power_of_two().trailing_zeros() as usize + k - 1;
        let ratio = transfer(n, k, Algorithm::BinomialPipeline, |_| {}) / (steps as f64 * block_time());
        assert!((1.0..1.05).contains(&ratio), "{n} nodes, {k} blocks: {ratio} of {steps} block times");
    }
}

#[test]
fn other_schedules_take_their_steps_too() {
    for (algorithm, n, k, steps) in [
        (Algorithm::Sequential, 5, 100, 400),
        (Algorithm::Interleaved, 5, 100, 400),
        (Algorithm::Chain, 10, 100, 108),
        (Algorithm::BinomialTree, 16, 50, 200),
    ] {
        let ratio = transfer(n, k, algorithm.clone(), |_| {}) / (f64::from(steps) * block_time());
        assert!((1.0..1.05).contains(&ratio), "{algorithm:?}: {ratio}");
    }
}

/// RDMC, DSN 2018, §4.5: a link between two neighbours that is slower slows down its own steps only.
#[test]
fn a_slow_link_costs_a_pipeline_its_own_steps_and_no_more() {
    for (n, slow) in [(8_usize, 2), (16, 2), (64, 2), (16, 4)] {
        let (l, k) = (n.trailing_zeros() as usize, 120);
        let whole = transfer(n, k, Algorithm::BinomialPipeline, |_| {});
        for dimension in 0..l as u32 {
            let (a, b) = (
                NodeId(1 << ((dimension + 1) % l as u32)),
                NodeId((1 << ((dimension + 1) % l as u32)) ^ (1 << dimension)),
            );
            let slowed = transfer(n, k, Algorithm::BinomialPipeline, |world| {
                let link = LinkProperties { bytes_per_s: Some(RATE / slow), latency: None };
                world.net.set_link(a, b, link);
                world.net.set_link(b, a, link);
            });
            let s = (k + l - 1) as f64;
            let bound = s / (s + (s / l as f64).ceil() * (slow as f64 - 1.0));
            let remains = whole / slowed;
            assert!(remains >= bound * 0.98, "{n} nodes, dimension {dimension}: {remains} remains, not {bound}");
        }
    }
}
