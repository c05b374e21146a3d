//! Total orders over real shared memory: several ranks in one process, each with a thread.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use squall_fabric::{
    Fabric, GroupTag, NodeId, Time,
    shm::{ShmConfig, ShmFabric},
};
use squall_onepipe::{
    HostClock, Message, Mode, OnePipe, OnePipeConfig, ScatterError, Topology,
    baseline::{Lamport, OneMode, Sequencer, TokenRing, TotalOrder},
};

/// The deliveries of a rank: (stamp, sender), and the first word of the message.
type Delivered = Vec<(u64, usize, u64)>;

fn config(n: u32) -> OnePipeConfig {
    OnePipeConfig::new((0..n).map(NodeId).collect(), GroupTag { layer: 10, group: 0, epoch: 1 })
}

/// Runs `body` on each of `n` ranks, and returns their results.
fn ranks<T: Send, R: Send>(
    name: &str,
    n: u32,
    create: impl Fn(&mut ShmFabric) -> T + Sync,
    body: impl Fn(usize, &mut ShmFabric, T) -> R + Sync,
) -> Vec<R> {
    let cluster = format!("onepipe-{name}-{}-{n}", std::process::id());
    thread::scope(|scope| {
        let spawn = |node: u32| {
            let (cluster, create, body) = (&cluster, &create, &body);
            scope.spawn(move || {
                let mut fabric = ShmFabric::open(ShmConfig::new(cluster, NodeId(node))).expect("shared memory");
                let order = create(&mut fabric);
                body(node as usize, &mut fabric, order)
            })
        };
        let threads: Vec<_> = (0..n).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Polls, steps and delivers once.
fn turn(fabric: &mut ShmFabric, order: &mut impl TotalOrder, delivered: &mut Delivered) -> bool {
    let mut completions = Vec::new();
    let now = Time::boot_clock();
    fabric.poll(now, &mut completions);
    for completion in &completions {
        order.on_completion(fabric, now, completion);
    }
    let progress = order.step(fabric, now);
    let count = order.deliver(usize::MAX, &mut |delivery| {
        let word = delivery.bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        delivered.push((delivery.stamp, delivery.sender, word));
    });
    progress || count > 0
}

/// Lets all ranks send scatterings to all, and checks that all have delivered the same.
fn all_to_all<T: TotalOrder + Send>(name: &str, n: u32, create: impl Fn(&mut ShmFabric, u32) -> T + Sync) {
    const EACH: u64 = 3_000;
    let over = AtomicUsize::new(0);
    let logs = ranks(
        name,
        n,
        |fabric| create(fabric, n),
        |_, fabric, mut order| {
            let (mut delivered, mut sent) = (Delivered::new(), 0);
            let (mut is_over, deadline) = (false, Instant::now() + Duration::from_secs(60));
            // A rank that is done goes on until all are.
            while over.load(Ordering::Acquire) < n as usize {
                assert!(Instant::now() < deadline, "{sent} sent, {} delivered", delivered.len());
                for _ in 0..16 {
                    let bytes = [u64::to_le_bytes(sent); 8].concat();
                    let len = 8 + (sent as usize * 7) % 57;
                    let messages: Vec<Message<'_>> =
                        (0..n as usize).map(|to| Message { to, bytes: &bytes[..len] }).collect();
                    if sent == EACH {
                        break;
                    }
                    match order.scatter(Time::boot_clock(), &messages) {
                        Ok(_) => sent += 1,
                        Err(ScatterError::Full { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                if !turn(fabric, &mut order, &mut delivered) {
                    thread::yield_now();
                }
                if delivered.len() as u64 == EACH * u64::from(n) && !is_over {
                    is_over = true;
                    over.fetch_add(1, Ordering::AcqRel);
                }
            }
            delivered
        },
    );
    for log in &logs {
        assert!(log.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1)), "{name}: the order of (stamp, sender)");
        assert!(*log == logs[0], "{name}: one order for all");
        for sender in 0..n as usize {
            let words = log.iter().filter(|delivered| delivered.1 == sender).map(|delivered| delivered.2);
            assert!(words.eq(0..EACH), "{name}: all of rank {sender}, in its order");
        }
    }
}

#[test]
fn all_orders_are_total_over_shared_memory() {
    for n in [1, 2, 3, 4] {
        let pipe = |fabric: &mut ShmFabric, config| {
            OnePipe::create(fabric, config, HostClock::default()).expect("a sound configuration")
        };
        let racks = |n: u32| (0..n as usize).collect::<Vec<usize>>().chunks(2).map(<[usize]>::to_vec).collect();
        all_to_all("be", n, |fabric, n| OneMode::new(pipe(fabric, config(n)), Mode::BestEffort));
        all_to_all("r", n, |fabric, n| OneMode::new(pipe(fabric, config(n)), Mode::Reliable));
        all_to_all("tree", n, |fabric, n| {
            let topology = Topology::Hierarchy { racks: racks(n), degree: 1 };
            OneMode::new(pipe(fabric, OnePipeConfig { topology, ..config(n) }), Mode::BestEffort)
        });
        all_to_all("sequencer", n, |fabric, n| Sequencer::create(fabric, config(n)).expect("a sound configuration"));
        all_to_all("token", n, |fabric, n| TokenRing::create(fabric, config(n)).expect("a sound configuration"));
        all_to_all("lamport", n, |fabric, n| Lamport::create(fabric, config(n)).expect("a sound configuration"));
    }
}
