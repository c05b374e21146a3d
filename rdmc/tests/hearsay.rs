//! A member breaks the group off, and none has failed: each of the others knows from whom it heard so, and when it is
//! its turn to blame that one. The first to do so blames the member that did it.

use squall_fabric::{Fabric, NodeId, sim::SimConfig};
use squall_rdmc::{GroupConfig, Hearsay, schedule::Algorithm};

use crate::world::{GROUP, World, config};

const ROOT: NodeId = NodeId(0);

fn hearsay(teller: NodeId, turn: u32) -> Option<Hearsay> {
    Some(Hearsay { teller, turn })
}

/// A world in the middle of a message, after so many steps.
fn world(algorithm: Algorithm, n: usize, after: usize) -> World {
    let mut world =
        World::new(SimConfig::fast(), after as u64, &GroupConfig { algorithm, block_bytes: 64, ..config(n) });
    world.connect();
    let _source = world.send(20 * 64);
    world.kick();
    (0..after).for_each(|_| _ = world.step());
    world
}

/// Checks what the members know once nothing is left to happen.
fn check(mut world: World, liar: usize, context: &str) {
    world.run_dry();
    let told: Vec<_> = world.alive().map(|member| member.rdmc.hearsay(GROUP)).collect();
    let context = format!("{context}, {told:?}");
    let liar = NodeId(liar as u32);
    let relay = match told[0] {
        _ if liar == ROOT => None,
        Some(Hearsay { teller, turn: 3 }) => Some(teller).filter(|&teller| teller != liar),
        _ => panic!("the root has not heard it: {context}"),
    };
    for (node, told) in (1..).map(NodeId).zip(&told[1..]).filter(|&(node, _)| node != liar) {
        let expected = if relay == Some(node) { hearsay(liar, 1) } else { hearsay(ROOT, 4) };
        assert_eq!(*told, expected, "{node}: {context}");
    }
}

/// Checks that a member suspects another, and not on hearsay.
fn check_seen(mut world: World, by: usize, suspect: usize, context: &str) {
    world.run_dry();
    let member = world.members[by].as_ref().expect("alive");
    assert_eq!(member.rdmc.hearsay(GROUP), None, "{context}");
    let suspects: Vec<_> = member.failures.iter().map(|failure| failure.suspect).collect();
    assert_eq!(suspects, [Some(NodeId(suspect as u32))], "{context}");
}

#[test]
fn a_closed_endpoint_is_traced_to_the_member_that_closed_it() {
    let mut runs = 0;
    for n in 2..=9 {
        for algorithm in [Algorithm::BinomialPipeline, Algorithm::Chain, Algorithm::Interleaved] {
            for liar in 0..n {
                // Where the root looks late, the words of all others have come together.
                let cases = (0..).flat_map(|endpoint| [(endpoint, false), (endpoint, true)]);
                for (endpoint, late) in cases {
                    let mut world = world(algorithm.clone(), n, (7 * runs) % 90);
                    let member = world.members[liar].as_mut().expect("alive");
                    let Some(closes) = member.group().endpoints().nth(endpoint) else { break };
                    let ends_early = member.group().ends_early(closes);
                    member.fabric.disconnect(closes);
                    if late {
                        world.net.pause(ROOT);
                        world.settle();
                        world.net.resume(ROOT);
                    }
                    let context = format!("{algorithm:?}, {n} nodes: {liar} closes its endpoint {endpoint}, {late}");
                    match ends_early {
                        true => check(world, liar, &context),
                        // It is one between the root and another.
                        false => check_seen(world, if liar == 0 { endpoint + 1 } else { 0 }, liar, &context),
                    }
                    runs += 1;
                }
            }
        }
    }
    assert!(runs > 500, "{runs} runs");
}

#[test]
fn a_member_that_says_that_it_failed_is_heard_by_the_root_and_the_root_by_the_others() {
    for n in 2..=9 {
        for liar in 0..n {
            let mut world = world(Algorithm::BinomialPipeline, n, 13 * liar);
            world.leave(liar);
            check(world, liar, &format!("{n} nodes: {liar} leaves"));
        }
    }
}

#[test]
fn a_failure_that_a_member_sees_is_not_hearsay_there() {
    let mut world = world(Algorithm::Interleaved, 4, 20);
    world.crash(2);
    world.run_dry();
    let told: Vec<_> = world.alive().map(|member| member.rdmc.hearsay(GROUP)).collect();
    assert_eq!(told, [None, hearsay(ROOT, 4), hearsay(ROOT, 4)]);
}
