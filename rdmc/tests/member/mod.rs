//! A member of a group over a real fabric, on a thread or in a process of its own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use squall_fabric::{Fabric, Time, Wait};
use squall_rdmc::{Buffer, Event, Group, GroupConfig};

const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn content(message: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + message * 7 + (at >> 12)) as u8).collect()
}

/// Runs one member until its group is destroyed. Returns what it received.
pub(crate) fn run(fabric: &mut (impl Fabric + Wait), config: GroupConfig, lens: &[usize]) -> Vec<Vec<u8>> {
    let node = fabric.node();
    let mut group = Group::create(fabric, config.clone()).expect("a sound configuration");
    if config.members[0] == node {
        for (message, &len) in lens.iter().enumerate() {
            let mut buffer = Buffer::register(fabric, len).expect("memory");
            buffer[..len].copy_from_slice(&content(message, len));
            group.send(Arc::new(buffer), len).expect("the root may");
        }
        group.destroy().expect("the root may");
    }
    let began = Instant::now();
    let (mut received, mut completions, mut events) = (Vec::new(), Vec::new(), Vec::new());
    while began.elapsed() < DEADLINE {
        fabric.poll(Time::boot_clock(), &mut completions);
        let mut busy = !completions.is_empty();
        completions.drain(..).for_each(|completion| group.on_completion(fabric, &completion));
        busy |= group.step(fabric, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Incoming { message, max_bytes, .. } => {
                    let buffer = Buffer::register(fabric, max_bytes).expect("memory");
                    group.accept(message, buffer).expect("it waits for memory");
                }
                Event::Received { buffer, len, .. } => received.push(buffer[..len].to_vec()),
                Event::Destroyed => return received,
                Event::Failed(failure) => panic!("{node}: {failure:?}"),
                Event::Connected | Event::Released { .. } => {}
            }
        }
        if !busy {
            fabric.arm();
            fabric.wait(Time::boot_clock() + Duration::from_millis(1));
        }
    }
    panic!("{node}: not destroyed in time; {:?}", group.progress());
}
