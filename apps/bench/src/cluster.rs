//! The worker processes of one run.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use squall_command::CommandError;
use squall_fabric::Time;

use super::{
    job::{
        BulkJob, BulkRound, CollectivesJob, Go, Job, OnePipeJob, PAUSE_NANOS, Scattered, Timed, WorkerJob,
        WorkerMeasurements, WorkerReport,
    },
    places::NodePlaces,
};

/// The time that workers may take beyond what they are asked to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The time between the start of sending and the start of measuring.
pub(crate) const WARM_UP: Duration = Duration::from_millis(500);

/// The time that a byte may take to be written, copied or compared on a host that is busy with other work.
const NANOS_PER_BYTE_AT_WORST: u64 = 10;

/// The same, where a link of 100 Mbit/s may be on the way.
const NANOS_PER_BYTE_OF_SLOW_LINKS: u64 = 80;

/// The time for which a run may go on after it was told to stop.
const STOP_AFTER: Duration = Duration::from_millis(100);

/// A reason for which a run gave no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("this program could not be started again as a worker: {0}")]
    Spawn(std::io::Error),
    #[error("node {node} could not be started through {wrapper:?}: {error}; correct --wrap")]
    Wrap { node: usize, wrapper: String, error: std::io::Error },
    #[error("node {node} gave up: {why}")]
    Failed { node: usize, why: String },
    #[error("the process of node {node} ended too early ({how}): see above for what it said, or set RUST_LOG=info")]
    Died { node: usize, how: String },
    #[error("it was told to stop, and what it had written is removed")]
    Stopped,
    #[error("the nodes did not answer within {limit:?}: the host may be overloaded, try fewer --nodes{or}")]
    Silent {
        limit: Duration,
        /// Another guess, where there is a network.
        or: &'static str,
    },
}

impl From<RunError> for CommandError {
    fn from(error: RunError) -> CommandError {
        CommandError::failed(error)
    }
}

/// Runs a job for each node in a process of its own, and returns what they measured, by node.
pub(crate) fn run(jobs: &[Job], places: &NodePlaces, measure: Duration) -> Result<Vec<WorkerMeasurements>, RunError> {
    run_unless(&Arc::default(), jobs, places, measure)
}

/// Runs as [`run`] does, unless it is told to stop meanwhile.
pub(crate) fn run_unless(
    stop: &Arc<AtomicBool>,
    jobs: &[Job],
    places: &NodePlaces,
    measure: Duration,
) -> Result<Vec<WorkerMeasurements>, RunError> {
    let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Ordered), places)?;
    workers.stop = Arc::clone(stop);
    workers.until_all(PATIENCE, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
    let from = Time::boot_clock() + WARM_UP;
    workers.tell(&Go { from: from.as_nanos(), until: (from + measure).as_nanos() });
    workers.until_all(WARM_UP + measure + PATIENCE, |said| match said {
        WorkerReport::Done(outcome) => Some(*outcome),
        _ => None,
    })
}

/// Runs a bulk job for each node in a process of its own, and returns the rounds that they measured, by node.
pub(crate) fn run_bulk(jobs: &[BulkJob], places: &NodePlaces) -> Result<Vec<Vec<BulkRound>>, RunError> {
    let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Bulk), places)?;
    let copies = jobs.iter().map(|job| u64::from(job.groups) * job.size_bytes as u64).sum::<u64>();
    let nanos =
        if jobs.iter().any(|job| job.place.is_some()) { NANOS_PER_BYTE_OF_SLOW_LINKS } else { NANOS_PER_BYTE_AT_WORST };
    let once = PATIENCE + Duration::from_nanos(copies * nanos);
    let rounds = jobs.first().map_or(0, |job| 1 + job.warm_up + job.iterations);
    // Workers do not wait for this process: one may have moved all before the readiness of another is read here.
    workers.results(once * (1 + rounds))
}

/// Runs a job for each node in a process of its own, and returns the times of its operations, by node.
pub(crate) fn run_collectives(jobs: &[CollectivesJob], places: &NodePlaces) -> Result<Vec<Timed>, RunError> {
    let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Collectives), places)?;
    let bytes = jobs.iter().map(|job| 8 * job.elements as u64).sum::<u64>() * jobs.len() as u64;
    let nanos = if jobs[0].place.is_some() { NANOS_PER_BYTE_OF_SLOW_LINKS } else { NANOS_PER_BYTE_AT_WORST };
    // The nodes may share cores: a short operation then waits while other nodes have them.
    let once = Duration::from_millis(jobs.len() as u64) + Duration::from_nanos(bytes * nanos);
    workers.results(PATIENCE + once * (64 + jobs[0].samples))
}

