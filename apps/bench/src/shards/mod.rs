//! `squall-bench shards`: a sharded group, called from members, from other nodes, and from outside.

mod load;
mod member;
mod row;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, value_parser};
use squall::{
    NodeId,
    client::{ClientConfig, Shards},
};
use squall_command::CommandError;
use squall_units::TimeUnit;

use self::{
    load::Answered,
    member::{CommandCounter, GROUP},
    row::ShardsRow,
};
use super::{
    cluster::Workers,
    job::{Called, Settled, ShardsCommand, ShardsJob, WorkerJob, WorkerReport},
    latency::{merged, micros},
    places::{NodePlaces, PlaceArgs},
    report::{FigureReport, RowHead},
    values,
};

pub(crate) use member::run as run_node;

const HELP: &str = "\
Examples:
  squall-bench shards
  squall-bench shards --shards 8 --failures 6 --seconds 2s
  squall-bench shards --fabric tcp --tls --shards 1,8 --json

Every node is a process of its own. The clients are threads of one more process: each knows one node, has so many
commands of 100 bytes under way, to random keys, and a session in each shard.

What the figures mean:
  calls/s     answers per second to all clients together
  p50 p99     from a client's submit until it had the answer, while all clients call
  member      p50 of a single caller at a node that holds the shard, with no other load
  elsewhere   the same at a node that holds other shards
  client      the same for a client outside
  pause       the longest time for which a client had no answer, while members fail, leave and come back

With --failures, one member after the other is killed or leaves under load, and comes back once the others go on. In
the end each shard must have applied each command that was answered, once, and no other: else the command fails.";

/// Measures a sharded group that clients call from outside.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ShardsArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The number of nodes
    #[arg(long, value_name = "N", default_value = "6", value_parser = value_parser!(u32).range(2..=32))]
    nodes: u32,
    /// The number of shards; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8")]
    #[arg(value_parser = value_parser!(u32).range(1..=256))]
    shards: Vec<u32>,
    /// The number of nodes that hold each shard
    #[arg(long, value_name = "N", default_value = "3", value_parser = value_parser!(u32).range(1..=32))]
    replicas: u32,
    /// The number of clients
    #[arg(long, value_name = "N", default_value = "4", value_parser = value_parser!(u32).range(1..=256))]
    clients: u32,
    /// The number of commands that each client has under way
    #[arg(long, value_name = "N", default_value = "32", value_parser = value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// The number of members that fail or leave, in turn, after the time of measuring
    #[arg(long, value_name = "N", default_value = "0", value_parser = value_parser!(u32).range(0..=10_000))]
    failures: u32,
    /// The time to measure each figure
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::span)]
    seconds: Duration,
    /// A member that is silent for so long is suspected; one whose process ends is noticed at once
    #[arg(long, value_name = "TIME", default_value = "1s")]
    #[arg(value_parser = squall_units::whole_in(Duration::from_millis(20)..=Duration::from_secs(60), TimeUnit::Milliseconds))]
    failure_timeout_ms: u64,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The time within which a call must be answered, and the nodes settle, whatever fails.
const PATIENCE: Duration = Duration::from_secs(60);

