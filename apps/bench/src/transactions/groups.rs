//! `squall-bench transactions --groups`: transactions over the shards of a group.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc::Receiver,
    thread,
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Node, NodeId, ServeOptions, Time, View,
    client::{ClientConfig, Shards},
    sim::{Ledger, LedgerCommand, LedgerCounts, LedgerFate, LedgerQuery, LedgerRecord, LedgerState, check_ledger},
    transactions::{PendingTransaction, Transactional, Transactions},
};

use crate::{
    cluster::{PATIENCE, RunError, WARM_UP, Workers},
    job::{
        Carried, CarriedEnd, CarriedRecord, Go, GroupsCommand, GroupsJob, Settled, StoreShape, WorkerJob, WorkerReport,
    },
    latency::{histogram, recorded},
    parent::{Stopped, say},
    places::{FORMATION_TIMEOUT, NodePlaces, configure},
};

const GROUP: &str = "bench";

/// The number of client processes.
const CLIENTS: u32 = 2;

/// The time that a transaction has, whatever fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A key of a transaction: its shard, its name there, and whether it is written.
type UsedKey = (u32, u64, bool);

/// The keys of a transaction, which follow from its number.
fn keys(job: &GroupsJob, number: u64) -> Vec<UsedKey> {
    let mut rng = Rng::with_seed(job.seed ^ number);
    let mut keys = BTreeMap::new();
    let is_reading = rng.u8(0..10) == 0;
    for place in 0..3 {
        let account = rng.u32(0..job.shape.accounts);
        keys.insert(account, place < 2 && !is_reading);
    }
    let shards = job.shape.shards();
    keys.into_iter().map(|(account, writes)| (account % shards, u64::from(account / shards), writes)).collect()
}

/// A key's number among those of all shards.
fn global(shard: u32, key: u64) -> u64 {
    u64::from(shard) << 32 | key
}

/// Runs a process until the parent wants no more of it.
pub(crate) fn run_process(job: &GroupsJob, told: &Receiver<GroupsCommand>) -> Result<Node, Stopped> {
    match job.client {
        None => run_member(job, told),
        Some(client) => run_client(job, client, told),
    }
}

fn run_member(job: &GroupsJob, told: &Receiver<GroupsCommand>) -> Result<Node, Stopped> {
    let config = configure(&job.cluster, job.node, job.nodes, job.place.as_ref());
    let config = config.formation_timeout(FORMATION_TIMEOUT).group(GROUP, |group| {
        group.shards(job.shape.shards()).replicas(1, Some(job.shape.replicas));
    });
    let mut builder = Node::builder(config.build().map_err(|error| error.to_string())?);
    let replica = |shard| Transactional::new(shard, Ledger::default());
    let shards = builder.serve_sharded(GROUP, replica, ServeOptions::default());
    let _settles = Transactions::new(&shards).map_err(|error| error.to_string())?;
    let node = builder.start().map_err(|error| error.to_string())?;
    say(&WorkerReport::Ready);
    loop {
        if let GroupsCommand::Settle = told.recv().map_err(|_| Stopped::Told)? {
            let view = node.wait_view(Duration::MAX, |view| is_settled(view, job));
            let view = view.map_err(|reason| reason.to_string())?.ok_or("it did not settle".to_owned())?;
            let nodes = view.nodes().iter().map(|node| node.0).collect();
            say(&WorkerReport::Settled(Settled { epoch: view.epoch.0, nodes }));
        }
    }
}

fn is_settled(view: &View, job: &GroupsJob) -> bool {
    let replicas = job.shape.replicas.min(job.nodes) as usize;
    view.members.len() == job.nodes as usize && view.shards.iter().all(|shard| shard.complete.len() == replicas)
}

fn connect(job: &GroupsJob) -> Result<Transactions<Ledger>, String> {
    let config = ClientConfig::on_host(&job.cluster, (0..job.nodes).map(NodeId)).with_timeout(LIMIT);
    let shards = Shards::connect(&config, GROUP).wait().map_err(|error| error.to_string())?;
    Ok(Transactions::new(&shards).map_err(|error| error.to_string())?.within(LIMIT))
}

fn run_client(job: &GroupsJob, client: u64, told: &Receiver<GroupsCommand>) -> Result<Node, Stopped> {
    let transactions = connect(job)?;
    say(&WorkerReport::Ready);
    loop {
        if let GroupsCommand::Begin(go) = told.recv().map_err(|_| Stopped::Told)? {
            say(&WorkerReport::Carried(carry_out(job, client, &transactions, go)));
        }
    }
}

/// A transaction under way.
struct Submitted {
    number: u64,
    at: u64,
    result: PendingTransaction<Vec<LedgerState>, LedgerState>,
}

