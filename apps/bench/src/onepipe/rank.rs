//! One rank of `squall-bench onepipe`.

use std::{
    sync::mpsc::{Receiver, TryRecvError},
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use squall::{
    Time,
    onepipe::{self, CreateError, Delivery, HostClock, Message, Mode, OnePipe, OnePipeConfig, ScatterError},
};
use squall_fabric::{Completion, Fabric, NodeId, Wait};
use squall_onepipe::baseline::{Lamport, OneMode, Sequencer, TokenRing, TotalOrder};

use crate::{
    job::{Go, OnePipeJob, PAUSE_NANOS, Scattered, ScatteringOrder, WorkerReport},
    latency,
    parent::{Stopped, say},
    processor::processor_seconds,
};

/// The time that it may take until all ranks have met.
const CONNECT: Duration = Duration::from_secs(20);

/// The most scatterings that are sent, and messages that are taken, between two steps.
const BATCH: usize = 256;

/// The bytes of scatterings that may wait in 1Pipe for room. Beyond them, a scattering that finds no room waits in the
/// sender's own code.
const WAITING_BYTES: usize = 4096;

/// The most steps with work between two polls of the fabric.
const STEPS_PER_POLL: u32 = 32;

/// A rank's activity at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadPhase {
    /// A phase of sends as scheduled, and in the end of the scatterings that were late.
    Paced,
    /// A phase of sends as fast as it can.
    Full,
    /// A phase without sends: messages on their way come in.
    Drain,
    Over,
}

/// The times of a run, in nanoseconds of the host's boot clock.
struct Times {
    /// The time from which on latencies count, by the time at which a message was due.
    from: u64,
    paced_until: u64,
    full_from: u64,
    full_until: u64,
}

impl Times {
    fn new(go: Go, phase_nanos: u64) -> Times {
        let paced_until = go.from + phase_nanos;
        let full_from = paced_until + 2 * PAUSE_NANOS;
        Times { from: go.from, paced_until, full_from, full_until: full_from + phase_nanos }
    }

    fn phase(&self, now: u64) -> LoadPhase {
        match now {
            _ if now < self.full_from - PAUSE_NANOS => LoadPhase::Paced,
            _ if now < self.full_until => LoadPhase::Full,
            _ if now < self.full_until + PAUSE_NANOS => LoadPhase::Drain,
            _ => LoadPhase::Over,
        }
    }
}

/// Takes part in a run, and reports its outcome.
pub(crate) fn scatter(job: &OnePipeJob, mut fabric: impl Fabric + Wait, told: &Receiver<Go>) -> Result<(), Stopped> {
    let nodes = (0..job.nodes).map(NodeId).collect();
    let config = OnePipeConfig {
        ring_bytes: job.ring_bytes,
        waiting_bytes: WAITING_BYTES,
        ..OnePipeConfig::new(nodes, onepipe::tag(0, 1))
    };
    let clock = HostClock::default();
    let failed = |error: CreateError| Stopped::Failed(error.to_string());
    match job.order {
        ScatteringOrder::Be | ScatteringOrder::R => {
            let mode = if job.order == ScatteringOrder::R { Mode::Reliable } else { Mode::BestEffort };
            let order = OnePipe::create(&mut fabric, config, clock).map_err(failed)?;
            run(job, fabric, OneMode::new(order, mode), told)
        }
        ScatteringOrder::Sequencer => {
            let order = Sequencer::create(&mut fabric, config).map_err(failed)?;
            run(job, fabric, order, told)
        }
        ScatteringOrder::Token => {
            let order = TokenRing::create(&mut fabric, config).map_err(failed)?;
            run(job, fabric, order, told)
        }
        ScatteringOrder::Lamport => {
            let order = Lamport::create(&mut fabric, config).map_err(failed)?;
            run(job, fabric, order, told)
        }
    }
}

fn run(
    job: &OnePipeJob,
    fabric: impl Fabric + Wait,
    order: impl TotalOrder,
    told: &Receiver<Go>,
) -> Result<(), Stopped> {
    let mut rank = OnePipeRank::connect(job, fabric, order, told)?;
    say(&WorkerReport::Ready);
    say(&WorkerReport::Scattered(rank.measure()?));
    Ok(())
}