impl ShardsArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.places.check(self.nodes).map_err(CommandError::Usage)?;
        let mut report = FigureReport::new(self.json);
        for &shards in &self.shards {
            let places = self.places.find(self.nodes)?;
            self.measure(shards, &places)?.print(&mut report)?;
        }
        Ok(())
    }

    fn measure(&self, shards: u32, places: &NodePlaces) -> Result<ShardsRow, CommandError> {
        let (replicas, failure_timeout_ms) = (self.replicas, self.failure_timeout_ms);
        let job = |worker| ShardsJob { worker, shards, replicas, failure_timeout_ms };
        let jobs: Vec<ShardsJob> = places.workers(self.nodes).map(job).collect();
        let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Shards), places)?;
        workers.until_all(PATIENCE, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
        settle(&mut workers)?;
        let alone = self.alone(&mut workers, &jobs[0])?;
        let clients = (0..self.clients).map(|_| connect(&jobs[0])).collect::<Result<Vec<_>, CommandError>>()?;
        // Each client opens its sessions before the time begins.
        let opened = clients.iter().flat_map(Shards::iter).map(|shard| shard.submit(&member::COMMAND).wait());
        let opened = opened.collect::<Result<Vec<u64>, _>>().map_err(CommandError::failed)?;
        let before = alone.calls + opened.len() as u64;
        let began = Instant::now();
        let (all, _) = self.load(&clients, || {
            thread::sleep(self.seconds);
            Ok(())
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let calls_per_second = all.latencies.len() as f64 / seconds;
        let failing = (self.failures > 0).then(|| self.fail(&mut workers, &jobs, places, &clients)).transpose()?;
        let answered = failing.iter().chain([&all]).map(|part| part.latencies.len()).sum::<u64>();
        verify(&clients[0], [Some(&all), failing.as_ref()].into_iter().flatten(), before)?;
        Ok(ShardsRow {
            head: RowHead::of("shards", &jobs[0]),
            shards,
            replicas,
            clients: self.clients,
            in_flight: self.in_flight,
            calls_per_second,
            latency_p50_us: micros(&all.latencies, 0.5),
            latency_p99_us: micros(&all.latencies, 0.99),
            member_p50_us: alone.member,
            elsewhere_p50_us: alone.elsewhere,
            client_p50_us: alone.client,
            failures: self.failures,
            answered,
            pause_ms_max: failing.map(|part| part.pause.as_secs_f64() * 1e3),
        })
    }

    /// Measures single callers, one after the other.
    fn alone(&self, workers: &mut Workers, job: &ShardsJob) -> Result<Alone, CommandError> {
        let mut calls = 0;
        let mut p50 = |latencies: &Vec<(u64, u64)>| {
            let all = merged([latencies].into_iter());
            calls += all.len();
            micros(&all, 0.5)
        };
        let nanos = self.seconds.as_nanos() as u64 / 2;
        let mut at_node = |is_own| {
            workers.tell(&ShardsCommand::Call { node: 0, is_own, nanos });
            workers.until(0, PATIENCE, |said| Called::try_from(said).ok())
        };
        let member = p50(&at_node(true)?.latencies);
        let elsewhere = (self.replicas < self.nodes && job.shards > 1).then(|| at_node(false)).transpose()?;
        let elsewhere = elsewhere.and_then(|called| p50(&called.latencies));
        let client = connect(job)?;
        let called = member::call(client.shard(0), self.seconds / 2).map_err(CommandError::Failed)?;
        let client = p50(&called);
        Ok(Alone { member, elsewhere, client, calls })
    }

    /// Lets the clients call while `meanwhile` runs.
    fn load<T>(
        &self,
        clients: &[Shards<CommandCounter>],
        meanwhile: impl FnOnce() -> Result<T, CommandError>,
    ) -> Result<(Answered, T), CommandError> {
        let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let calling = scope.spawn(|| load::run(clients, self.in_flight as usize, &stop, &answers));
            let done = meanwhile();
            stop.store(true, Ordering::Relaxed);
            let answered = calling.join().expect("the clients do not panic").map_err(CommandError::Failed)?;
            Ok((answered, done?))
        })
    }

    /// Lets members fail and leave in turn, under load.
    fn fail(
        &self,
        workers: &mut Workers,
        jobs: &[ShardsJob],
        places: &NodePlaces,
        clients: &[Shards<CommandCounter>],
    ) -> Result<Answered, CommandError> {
        let (answered, ()) = self.load(clients, || {
            for round in 0..self.failures {
                let victim = (round as usize + 1) % jobs.len();
                if round % 2 == 1 {
                    workers.tell(&ShardsCommand::Leave { node: victim as u32 });
                    workers.until(victim, PATIENCE, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
                }
                workers.kill(victim);
                thread::sleep(self.seconds / 2);
                workers.restart(victim, WorkerJob::Shards(jobs[victim].clone()), places)?;
                workers.until(victim, PATIENCE, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
                settle(workers)?;
            }
            Ok(())
        })?;
        Ok(answered)
    }
}

/// Median latencies of single callers, in microseconds, and the number of their calls.
struct Alone {
    member: Option<f64>,
    elsewhere: Option<f64>,
    client: Option<f64>,
    calls: u64,
}

/// Waits until all nodes are members, and all shards have their replicas.
fn settle(workers: &mut Workers) -> Result<(), CommandError> {
    workers.tell(&ShardsCommand::Settle);
    workers.results::<Settled>(PATIENCE)?;
    Ok(())
}

/// Connects a client that knows one node, or on a network the cluster's configuration.
fn connect(job: &ShardsJob) -> Result<Shards<CommandCounter>, CommandError> {
    let config = match job.place {
        None => ClientConfig::on_host(&job.cluster, [NodeId(0)]),
        Some(_) => ClientConfig::of(&job.config().map_err(CommandError::Failed)?).map_err(CommandError::failed)?,
    };
    Shards::connect(&config.with_timeout(PATIENCE), GROUP).wait().map_err(CommandError::failed)
}

/// Checks that each shard has applied as many commands as were answered, and each answer is of one command.
fn verify<'a>(
    client: &Shards<CommandCounter>,
    parts: impl Iterator<Item = &'a Answered>,
    before: u64,
) -> Result<(), CommandError> {
    let mut replies: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (&shard, answers) in parts.flat_map(|part| &part.replies) {
        replies.entry(shard).or_default().extend(answers);
    }
    let mut applied = 0;
    for (shard, handle) in client.iter().enumerate() {
        applied += handle.query(&()).wait().map_err(CommandError::failed)?;
        let answers = replies.entry(shard).or_default();
        answers.sort_unstable();
        if let Some(twice) = answers.windows(2).find(|pair| pair[0] == pair[1]) {
            let why = format!("two commands of shard {shard} got the reply {}: this is a bug of Squall", twice[0]);
            return Err(CommandError::Failed(why));
        }
    }
    let answered = before + replies.values().map(|answers| answers.len() as u64).sum::<u64>();
    match applied == answered {
        true => Ok(()),
        false => Err(CommandError::Failed(format!(
            "{answered} commands were answered, and {applied} were applied: this is a bug of Squall"
        ))),
    }
}