/// Runs a job for each node in a process of its own, and returns what they measured, by node.
pub(crate) fn run_onepipe(jobs: &[OnePipeJob], places: &NodePlaces) -> Result<Vec<Scattered>, RunError> {
    let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::OnePipe), places)?;
    workers.until_all(PATIENCE, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
    let from = Time::boot_clock() + WARM_UP;
    let measure = Duration::from_nanos(2 * jobs[0].phase_nanos + 3 * PAUSE_NANOS);
    workers.tell(&Go { from: from.as_nanos(), until: (from + measure).as_nanos() });
    workers.results(WARM_UP + measure + PATIENCE)
}

/// The processes of one run. Processes that still run when it is dropped are stopped.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// Whether the run is to stop.
    stop: Arc<AtomicBool>,
    /// A process' words; None once it says nothing more.
    said: Receiver<(Life, Option<WorkerReport>)>,
    say: Sender<(Life, Option<WorkerReport>)>,
    /// Whether the nodes talk over a network, be it loopback.
    has_network: bool,
}

/// A node's index, and the number of its process: 0 is the first.
type Life = (usize, u32);

struct Worker {
    life: u32,
    child: Child,
    /// The worker goes on as long as this is open.
    input: Option<ChildStdin>,
    /// Whether it was killed or stopped: nothing is awaited from it.
    is_out: bool,
}

impl Workers {
    /// Starts a process for each of these works, one for each node from 0 on.
    pub(crate) fn start(works: impl Iterator<Item = WorkerJob>, places: &NodePlaces) -> Result<Workers, RunError> {
        let (say, said) = mpsc::channel();
        let has_network = places.place.is_some();
        let mut workers = Workers { workers: Vec::new(), stop: Arc::default(), said, say, has_network };
        for (node, work) in works.enumerate() {
            let worker = workers.spawn((node, 0), &work, places)?;
            workers.workers.push(worker);
        }
        Ok(workers)
    }