struct OnePipeRank<'a, F, O> {
    job: &'a OnePipeJob,
    told: &'a Receiver<Go>,
    fabric: F,
    order: O,
    /// The first receiver of the next scattering.
    first: usize,
    inbox: Inbox,
    completions: Vec<Completion>,
    steps: u32,
    /// Whether there are fewer cores than ranks.
    is_crowded: bool,
}

/// The messages that were delivered.
struct Inbox {
    size_bytes: usize,
    delivered: u64,
    last: Option<(u64, usize)>,
    is_garbled: bool,
    /// Latencies count of messages that were due at this time or later.
    counted_from: u64,
    latencies: Histogram<u64>,
}

impl Inbox {
    #[inline]
    fn take(&mut self, delivery: &Delivery<'_>) {
        self.delivered += 1;
        let place = (delivery.stamp, delivery.sender);
        let is_next = self.last.replace(place).is_none_or(|last| last < place);
        let first = delivery.bytes.first_chunk().copied().map(u64::from_le_bytes);
        let (Some(due), true, true) = (first, is_next, delivery.bytes.len() == self.size_bytes) else {
            self.is_garbled = true;
            return;
        };
        if due >= self.counted_from && due != NOT_TIMED {
            self.latencies.saturating_record(Time::boot_clock().as_nanos().saturating_sub(due));
        }
    }
}

/// The first word of messages that are not timed.
const NOT_TIMED: u64 = 0;

