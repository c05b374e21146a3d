//! A long mixed load on all replicas. It watches the resources that they use, and checks that they agree in the end.

mod load;

use std::{
    fmt::Write as _,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use squall_command::say;
use tokio::{task::JoinSet, time};

use crate::{
    agreement::agreement,
    args::Args,
    client::until,
    cluster::{Cluster, free_ports},
    replica::stop_asked,
    usage::{self, Usage},
};

/// The number of connections that load each replica at a time.
const CLIENTS_PER_REPLICA: usize = 12;

/// The percentage by which the last quarter's memory may exceed the second quarter's. The first quarter fills the
/// store.
const GROWTH_PERCENT: u64 = 10;

/// The time that replicas may take to agree after the end: keys that expire must be gone.
const AGREEMENT_PATIENCE: Duration = Duration::from_secs(10 + load::LONGEST_LIFE.as_secs());

/// The number of errors that are reported in full.
const TOLD: usize = 5;

/// The replicas to load, and the length of the load.
#[derive(Default)]
struct Soak {
    /// The addresses at which the replicas listen.
    addresses: Vec<SocketAddr>,
    /// Their process ids on this host, in the same order.
    processes: Vec<u32>,
    duration: Duration,
    /// The seed of random choices.
    seed: u64,
}

/// The state that the clients of a run share.
#[derive(Default)]
struct SoakRun {
    soak: Soak,
    /// Whether clients are to end.
    stop: AtomicBool,
    /// Whether all publishers have ended and all messages have arrived that will.
    silent: AtomicBool,
    operations: AtomicU64,
    connections: AtomicU64,
    published: AtomicU64,
    received: AtomicU64,
    aborted: AtomicU64,
    errors: AtomicU64,
    /// The first of the errors.
    told: Mutex<Vec<String>>,
}

impl SoakRun {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn failed(&self, error: String) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.len() < TOLD {
            told.push(error);
        }
    }
}

/// Starts a cluster, and loads it for `duration` or until this process is asked to stop.
pub(crate) async fn of_a_cluster(args: &Args, duration: Duration) -> Result<(), String> {
    let stop = stop_asked(false).map_err(|error| error.to_string())?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let args = Args { port: free_ports(args)?, ..args.clone() };
    let cluster = Cluster::start(&args).await.map_err(|error| error.to_string())?;
    let (addresses, processes) = (cluster.addresses(), cluster.processes());
    say(format_args!("three replicas serve ports {} and the next two; seed {seed}", args.port));
    let result = run(Soak { addresses, processes, duration, seed }, stop).await;
    match cluster.stop().await.as_slice() {
        [] => result,
        failed => Err(format!("replicas {failed:?} did not end well; {}", result.err().unwrap_or_default())),
    }
}

