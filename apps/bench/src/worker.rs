//! `squall-bench worker`: one node of a benchmark, started by its parent.

use std::{
    hint::black_box,
    io::{self, Read},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use clap::Args;
use rkyv::util::AlignedVec;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use squall::{Config, Group, Invalid, LogCounts, Message, Mode, Node, Service, Snapshot, Stamp, SubmitError};
use squall_command::CommandError;
use squall_fabric::{Fabric, NodeId, Time, Wait, mixed::MixedFabric, shm::ShmFabric};

use super::{
    bulk::Mover,
    caller,
    collectives::CollectivesRank,
    failover, hostile,
    job::{BulkJob, CollectivesJob, Go, Job, WorkerJob, WorkerMeasurements, WorkerReport, Written},
    latency, load, onepipe,
    parent::{Stopped, listen, say},
    places::{FORMATION_TIMEOUT, configure},
    processor::{processor_seconds, switches},
    shards,
    tally::Tally,
    transactions,
};

/// One node of a benchmark.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The work to do, as JSON
    #[arg(value_parser = parse_work)]
    work: WorkerJob,
    /// The process that started this one; 0 if another one is between them
    parent: i32,
}

fn parse_work(text: &str) -> Result<WorkerJob, serde_json::Error> {
    serde_json::from_str(text)
}

impl WorkerArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        // The end of the input says the same, but only to a thread that runs. A worker that is stopped, as some
        // benchmarks do it, takes no other signal.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // From here on the end of the parent ends this process. The parent may have ended before.
        if self.parent != 0 && getppid().map(Pid::as_raw_pid) != Some(self.parent) {
            return Ok(());
        }
        match &self.work {
            WorkerJob::Ordered(job) => {
                let told = listen();
                end(work(job, &told), &told);
            }
            WorkerJob::Failover(job) => {
                let told = listen();
                end(failover::run_client(job, &told), &told);
            }
            WorkerJob::Hostile(job) => {
                let told = listen();
                end(hostile::run_process(job, &told), &told);
            }
            WorkerJob::Shards(job) => {
                let told = listen();
                end(shards::run_node(job, &told), &told);
            }
            WorkerJob::Groups(job) => {
                let told = listen();
                end(transactions::run_process(job, &told), &told);
            }
            WorkerJob::Transactions(job) => {
                let told = listen();
                end(transactions::run_member(job, &told), &told);
            }
            WorkerJob::Bulk(job) => {
                let told = listen();
                end(open(job.config()).and_then(|fabric| move_bulk(job, fabric, &told)), &told);
            }
            WorkerJob::Collectives(job) => {
                let told = listen();
                let done = open_fast(job.config()).and_then(|fabric| match fabric {
                    FastFabric::Shm(fabric) => time_operations(job, *fabric, &told),
                    FastFabric::Network(fabric) => time_operations(job, *fabric, &told),
                });
                end(done, &told);
            }
            WorkerJob::OnePipe(job) => {
                let told = listen();
                let done = open_fast(job.config()).and_then(|fabric| match fabric {
                    FastFabric::Shm(fabric) => onepipe::scatter(job, *fabric, &told),
                    FastFabric::Network(fabric) => onepipe::scatter(job, *fabric, &told),
                });
                end(done, &told);
            }
        }
        Ok(())
    }
}

/// Opens the fabric that the configuration asks for.
fn open(config: Result<Config, String>) -> Result<MixedFabric, Stopped> {
    Ok(config?.open_fabric().map_err(|error| error.to_string())?)
}

/// The fabric of work that takes less than a microsecond over shared memory, where the calls of a mixed fabric count.
enum FastFabric {
    Shm(Box<ShmFabric>),
    Network(Box<MixedFabric>),
}

/// Opens the fabric that the configuration asks for, shared memory by itself.
fn open_fast(config: Result<Config, String>) -> Result<FastFabric, Stopped> {
    let config = config?;
    let opened = match config.carrier() {
        squall::Carrier::Shm => config.open_shm().map(|fabric| FastFabric::Shm(Box::new(fabric))),
        _ => config.open_fabric().map(|fabric| FastFabric::Network(Box::new(fabric))),
    };
    Ok(opened.map_err(|error| error.to_string())?)
}