    fn spawn(&self, life: Life, work: &WorkerJob, places: &NodePlaces) -> Result<Worker, RunError> {
        let program = std::env::current_exe().map_err(RunError::Spawn)?;
        let node = life.0;
        let work = serde_json::to_string(work).expect("a job is plain data");
        let wrapper = places.wrapper(node as u32);
        let mut command = match wrapper.split_first() {
            None => Command::new(&program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(&program);
                command
            }
        };
        // A wrapper may stay alive between the worker and this process.
        let parent = if wrapper.is_empty() { std::process::id() } else { 0 };
        command.args(["worker", &work, &parent.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| match &*wrapper {
            [] => RunError::Spawn(error),
            [first, ..] => RunError::Wrap { node, wrapper: first.clone(), error },
        })?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let say = self.say.clone();
        thread::spawn(move || {
            let said = output.lines().map_while(Result::ok).map_while(|line| serde_json::from_str(&line).ok());
            // The receiver is gone once the run is over.
            let _ = said.map(Some).chain([None]).try_for_each(|said| say.send((life, said)));
        });
        Ok(Worker { life: life.1, child, input, is_out: false })
    }

    /// Kills a node's process, as an accident would.
    pub(crate) fn kill(&mut self, node: usize) {
        let worker = &mut self.workers[node];
        worker.is_out = true;
        // It can only fail if the process has ended, which is noticed where its words are awaited.
        let _ = worker.child.kill();
        let _ = worker.child.wait();
    }

    /// Stops a node's process, as a host that hangs would.
    pub(crate) fn stop(&mut self, node: usize) {
        self.workers[node].is_out = true;
        self.signal(node, Signal::STOP);
    }

    /// Lets a node's process go on that was stopped.
    pub(crate) fn resume(&mut self, node: usize) {
        self.workers[node].is_out = false;
        self.signal(node, Signal::CONT);
    }

    fn signal(&self, node: usize, signal: Signal) {
        // As for `kill`.
        let _ = kill_process(Pid::from_child(&self.workers[node].child), signal);
    }

    /// Starts another process for a node that was killed.
    pub(crate) fn restart(&mut self, node: usize, work: WorkerJob, places: &NodePlaces) -> Result<(), RunError> {
        let life = (node, self.workers[node].life + 1);
        self.workers[node] = self.spawn(life, &work, places)?;
        Ok(())
    }

    /// Waits until this worker has said something of which `take` makes a value, and returns that value. It waits
    /// for no other worker, unlike [`until_all`](Workers::until_all).
    pub(crate) fn until<T>(
        &mut self,
        node: usize,
        limit: Duration,
        take: impl Fn(WorkerReport) -> Option<T>,
    ) -> Result<T, RunError> {
        let taken = self.until_those(limit, |other| other == node, take)?;
        Ok(taken.into_iter().next().expect("there is one for each"))
    }

    /// Waits until each worker that was not killed or stopped has said something of which `take` makes a value.
    pub(crate) fn until_all<T>(
        &mut self,
        limit: Duration,
        take: impl Fn(WorkerReport) -> Option<T>,
    ) -> Result<Vec<T>, RunError> {
        let out: Vec<bool> = self.workers.iter().map(|worker| worker.is_out).collect();
        self.until_those(limit, |node| !out[node], take)
    }

    /// Waits until each of these workers has said its result of this type.
    pub(crate) fn results<T: TryFrom<WorkerReport>>(&mut self, limit: Duration) -> Result<Vec<T>, RunError> {
        self.until_all(limit, |said| T::try_from(said).ok())
    }

    /// Waits until each of these workers has said something of which `take` makes a value.
    pub(crate) fn until_those<T>(
        &mut self,
        limit: Duration,
        those: impl Fn(usize) -> bool,
        take: impl Fn(WorkerReport) -> Option<T>,
    ) -> Result<Vec<T>, RunError> {
        let until = Instant::now() + limit;
        let mut taken: Vec<Option<T>> = self.workers.iter().map(|_| None).collect();
        while taken.iter().enumerate().any(|(node, taken)| those(node) && taken.is_none()) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(RunError::Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left.min(STOP_AFTER)) {
                Ok(((node, life), _)) if self.workers[node].is_out || self.workers[node].life != life => {}
                Ok(((node, _), Some(WorkerReport::Failed(why)))) => return Err(self.cause(node, why)),
                Ok(((node, _), Some(said))) => {
                    if let Some(value) = take(said) {
                        taken[node] = Some(value);
                    }
                }
                Ok(((node, _), None)) => return Err(self.died(node)),
                Err(RecvTimeoutError::Timeout) if left > STOP_AFTER => {}
                Err(RecvTimeoutError::Timeout) => return Err(self.silent(limit)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.died(0)),
            }
        }
        Ok(taken.into_iter().flatten().collect())
    }

    /// The reason for which a worker gave up: the death of another one's process, if one died.
    fn cause(&mut self, node: usize, why: String) -> RunError {
        let mut gave_up = vec![node];
        while let Ok(((other, _), said)) = self.said.recv_timeout(Duration::from_millis(200)) {
            match said {
                Some(WorkerReport::Failed(_)) => gave_up.push(other),
                None if !gave_up.contains(&other) => return self.died(other),
                _ => {}
            }
        }
        RunError::Failed { node, why }
    }

    fn died(&mut self, node: usize) -> RunError {
        let child = &mut self.workers[node].child;
        // Its output has ended, so it has ended too or cannot go on.
        let how = match child.kill().and_then(|()| child.wait()) {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        RunError::Died { node, how }
    }

    /// The error for workers that do not say in time what is awaited.
    pub(crate) fn silent(&self, limit: Duration) -> RunError {
        let or = if self.has_network { ", or the nodes do not reach each other (--addresses)" } else { "" };
        RunError::Silent { limit, or }
    }

    /// Sends a line to all workers.
    pub(crate) fn tell(&mut self, what: &impl Serialize) {
        let line = serde_json::to_string(what).expect("plain data");
        for input in self.workers.iter_mut().filter_map(|worker| worker.input.as_mut()) {
            // A worker that is gone is noticed by the end of its output.
            let _ = writeln!(input, "{line}");
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.input = None;
        }
        let until = Instant::now() + Duration::from_secs(2);
        for Worker { child, .. } in &mut self.workers {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            // It may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