impl<'a, F: Fabric + Wait, O: TotalOrder> OnePipeRank<'a, F, O> {
    fn connect(
        job: &'a OnePipeJob,
        fabric: F,
        order: O,
        told: &'a Receiver<Go>,
    ) -> Result<OnePipeRank<'a, F, O>, Stopped> {
        let inbox = Inbox {
            size_bytes: job.size_bytes,
            delivered: 0,
            last: None,
            is_garbled: false,
            counted_from: u64::MAX,
            latencies: latency::histogram(),
        };
        let is_crowded = thread::available_parallelism().is_ok_and(|cores| cores.get() < job.nodes as usize);
        let (completions, steps) = (Vec::new(), 0);
        let mut rank =
            OnePipeRank { job, told, fabric, order, first: job.node as usize, inbox, completions, steps, is_crowded };
        let until = Time::boot_clock() + CONNECT;
        while !rank.order.is_connected() {
            if Time::boot_clock() >= until {
                return Err(Stopped::Failed(format!("the other nodes were not met within {CONNECT:?}")));
            }
            rank.turn(Time::boot_clock());
        }
        Ok(rank)
    }

    /// Waits for the beginning, and measures latency and throughput.
    fn measure(&mut self) -> Result<Scattered, Stopped> {
        let go = loop {
            match self.told.try_recv() {
                Ok(go) => break go,
                Err(TryRecvError::Empty) => self.turn(Time::boot_clock()),
                Err(TryRecvError::Disconnected) => return Err(Stopped::Told),
            }
        };
        let times = Times::new(go, self.job.phase_nanos);
        self.inbox.counted_from = times.from;
        let mut schedule = Schedule::new(Time::boot_clock().as_nanos(), self.job);
        let untimed = payload(NOT_TIMED, self.job.size_bytes);
        let untimed = all(&untimed, self.job.nodes);
        let (mut began, mut scattered) = (None, None);
        loop {
            let time = Time::boot_clock();
            let now = time.as_nanos();
            if now >= times.full_from && began.is_none() {
                began = Some((time, self.inbox.delivered, processor_seconds()));
            }
            if now >= times.full_until && scattered.is_none() {
                let (since, delivered, cpu) = began.expect("it comes before");
                scattered = Some(Scattered {
                    delivered: self.inbox.delivered - delivered,
                    missed: schedule.due(times.paced_until),
                    wall_seconds: time.since(since).as_secs_f64(),
                    cpu_seconds: processor_seconds() - cpu,
                    latencies: Vec::new(),
                });
            }
            match times.phase(now) {
                LoadPhase::Paced => {
                    while let Some(due) = schedule.next(now.min(times.paced_until)) {
                        let payload = payload(due, self.job.size_bytes);
                        if !self.send(time, &all(&payload, self.job.nodes))? {
                            break;
                        }
                        schedule.sent();
                    }
                }
                LoadPhase::Full => {
                    for _ in 0..BATCH {
                        if !self.send(time, &untimed)? {
                            break;
                        }
                    }
                }
                LoadPhase::Drain => {}
                LoadPhase::Over => break,
            }
            self.turn(time);
            if self.inbox.is_garbled {
                let why = "a message was delivered out of order, or not as it was sent: this is a bug of Squall";
                return Err(Stopped::Failed(why.to_owned()));
            }
            if !matches!(self.told.try_recv(), Err(TryRecvError::Empty)) {
                return Err(Stopped::Told);
            }
        }
        let scattered = scattered.expect("it is over");
        Ok(Scattered { latencies: latency::recorded(&self.inbox.latencies), ..scattered })
    }

    /// Sends a scattering, if there is room for it.
    #[inline]
    fn send(&mut self, now: Time, messages: &[Message<'_>]) -> Result<bool, Stopped> {
        // Each goes to `width` nodes, and the next one begins one node further.
        match self.order.scatter(now, &messages[self.first..self.first + self.job.width]) {
            Ok(_) => {
                self.first = if self.first + 1 < self.job.nodes as usize { self.first + 1 } else { 0 };
                Ok(true)
            }
            Err(ScatterError::Full { .. }) => Ok(false),
            Err(error) => Err(Stopped::Failed(error.to_string())),
        }
    }

    /// Takes one step, polls the fabric if it is time, and takes deliveries.
    #[inline]
    fn turn(&mut self, now: Time) {
        let mut busy = self.order.step(&mut self.fabric, now);
        self.steps += 1;
        if !busy || self.steps >= STEPS_PER_POLL {
            busy |= self.look(now);
        }
        let inbox = &mut self.inbox;
        busy |= self.order.deliver(BATCH * self.job.width, &mut |delivery| inbox.take(&delivery)) > 0;
        if !busy {
            if self.is_crowded {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn look(&mut self, now: Time) -> bool {
        self.steps = 0;
        self.fabric.poll(now, &mut self.completions);
        let heard = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            self.order.on_completion(&mut self.fabric, now, &completion);
        }
        heard
    }
}

/// A message that was due at this time.
fn payload(due: u64, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0x5a; bytes];
    payload[..8].copy_from_slice(&due.to_le_bytes());
    payload
}

/// Returns a list of this message to each node, twice around, so that the messages of any scattering are a slice of
/// it.
fn all(payload: &[u8], nodes: u32) -> Vec<Message<'_>> {
    (0..2 * nodes as usize).map(|at| Message { to: at % nodes as usize, bytes: payload }).collect()
}

/// The times at which scatterings are due: at even distances.
struct Schedule {
    begin: u64,
    rate: f64,
    sent: u64,
}

impl Schedule {
    fn new(now: u64, job: &OnePipeJob) -> Schedule {
        // The nodes' schedules are staggered, as far as their clocks agree.
        let begin = now + (f64::from(job.node) / f64::from(job.nodes) * 1e9 / job.rate) as u64;
        Schedule { begin, rate: job.rate, sent: 0 }
    }

    /// The time at which the next one is due, if that is before `end`.
    fn next(&self, end: u64) -> Option<u64> {
        let due = self.begin + (self.sent as f64 * 1e9 / self.rate) as u64;
        (due < end).then_some(due)
    }

    /// The number of scatterings that were due before `end` and are not sent.
    fn due(&self, end: u64) -> u64 {
        let due = end.saturating_sub(self.begin) as f64 * self.rate / 1e9;
        (due.ceil() as u64).saturating_sub(self.sent)
    }

    fn sent(&mut self) {
        self.sent += 1;
    }
}
