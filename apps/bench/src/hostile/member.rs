//! A member, which keeps the rules or not, and the caller on it.

use std::{
    fs,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use squall::{EndReason, Group, Node, sim::Hostility};

use super::stranger;
use crate::{
    failover::Witness,
    job::{Borne, Harm, HostileCommand, HostileJob, Role, WorkerReport},
    latency::{histogram, recorded},
    parent::{Stopped, say},
    places::configure,
};

const GROUP: &str = "bench";

/// A message's size, in bytes.
const SIZE: usize = 100;

/// The interval of a caller's messages, and that of looks for an event that wakes no thread.
const PACE: Duration = Duration::from_millis(1);

/// The time for which a caller waits for an answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// The pause before a node that did not come back tries again.
const AGAIN: Duration = Duration::from_millis(100);

/// The part of a process that its threads share.
struct Shared {
    harms: AtomicBool,
    stops: AtomicBool,
    met: Mutex<Met>,
}

/// The experience of the caller since its parent asked last.
struct Met {
    borne: Borne,
    latencies: Histogram<u64>,
    /// The time of the last answer, or of the last report.
    last: Instant,
}

impl Shared {
    fn met(&self) -> MutexGuard<'_, Met> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_on(&self) -> bool {
        !self.stops.load(Ordering::Relaxed)
    }
}

/// Runs a process until its parent wants no more of it.
pub(crate) fn run(job: &HostileJob, told: &Receiver<HostileCommand>) -> Result<(), Stopped> {
    let met = Met { borne: Borne::default(), latencies: histogram(), last: Instant::now() };
    let shared =
        Arc::new(Shared { harms: AtomicBool::new(false), stops: AtomicBool::new(false), met: Mutex::new(met) });
    let live = {
        let (job, shared) = (job.clone(), Arc::clone(&shared));
        thread::spawn(move || match job.role {
            Role::Stranger => stranger::run(&job, &shared.harms, &shared.stops),
            Role::Honest | Role::Hostile => live(&job, &shared),
        })
    };
    let result = obey(&shared, told, || live.is_finished());
    shared.stops.store(true, Ordering::Relaxed);
    match live.join() {
        Ok(Ok(())) => result,
        Ok(Err(why)) => Err(Stopped::Failed(why)),
        Err(_) => Err(Stopped::Failed("it panicked".into())),
    }
}

fn obey(shared: &Shared, told: &Receiver<HostileCommand>, is_over: impl Fn() -> bool) -> Result<(), Stopped> {
    while !is_over() {
        match told.recv_timeout(AGAIN) {
            Ok(HostileCommand::Begin) => shared.harms.store(true, Ordering::Relaxed),
            Ok(HostileCommand::Tell) => {
                let mut met = shared.met();
                let mut borne = std::mem::take(&mut met.borne);
                borne.latencies = recorded(&met.latencies);
                met.latencies.reset();
                borne.longest = borne.longest.max(met.last.elapsed().as_nanos() as u64);
                borne.resident_bytes = resident_bytes();
                met.last = Instant::now();
                drop(met);
                say(&WorkerReport::Borne(borne));
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Err(Stopped::Told),
        }
    }
    Ok(())
}

/// Is a member, and becomes one again whenever its part is over. Fails if that is by a panic.
fn live(job: &HostileJob, shared: &Shared) -> Result<(), String> {
    let mut lives = 0;
    while shared.goes_on() {
        let harms = job.role == Role::Hostile && shared.harms.load(Ordering::Relaxed);
        let (node, group) = match start(job, harms) {
            Ok(started) => started,
            // The others may be about to drop its earlier life.
            Err(_) if lives > 0 => {
                thread::sleep(AGAIN);
                continue;
            }
            Err(why) => return Err(why),
        };
        if lives == 0 {
            say(&WorkerReport::Ready);
        } else {
            shared.met().borne.starts += 1;
        }
        lives += 1;
        let is_over = || {
            shared.met().borne.epoch = node.view().epoch.0;
            let turns = job.role == Role::Hostile && !harms && shared.harms.load(Ordering::Relaxed);
            turns || !shared.goes_on() || node.end_reason().is_some()
        };
        call(&group, shared, is_over);
        if let Some(reason) = node.end_reason().filter(|_| job.role == Role::Honest) {
            tracing::warn!(%reason, "an honest node's part is over");
            if reason == EndReason::Panicked {
                return Err("an honest node panicked".into());
            }
        }
        node.shutdown();
    }
    Ok(())
}

fn call(group: &Group<Witness>, shared: &Shared, is_over: impl Fn() -> bool) {
    let payload = [7; SIZE];
    while !is_over() {
        let began = Instant::now();
        let answer = group.submit_bytes(&payload).deadline(DEADLINE).wait();
        let mut met = shared.met();
        match answer {
            Ok(_) => {
                met.borne.answered += 1;
                met.latencies.saturating_record(began.elapsed().as_nanos() as u64);
                met.borne.longest = met.borne.longest.max(met.last.elapsed().as_nanos() as u64);
                met.last = Instant::now();
            }
            Err(_) => met.borne.refused += 1,
        }
        drop(met);
        thread::sleep(PACE);
    }
}

fn start(job: &HostileJob, harms: bool) -> Result<(Node, Group<Witness>), String> {
    let config = configure(&job.cluster, job.node, job.nodes, job.place.as_ref());
    let config = config.failure_timeout(Duration::from_millis(job.failure_timeout_ms));
    let mut builder = Node::builder(config.build().map_err(|error| error.to_string())?);
    let group = builder.group_of(GROUP, Witness);
    let hostility = match job.harm {
        Harm::Intrudes => Hostility::Intrudes,
        Harm::Lies => Hostility::Lies,
    };
    let node = match harms {
        true => builder.start_hostile(hostility, AGAIN, Duration::from_millis(job.pause_ms)),
        false => builder.start(),
    };
    Ok((node.map_err(|error| error.to_string())?, group))
}

/// The memory that this process has in use; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}