/// Loads the replicas until the time is over or `stop` is ready. Prints a line of progress once a
/// minute or more.
///
/// # Errors
///
/// The sentence names the fault: operations that failed, replicas that differ, or memory that grew.
async fn run(soak: Soak, stop: impl Future<Output = ()>) -> Result<(), String> {
    let begun = Instant::now();
    let run = Arc::new(SoakRun { soak, ..SoakRun::default() });
    let duration = run.soak.duration;
    let mut subscribers = JoinSet::new();
    for (replica, &address) in run.soak.addresses.iter().enumerate() {
        // Subscribed before the first message is published, so that none may be missing.
        let client = load::subscribe(address).await?;
        subscribers.spawn(load::subscriber(run.clone(), replica, client));
    }
    let mut clients = JoinSet::new();
    for id in 0..CLIENTS_PER_REPLICA * run.soak.addresses.len() {
        clients.spawn(load::client(run.clone(), id));
    }
    clients.spawn(load::sweeper(run.clone()));
    let samples = watch(&run, begun, stop).await;
    run.stop.store(true, Ordering::Relaxed);
    ended(&run, clients).await;
    let lasted = begun.elapsed();
    let expected = run.published.load(Ordering::Relaxed) * run.soak.addresses.len() as u64;
    // The result is judged below, where one message too many counts too.
    let _ = until(Duration::from_secs(10), async || {
        let received = run.received.load(Ordering::Relaxed);
        if received >= expected {
            Ok(())
        } else {
            Err(format!("of {expected} messages, subscribers were sent {received}"))
        }
    })
    .await;
    run.silent.store(true, Ordering::Relaxed);
    ended(&run, subscribers).await;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    say(format_args!(
        "{} operations on {} connections in {:.0} s of {:.0}; {} transactions aborted; {} messages published, {} received",
        count(&run.operations),
        count(&run.connections),
        lasted.as_secs_f64(),
        duration.as_secs_f64(),
        count(&run.aborted),
        count(&run.published),
        count(&run.received),
    ));
    let mut wrong = String::new();
    if count(&run.received) != expected {
        let _ = write!(wrong, "{expected} messages should have reached subscribers, {} have. ", count(&run.received));
    }
    if count(&run.errors) > 0 {
        let told = run.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner).join("; ");
        let _ = write!(wrong, "{} operations failed, the first of them: {told}. ", count(&run.errors));
    }
    match agreement(&run.soak.addresses, AGREEMENT_PATIENCE).await {
        Ok(state) => say(format_args!("all replicas hold the same: {state}")),
        Err(error) => {
            let _ = write!(wrong, "{error}. ");
        }
    }
    wrong += &judge_growth(usage::growth(&samples, lasted));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.trim_end().to_owned()) }
}

/// Says how the replicas' memory grew from the second quarter to the last, and returns what is wrong with it.
fn judge_growth(quarters: Option<Vec<(u64, u64)>>) -> String {
    let mut wrong = String::new();
    let Some(quarters) = quarters else {
        say("too few looks at the memory to compare its quarters");
        return wrong;
    };
    for (replica, (second, last)) in (1..).zip(quarters) {
        let (second_mib, last_mib) = (second >> 20, last >> 20);
        say(format_args!("replica {replica}: {second_mib} MiB in the second quarter, {last_mib} MiB in the last"));
        if last * 100 > second * (100 + GROWTH_PERCENT) {
            let _ = write!(wrong, "replica {replica} grew from {second} to {last} bytes. ");
        }
    }
    wrong
}

/// Waits until these tasks have ended.
async fn ended(run: &SoakRun, mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(panic) = ended {
            run.failed(format!("a client of the load failed: {panic}"));
        }
    }
}

/// Samples the replicas' processes until the end, and reports. Returns the samples, with the time since `begun`.
async fn watch(run: &SoakRun, begun: Instant, stop: impl Future<Output = ()>) -> Vec<(Duration, Vec<Usage>)> {
    let duration = run.soak.duration;
    let look_every = (duration / 40).clamp(Duration::from_millis(100), Duration::from_secs(5));
    let say_every = (duration / 5).min(Duration::from_secs(60));
    let (mut samples, mut said, mut before) = (Vec::new(), Duration::ZERO, 0);
    let mut ticks = time::interval(look_every);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut stop => return samples,
        }
        let at = begun.elapsed();
        let usage: Vec<Usage> = run.soak.processes.iter().map(|&process| Usage::of(process)).collect();
        if at >= said + say_every {
            let operations = run.operations.load(Ordering::Relaxed);
            let per_second = (operations - before) as f64 / (at - said).as_secs_f64();
            let errors = run.errors.load(Ordering::Relaxed);
            let each: Vec<String> = usage.iter().map(ToString::to_string).collect();
            let seconds = at.as_secs();
            say(format_args!(
                "{seconds:>6} s {operations:>11} operations ({per_second:.0}/s), {errors} errors; {}",
                each.join("; ")
            ));
            (said, before) = (at, operations);
        }
        samples.push((at, usage));
        if at >= duration {
            return samples;
        }
    }
}