fn carry_out(job: &GroupsJob, client: u64, transactions: &Transactions<Ledger>, go: Go) -> Carried {
    let (mut carried, mut latencies) = (Carried::default(), histogram());
    let (mut number, mut under_way) = (client << 40, VecDeque::new());
    loop {
        while under_way.len() < job.shape.window as usize && Time::boot_clock().as_nanos() < go.until {
            number += 1;
            let mut transaction = transactions.begin();
            for (shard, key, writes) in keys(job, number) {
                let writer = writes.then_some(number);
                transaction =
                    transaction.command(shard, &LedgerCommand { key, writer, expects: None, is_careless: false });
            }
            let at = Time::boot_clock().as_nanos();
            under_way.push_back(Submitted { number, at, result: transaction.submit() });
        }
        let Some(Submitted { number, at, result }) = under_way.pop_front() else { break };
        let result = result.wait();
        let ended = Time::boot_clock().as_nanos();
        if result.is_ok() && at >= go.from && ended < go.until {
            latencies.saturating_record(ended - at);
        }
        let end = match result {
            Ok(replies) => CarriedEnd::Applied(replies.iter().map(|reply| (reply.version, reply.last)).collect()),
            Err(error) if error.is_not_applied() => CarriedEnd::Refused,
            Err(error) => {
                carried.unknown += 1;
                carried.trouble = Some(error.to_string());
                CarriedEnd::Unknown
            }
        };
        if job.record {
            carried.records.push(CarriedRecord { number, submitted: at, ended, end });
        }
    }
    carried.latencies = recorded(&latencies);
    carried
}

/// Runs members and clients, and returns what the clients measured. With a check, a member and a client are killed in
/// the middle, the member comes back, and the counts of the history come with it.
pub(super) fn run(
    shape: &StoreShape,
    seed: u64,
    lasts: Duration,
    checks: bool,
) -> Result<(Vec<Carried>, LedgerCounts), String> {
    let places = NodePlaces::on_this_host();
    let job = |(worker, client)| GroupsJob { worker, shape: shape.clone(), seed, client, record: checks };
    let members = places.workers(shape.nodes).map(|worker| (worker, None));
    let first = places.workers(shape.nodes).next().ok_or("there are no nodes")?;
    let clients = (1..=u64::from(CLIENTS)).map(|client| (first.clone(), Some(client)));
    let jobs: Vec<GroupsJob> = members.chain(clients).map(job).collect();
    let text = |error: RunError| error.to_string();
    let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Groups), &places).map_err(text)?;
    workers.until_all(PATIENCE, |said| matches!(said, WorkerReport::Ready).then_some(())).map_err(text)?;
    settle(&mut workers, shape)?;
    let from = Time::boot_clock() + WARM_UP;
    workers.tell(&GroupsCommand::Begin(Go { from: from.as_nanos(), until: (from + lasts).as_nanos() }));
    let mut clients: Vec<usize> = (shape.nodes as usize..jobs.len()).collect();
    if checks {
        let victim = (seed % u64::from(shape.nodes)) as usize;
        thread::sleep(WARM_UP + lasts / 4);
        workers.kill(victim);
        thread::sleep(lasts / 4);
        workers.kill(clients.pop().ok_or("there are no clients")?);
        workers.restart(victim, WorkerJob::Groups(jobs[victim].clone()), &places).map_err(text)?;
    }
    let limit = WARM_UP + lasts + LIMIT + PATIENCE;
    let is_client = |worker| clients.contains(&worker);
    let carried = workers.until_those(limit, is_client, |said| Carried::try_from(said).ok()).map_err(text)?;
    let counts = if checks { check(&jobs[0], &carried)? } else { LedgerCounts::default() };
    Ok((carried, counts))
}

/// Waits until all nodes are members, and all shards have their replicas.
fn settle(workers: &mut Workers, shape: &StoreShape) -> Result<(), String> {
    workers.tell(&GroupsCommand::Settle);
    let is_member = |node| node < shape.nodes as usize;
    let settled = workers.until_those(PATIENCE, is_member, |said| Settled::try_from(said).ok());
    settled.map(drop).map_err(|error| error.to_string())
}

/// Checks that what all clients saw is strictly serializable.
fn check(job: &GroupsJob, carried: &[Carried]) -> Result<LedgerCounts, String> {
    let transactions = connect(job)?;
    let mut writers = BTreeMap::new();
    for shard in 0..job.shape.shards() {
        let answer = transactions.query(shard, &LedgerQuery { key: None }).wait().map_err(|error| error.to_string())?;
        writers.extend(answer.writers.into_iter().map(|(key, writers)| (global(shard, key), writers)));
    }
    let mut records: BTreeMap<u64, LedgerRecord> = BTreeMap::new();
    for record in carried.iter().flat_map(|carried| &carried.records) {
        let keys = keys(job, record.number);
        let fate = match &record.end {
            CarriedEnd::Refused => LedgerFate::Refused(None),
            CarriedEnd::Unknown => LedgerFate::Unknown,
            CarriedEnd::Applied(seen) => {
                let state = |((shard, key, _), (version, last)): (&UsedKey, &(u64, u64))| {
                    (global(*shard, *key), LedgerState { version: *version, last: *last })
                };
                LedgerFate::Applied(keys.iter().zip(seen).map(state).collect())
            }
        };
        let ended = (fate != LedgerFate::Unknown).then_some(record.ended);
        let record = ledger_record(record.number, record.submitted, ended, &keys, fate);
        records.insert(record.writer, record);
    }
    // A client that was killed has told nothing: its transactions took effect, or not.
    for &number in writers.values().flatten() {
        let unknown = || ledger_record(number, 0, None, &keys(job, number), LedgerFate::Unknown);
        records.entry(number).or_insert_with(unknown);
    }
    check_ledger(&records.into_values().collect::<Vec<_>>(), &writers)
}

fn ledger_record(writer: u64, submitted: u64, ended: Option<u64>, keys: &[UsedKey], fate: LedgerFate) -> LedgerRecord {
    let writes = keys.iter().filter(|(.., writes)| *writes).map(|(shard, key, _)| global(*shard, *key)).collect();
    LedgerRecord { writer, submitted, ended, writes, fate }
}
