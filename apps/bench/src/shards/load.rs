//! The clients that call a sharded group from outside.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use squall::{Partitioned, client::Shards};

use super::member::{COMMAND, CommandCounter};
use crate::latency::histogram;

/// The answers that the clients of a run had.
pub(super) struct Answered {
    pub(super) latencies: Histogram<u64>,
    /// The replies of each shard: the number of the command among all of the shard.
    pub(super) replies: BTreeMap<usize, Vec<u64>>,
    /// The longest time for which a client had no answer.
    pub(super) pause: Duration,
}

/// Lets each of these clients call, with as many commands under way, until `stop`. `answers` counts all answers.
pub(super) fn run(
    clients: &[Shards<CommandCounter>],
    in_flight: usize,
    stop: &AtomicBool,
    answers: &AtomicU64,
) -> Result<Answered, String> {
    let call = |client: &Shards<CommandCounter>| {
        let mut answered = Answered { latencies: histogram(), replies: BTreeMap::new(), pause: Duration::ZERO };
        let (mut calls, mut last) = (VecDeque::new(), Instant::now());
        loop {
            while calls.len() < in_flight && !stop.load(Ordering::Relaxed) {
                let shard = CommandCounter::shard_of(&fastrand::u64(..), client.len() as u32) as usize;
                calls.push_back((shard, Instant::now(), client.shard(shard).submit(&COMMAND)));
            }
            let Some((shard, asked, call)) = calls.pop_front() else { return Ok(answered) };
            let reply = call.wait().map_err(|error| error.to_string())?;
            let now = Instant::now();
            answered.latencies.saturating_record((now - asked).as_nanos() as u64);
            answered.pause = answered.pause.max(now - last);
            answered.replies.entry(shard).or_default().push(reply);
            answers.fetch_add(1, Ordering::Relaxed);
            last = now;
        }
    };
    let parts: Vec<Result<Answered, String>> = thread::scope(|scope| {
        let calling: Vec<_> = clients.iter().map(|client| scope.spawn(move || call(client))).collect();
        calling.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    let mut all = Answered { latencies: histogram(), replies: BTreeMap::new(), pause: Duration::ZERO };
    for part in parts {
        let part = part?;
        all.latencies.add(part.latencies).expect("all histograms are made alike");
        all.pause = all.pause.max(part.pause);
        part.replies.into_iter().for_each(|(shard, replies)| all.replies.entry(shard).or_default().extend(replies));
    }
    Ok(all)
}