/// Ends the work once the parent says so.
fn end<T, G>(done: Result<T, Stopped>, told: &Receiver<G>) {
    match done {
        // Keep the node until all have measured, so that no other node sees it leave.
        Ok(node) => drop((told.recv(), node)),
        Err(Stopped::Told) => {}
        Err(Stopped::Failed(why)) => {
            say(&WorkerReport::Failed(why));
            let _ = told.recv();
        }
    }
}

fn work(job: &Job, told: &Receiver<Go>) -> Result<Node, Stopped> {
    let tally = Arc::new(Tally::new(job.window));
    let (node, group) = start(job, &tally)?;
    say(&WorkerReport::Ready);
    let go = told.recv().map_err(|_| Stopped::Told)?;
    tally.begin(go);
    let callers: Vec<_> = (job.calls.into_iter())
        .flat_map(|calls| (0..calls.callers).map(move |_| calls))
        .map(|calls| {
            let (group, size_bytes) = (group.clone(), job.size_bytes);
            thread::spawn(move || caller::run(calls, size_bytes, go, &group))
        })
        .collect();
    let sender = (job.sends() && job.calls.is_none()).then(|| {
        let (job, tally, group) = (job.clone(), Arc::clone(&tally), group.clone());
        thread::spawn(move || load::run(&job, go, &tally, |payload| send(&group, payload)))
    });
    let mut outcome = measure(&tally, go, told, || written(&group))?;
    let called: Vec<_> =
        callers.into_iter().map(|caller| caller.join().expect("the calling thread does not panic")).collect();
    let lateness = sender.map(|sender| sender.join().expect("the sending thread does not panic"));
    // A group that has ended explains any other failure.
    if let Some(reason) = node.end_reason() {
        return Err(Stopped::Failed(reason.to_string()));
    }
    if let Some(lateness) = lateness {
        outcome.lateness = latency::recorded(&lateness?);
    }
    if tally.is_garbled() {
        return Err(Stopped::Failed("a message was delivered that no node sent so: this is a bug of Squall".into()));
    }
    outcome.latencies = latency::recorded(&tally.latencies());
    if job.calls.is_some() {
        let mut latencies = latency::histogram();
        for part in called {
            latencies.add(part?).expect("all histograms are made alike");
        }
        (outcome.answered, outcome.latencies) = (latencies.len(), latency::recorded(&latencies));
    }
    say(&WorkerReport::Done(Box::new(outcome)));
    Ok(node)
}

fn time_operations(job: &CollectivesJob, fabric: impl Fabric + Wait, told: &Receiver<Go>) -> Result<(), Stopped> {
    let mut rank = CollectivesRank::connect(job, fabric, told)?;
    let timed = rank.measure()?;
    rank.close()?;
    say(&WorkerReport::Timed(timed));
    Ok(())
}

fn move_bulk<'a>(job: &'a BulkJob, fabric: MixedFabric, told: &'a Receiver<Go>) -> Result<Mover<'a>, Stopped> {
    let mut mover = Mover::new(job, fabric, told)?;
    mover.connect()?;
    say(&WorkerReport::Ready);
    let rounds = mover.run()?;
    say(&WorkerReport::Moved(rounds));
    Ok(mover)
}

