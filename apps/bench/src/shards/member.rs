//! A node of a sharded group, and its own caller.

use std::{
    io::{self, Read},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use rkyv::Archived;
use squall::{
    Applied, Node, Partitioned, QueryService, Replicated, ServeOptions, ServedShards, Snapshot, View, client::Client,
};

use crate::{
    job::{Called, Settled, ShardsCommand, ShardsJob, WorkerReport},
    latency::{histogram, recorded},
    parent::{Stopped, say},
    places::{FORMATION_TIMEOUT, configure},
};

pub(super) const GROUP: &str = "bench";

/// The time within which a node leaves the group.
const LEAVES_WITHIN: Duration = Duration::from_secs(30);

/// The size of a command's filling, in bytes.
const SIZE: usize = 100;

/// Counts the commands of its shard, and replies with their number.
pub(super) struct CommandCounter(u64);

impl Replicated for CommandCounter {
    type Command = [u8; SIZE];
    type Reply = u64;

    fn apply(&mut self, _command: &Archived<[u8; SIZE]>, _at: &Applied) -> u64 {
        self.0 += 1;
        self.0
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.0.to_le_bytes())
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut count = [0; 8];
        from.read_exact(&mut count)?;
        self.0 = u64::from_le_bytes(count);
        Ok(())
    }
}

impl QueryService for CommandCounter {
    type Query = ();
    type Answer = u64;

    fn answer(&self, _query: &()) -> u64 {
        self.0
    }
}

impl Partitioned for CommandCounter {
    type Key = u64;

    fn shard_of(key: &u64, shards: u32) -> u32 {
        squall::shard_of_bytes(&key.to_le_bytes(), shards)
    }
}

/// The command of all calls.
pub(super) const COMMAND: [u8; SIZE] = [7; SIZE];

/// Runs a node until the parent wants no more of it.
pub(crate) fn run(job: &ShardsJob, told: &Receiver<ShardsCommand>) -> Result<Node, Stopped> {
    let (node, shards) = start(job)?;
    say(&WorkerReport::Ready);
    loop {
        match told.recv().map_err(|_| Stopped::Told)? {
            ShardsCommand::Settle => {
                // The parent has its own patience.
                let view = node.wait_view(Duration::MAX, |view| is_settled(view, job));
                let view = view.map_err(|reason| reason.to_string())?.ok_or("it did not settle".to_owned())?;
                let nodes = view.nodes().iter().map(|node| node.0).collect();
                say(&WorkerReport::Settled(Settled { epoch: view.epoch.0, nodes }));
            }
            ShardsCommand::Call { node: caller, is_own, nanos } if caller == job.node => {
                let view = node.view();
                let holds = |shard: &usize| view.shards[*shard].members.contains(&node.id()) == is_own;
                let Some(shard) = (0..shards.len()).find(holds) else {
                    return Err(Stopped::Failed("this node holds all shards, or none: give other numbers".into()));
                };
                let latencies = call(shards.shard(shard), Duration::from_nanos(nanos))?;
                say(&WorkerReport::Called(Called { latencies }));
            }
            ShardsCommand::Leave { node: leaver } if leaver == job.node => {
                if !node.leave(LEAVES_WITHIN) {
                    return Err(Stopped::Failed("it could not leave the group".into()));
                }
                node.shutdown();
                say(&WorkerReport::Ready);
                // Another process takes this one's place.
                let _ = told.recv();
                return Err(Stopped::Told);
            }
            ShardsCommand::Call { .. } | ShardsCommand::Leave { .. } => {}
        }
    }
}

/// Whether all nodes are members, and all shards have their replicas, none of which moves.
fn is_settled(view: &View, job: &ShardsJob) -> bool {
    let replicas = job.replicas.min(job.nodes) as usize;
    let is_whole = |shard: &squall::ShardView| shard.members.len() == replicas && shard.complete.len() == replicas;
    view.members.len() == job.nodes as usize && view.shards.iter().all(is_whole)
}

/// Submits one command after the other. Returns the latencies.
pub(super) fn call(shard: &Client<CommandCounter>, time: Duration) -> Result<Vec<(u64, u64)>, String> {
    let mut latencies = histogram();
    let began = Instant::now();
    while began.elapsed() < time {
        let asked = Instant::now();
        shard.submit(&COMMAND).wait().map_err(|error| error.to_string())?;
        latencies.saturating_record(asked.elapsed().as_nanos() as u64);
    }
    Ok(recorded(&latencies))
}

fn start(job: &ShardsJob) -> Result<(Node, ServedShards<CommandCounter>), String> {
    let config = configure(&job.cluster, job.node, job.nodes, job.place.as_ref());
    let config = config
        .failure_timeout(Duration::from_millis(job.failure_timeout_ms))
        .formation_timeout(FORMATION_TIMEOUT)
        .group(GROUP, |group| _ = group.shards(job.shards).replicas(1, Some(job.replicas)));
    let mut builder = Node::builder(config.build().map_err(|error| error.to_string())?);
    let shards = builder.serve_sharded(GROUP, |_| CommandCounter(0), ServeOptions::default());
    Ok((builder.start().map_err(|error| error.to_string())?, shards))
}
