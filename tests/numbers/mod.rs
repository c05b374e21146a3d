//! A replica that keeps the numbers that it was given; and the seeds that tests run.

// Each test takes what it needs.
#![allow(dead_code)]

use std::{collections::BTreeSet, env, io, thread};

use rkyv::Archived;
use squall::{Applied, Replicated, Snapshot};

/// The numbers that it was given.
#[derive(Debug, Default)]
pub(crate) struct Numbers(pub(crate) BTreeSet<u64>);

impl Replicated for Numbers {
    type Command = u64;
    type Reply = ();

    fn apply(&mut self, number: &Archived<u64>, _at: &Applied) {
        self.0.insert(number.to_native());
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.0.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        self.0 = bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().expect("8 bytes"))).collect();
        Ok(())
    }
}

/// The seeds that the environment asks for, or so many.
pub(crate) fn seeds(usual: u64) -> Vec<u64> {
    if let Ok(seed) = env::var("SQUALL_SEED") {
        return vec![seed.parse().expect("SQUALL_SEED is a number")];
    }
    let Ok(range) = env::var("SQUALL_SEEDS") else { return (0..usual).collect() };
    let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
    (from.parse().expect("a number")..to.parse().expect("a number")).collect()
}

/// Runs something with each of these seeds, on two threads.
pub(crate) fn run_all(seeds: &[u64], run: impl Fn(u64) -> Result<(), String> + Sync) {
    let run = |seed| run(seed).err().map(|what| format!("seed {seed}: {what}"));
    let failures: Vec<String> = thread::scope(|scope| {
        let share = |half: usize| seeds.iter().copied().skip(half).step_by(2).collect::<Vec<_>>();
        let halves =
            [0, 1].map(|half| scope.spawn(move || share(half).into_iter().filter_map(run).collect::<Vec<_>>()));
        halves.into_iter().flat_map(|half| half.join().expect("a run ends")).collect()
    });
    let told: Vec<&String> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} of {} seeds failed; the first: {told:#?}", failures.len(), seeds.len());
}
