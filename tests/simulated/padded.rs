//! A durable group whose commands are numbers and bytes that its state does not keep, so that its log is longer than
//! the state.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use rkyv::Archived;
use squall::{
    Applied, Config, Group, Mode, Replicated, Snapshot, SubmitError,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::numbers;

/// The number with which the service panics, unless it was mended.
pub(crate) const POISON: u64 = 666_666;

/// The numbers that it was given, in their order.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) given: Vec<u64>,
    pub(crate) is_mended: bool,
}

impl Replicated for Numbers {
    type Command = (u64, Vec<u8>);
    type Reply = ();

    fn apply(&mut self, command: &Archived<(u64, Vec<u8>)>, _at: &Applied) {
        assert!(self.is_mended || command.0 != POISON, "this number is too much, as the test wants it");
        self.given.push(command.0.to_native());
    }

    fn snapshot(&self) -> Snapshot {
        numbers::snapshot(&self.given)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        self.given = numbers::restore(from)?;
        Ok(())
    }
}

/// A cluster of so many members, which was not started, and its group.
pub(crate) fn cluster(
    name: &str,
    members: u32,
    snapshot_bytes: usize,
    segment_bytes: u64,
    seed: u64,
) -> (Cluster, Vec<Group<Numbers>>) {
    let config = Config::builder(name, 1)
        .members(1..=members)
        .failure_timeout(Duration::from_millis(20))
        .restart_wait(Duration::from_millis(50))
        .storage("simulated")
        .group("numbers", |group| _ = group.mode(Mode::Durable).snapshot_bytes(snapshot_bytes))
        .build()
        .expect("the configuration is valid");
    let options = Options { view_log: ViewLogKind::RaftOnDisks, segment_bytes, ..Options::default() };
    let mut cluster = Cluster::new(config, options, seed);
    let groups = cluster.group("numbers", |_| Numbers::default());
    (cluster, groups)
}

type Answer = Pin<Box<dyn Future<Output = Result<(), SubmitError>>>>;

/// Submits under way, each of a number, and the numbers that were acknowledged.
#[derive(Default)]
pub(crate) struct Submits {
    waiting: Vec<(u64, Answer)>,
    pub(crate) acknowledged: BTreeSet<u64>,
}

impl Submits {
    pub(crate) fn submit(&mut self, group: &Group<Numbers>, number: u64, bytes: usize) {
        self.waiting.push((number, Box::pin(group.submit(&(number, vec![7; bytes])))));
    }

    /// Takes the answers that have come.
    pub(crate) fn answer(&mut self) {
        let acknowledged = &mut self.acknowledged;
        self.waiting.retain_mut(|(number, answer)| {
            let answer = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if answer == Poll::Ready(Ok(())) {
                acknowledged.insert(*number);
            }
            answer.is_pending()
        });
    }
}