/// Forms the group. Each node's service only reads its messages.
fn start(job: &Job, tally: &Arc<Tally>) -> Result<(Node, Group<ReadingService>), String> {
    let config = configure(&job.cluster, job.node, job.nodes, job.place.as_ref())
        .formation_timeout(FORMATION_TIMEOUT)
        .spin(job.spin.into())
        .read_lease(job.calls.map_or(READ_LEASE, |calls| Duration::from_millis(calls.read_lease_ms)))
        .group(GROUP, |group| {
            group.ring_bytes(job.ring_bytes).bulk_threshold(job.bulk_threshold).bulk_reserve(job.bulk_reserve);
            group.senders(0..job.senders.of(job.nodes));
            if job.storage.is_some() {
                group.mode(Mode::Durable);
            }
        });
    let config = match &job.storage {
        Some(directory) => config.storage(directory),
        None => config,
    };
    let config = config.build().map_err(|error| error.to_string())?;
    let mut builder = Node::builder(config);
    let expected = vec![0; job.nodes as usize];
    // Messages of several threads have no order among each other.
    let expected = job.calls.is_none().then_some(expected);
    let service = ReadingService { tally: Arc::clone(tally), me: NodeId(job.node), expected, sum: 0 };
    let group = builder.group_of(GROUP, service);
    Ok((builder.start().map_err(|error| error.to_string())?, group))
}

const GROUP: &str = "bench";

/// The default of a configuration.
const READ_LEASE: Duration = Duration::from_millis(15);

/// Sends a message as soon as there is room.
fn send(group: &Group<ReadingService>, payload: &[u8]) -> Result<(), String> {
    let sent = match group.try_send_bytes(payload) {
        Err(SubmitError::Full) => group.send_bytes(payload).wait(),
        other => other,
    };
    sent.map_err(|error| error.to_string())
}

/// The service of every node: it reads a message's first and last word.
struct ReadingService {
    tally: Arc<Tally>,
    me: NodeId,
    /// The number of each sender's next message. None where several threads of a node may send.
    expected: Option<Vec<u64>>,
    sum: u64,
}

impl Service for ReadingService {
    type Reply = ();

    fn take(&mut self, message: &Message<'_>, _stamp: Stamp, _scratch: &mut AlignedVec) -> Result<Option<()>, Invalid> {
        let payload = &message.payload;
        let first = payload.word(0);
        self.sum = black_box(self.sum.wrapping_add(first ^ payload.word((payload.len() - 1) / 8)));
        self.tally.on_delivered();
        let Some(expected) = &mut self.expected else { return Ok(Some(())) };
        let expected = &mut expected[message.sender.0 as usize];
        if payload.len() >= 8 && first != *expected {
            self.tally.on_garbled();
        }
        *expected += 1;
        if message.sender == self.me {
            self.tally.on_own_delivered(|| Time::boot_clock().as_nanos());
        }
        Ok(Some(()))
    }

    // A durable group's service must have a state that can be kept.
    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.sum.to_ne_bytes())
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut sum = [0; 8];
        from.read_exact(&mut sum)?;
        self.sum = u64::from_ne_bytes(sum);
        Ok(())
    }
}

/// The counts of what this node has written to its log.
fn written(group: &Group<ReadingService>) -> Written {
    let LogCounts { records, bytes, syncs, .. } = group.log_counts().unwrap_or_default();
    Written { records, bytes, syncs }
}

/// Counts the messages that are delivered within the time.
fn measure(
    tally: &Tally,
    go: Go,
    told: &Receiver<Go>,
    written: impl Fn() -> Written,
) -> Result<WorkerMeasurements, Stopped> {
    let at = |nanos: u64| {
        let wait = Duration::from_nanos(nanos.saturating_sub(Time::boot_clock().as_nanos()));
        match told.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {
                Ok((Time::boot_clock(), tally.delivered(), processor_seconds(), switches(), written()))
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => Err(Stopped::Told),
        }
    };
    let (began, delivered_before, processor_before, switches_before, before) = at(go.from)?;
    let (ended, delivered, processor, switches, after) = at(go.until)?;
    Ok(WorkerMeasurements {
        delivered: delivered - delivered_before,
        answered: 0,
        wall_seconds: ended.since(began).as_secs_f64(),
        cpu_seconds: processor - processor_before,
        switches: switches.saturating_sub(switches_before),
        latencies: Vec::new(),
        lateness: Vec::new(),
        written: Written {
            records: after.records - before.records,
            bytes: after.bytes - before.bytes,
            syncs: after.syncs - before.syncs,
        },
    })
}
