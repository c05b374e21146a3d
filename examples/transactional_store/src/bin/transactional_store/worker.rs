//! One member, driven by the thread that runs it.

use std::{
    collections::VecDeque,
    fs,
    io::{self, Write},
    path::PathBuf,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::Duration,
};

use squall_fabric::{
    Completion, Fabric, GroupTag, NodeId, Time, Wait, Waker,
    shm::{ShmConfig, ShmFabric},
};
use squall_onepipe::{Controller, Directive, HostClock, OnePipe, OnePipeConfig};
use squall_transactions::{Member, Placement, StoreConfig, SubmitError, Transaction};

use crate::{
    Args,
    load::Load,
    words::{Said, Told},
};

/// How long members may take to meet.
const MEETING: Duration = Duration::from_secs(20);

/// How long a member looks for something to do before it sleeps; meanwhile it leaves its core to whoever wants it.
const YIELDS_FOR: Duration = Duration::from_millis(1);

/// Messages with all accounts in them fit.
const MESSAGE_BYTES: usize = 16 << 10;

/// Values are numbers.
const VALUE_BYTES: usize = 16;

/// The controller, as a member sees it: the process that started it, at the other end of two pipes.
#[derive(Default)]
struct Desk {
    told: VecDeque<Directive>,
}

impl Controller for Desk {
    fn suspect(&mut self, epoch: u64, rank: usize) {
        say(&Said::Suspects { epoch, rank });
    }

    fn report(&mut self, epoch: u64, barrier: u64) {
        say(&Said::Reports { epoch, barrier });
    }

    fn poll(&mut self, _now: Time) -> Option<Directive> {
        self.told.pop_front()
    }
}

/// What a member does beside serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Meets {
        until: Time,
    },
    Opens,
    Waits,
    Submits {
        until: Time,
    },
    /// Brings what is under way to its end.
    Drains,
    /// Reads all accounts once more, with which all members get to the same point.
    ReadsAll,
    Idle,
    Ends,
}

struct Worker {
    fabric: ShmFabric,
    member: Member<HostClock>,
    desk: Desk,
    load: Load,
    phase: Phase,
    /// What is submitted next, before anything new.
    again: Vec<Transaction>,
    lasts: Duration,
    told: Receiver<Told>,
    completions: Vec<Completion>,
    /// Since when there was nothing to do.
    idle_since: Option<Time>,
}

/// Why a member goes no further.
enum Stopped {
    /// Nobody is there any more for whom it works.
    Gone,
    Failed(String),
}

impl<E: std::error::Error> From<E> for Stopped {
    fn from(error: E) -> Stopped {
        Stopped::Failed(error.to_string())
    }
}

/// Runs a member until the process that started it wants no more of it.
pub(crate) fn run(args: &Args, rank: u32, placement: Placement) -> Result<(), String> {
    match Worker::open(args, rank, placement).and_then(Worker::run) {
        Ok(()) | Err(Stopped::Gone) => Ok(()),
        Err(Stopped::Failed(why)) => {
            say(&Said::Failed(why.clone()));
            Err(why)
        }
    }
}

impl Worker {
    fn open(args: &Args, rank: u32, placement: Placement) -> Result<Worker, Stopped> {
        let cluster = args.cluster.clone().unwrap_or_default();
        let mut fabric = ShmFabric::open(ShmConfig::new(cluster, NodeId(rank)))?;
        let nodes = (0..args.members).map(NodeId).collect();
        let config = OnePipeConfig::new(nodes, GroupTag { layer: 1, group: 0, epoch: 1 });
        let pipe = OnePipe::create(&mut fabric, config, HostClock::default())?;
        let store = StoreConfig {
            message_bytes: MESSAGE_BYTES,
            value_bytes: VALUE_BYTES,
            window: args.window as usize,
            record: args.smoke,
            ..StoreConfig::new(placement)
        };
        let member = Member::new(pipe, store)?;
        let told = listen(fabric.waker());
        Ok(Worker {
            fabric,
            member,
            desk: Desk::default(),
            load: Load::new(rank as usize, args.accounts, args.seed.unwrap_or(0), args.smoke),
            phase: Phase::Meets { until: Time::boot_clock() + MEETING },
            again: Vec::new(),
            lasts: args.lasts(),
            told,
            completions: Vec::new(),
            idle_since: None,
        })
    }

    fn run(mut self) -> Result<(), Stopped> {
        while self.phase != Phase::Ends {
            if self.turn()? {
                self.idle_since = None;
            } else {
                self.rest()?;
            }
        }
        let file = self.write_findings()?;
        say(&Said::Done(file));
        // Let nobody see this member go before all are done.
        while self.told.recv().is_ok() {}
        Ok(())
    }

    /// Does what can be done now. Returns whether that was anything.
    fn turn(&mut self) -> Result<bool, Stopped> {
        let mut progress = self.hear()?;
        let now = Time::boot_clock();
        self.fabric.poll(now, &mut self.completions);
        progress |= !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            self.member.on_completion(&mut self.fabric, now, &completion);
        }
        progress |= self.member.step(&mut self.fabric, now, &mut self.desk);
        if self.member.store().has_ended() {
            return Err(Stopped::Failed("it was taken for failed by the others".to_owned()));
        }
        while let Some(completed) = self.member.store().completed() {
            self.again.extend(self.load.completed(completed, Time::boot_clock().as_nanos())?);
            progress = true;
        }
        Ok(self.submit(now)? || progress)
    }

    /// Takes what it is told. Returns whether that was anything.
    fn hear(&mut self) -> Result<bool, Stopped> {
        let mut any = false;
        loop {
            match self.told.try_recv() {
                Ok(Told::Begin) => self.phase = Phase::Submits { until: Time::boot_clock() + self.lasts },
                Ok(Told::Directive(directive)) => self.desk.told.push_back(directive),
                Ok(Told::Finish) => self.phase = Phase::Ends,
                Err(TryRecvError::Empty) => return Ok(any),
                Err(TryRecvError::Disconnected) => return Err(Stopped::Gone),
            }
            any = true;
        }
    }

    /// Submits what its phase asks for. Returns whether that was anything.
    fn submit(&mut self, now: Time) -> Result<bool, Stopped> {
        let mut any = false;
        while let Some(transaction) = self.again.pop() {
            if !self.try_submit(transaction.clone())? {
                self.again.push(transaction);
                break;
            }
            any = true;
        }
        let is_idle = self.again.is_empty() && self.member.store().is_idle();
        let next = match self.phase {
            Phase::Meets { .. } if self.member.pipe().is_connected() => {
                if self.member.pipe().rank() == 0 {
                    self.again.push(self.load.opening());
                }
                Phase::Opens
            }
            Phase::Meets { until } if now >= until => {
                let ranks = 0..self.member.pipe().ranks();
                let missing: Vec<usize> = ranks.filter(|&rank| !self.member.pipe().is_reached(rank)).collect();
                return Err(Stopped::Failed(format!("ranks {missing:?} did not appear within {MEETING:?}")));
            }
            Phase::Opens if is_idle => {
                say(&Said::Ready);
                Phase::Waits
            }
            Phase::Submits { until } if now < until => {
                while self.again.is_empty() {
                    let transaction = self.load.next();
                    if !self.try_submit(transaction)? {
                        break;
                    }
                    any = true;
                }
                return Ok(any);
            }
            Phase::Submits { .. } => Phase::Drains,
            Phase::Drains if is_idle => {
                self.again.push(self.load.read_all());
                Phase::ReadsAll
            }
            Phase::ReadsAll if is_idle => {
                say(&Said::Idle);
                Phase::Idle
            }
            _ => return Ok(any),
        };
        self.phase = next;
        Ok(true)
    }

    /// Returns false if as many are under way as may be.
    fn try_submit(&mut self, transaction: Transaction) -> Result<bool, Stopped> {
        match self.member.store().submit(&transaction) {
            Ok(id) => {
                self.load.submitted(id, Time::boot_clock().as_nanos(), transaction);
                Ok(true)
            }
            Err(SubmitError::Busy { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// After a turn without progress: lets time pass.
    fn rest(&mut self) -> Result<(), Stopped> {
        let now = Time::boot_clock();
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < YIELDS_FOR {
            thread::yield_now();
            return Ok(());
        }
        self.fabric.arm();
        // What is written from now on ends the sleep.
        if self.turn()? {
            self.fabric.disarm();
            return Ok(());
        }
        let until = match self.phase {
            Phase::Meets { until } | Phase::Submits { until } => until,
            _ => Time::MAX,
        };
        self.fabric.wait(until.min(self.member.deadline()));
        Ok(())
    }

    /// Puts what was found into a file.
    fn write_findings(&mut self) -> Result<String, Stopped> {
        let store = self.member.store();
        self.load.findings.executions = store.take_executions();
        self.load.findings.digests = store.digests();
        let name = format!("transactional-store-{}", std::process::id());
        let file: PathBuf = std::env::temp_dir().join(name);
        fs::write(&file, postcard::to_allocvec(&self.load.findings)?)?;
        Ok(file.display().to_string())
    }
}

/// Hears what the process that started this one says. Disconnected once that is gone.
fn listen(waker: Waker) -> Receiver<Told> {
    let (hear, told) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let Ok(order) = line.parse() else { break };
            if hear.send(order).is_err() {
                break;
            }
            waker.wake();
        }
        drop(hear);
        waker.wake();
    });
    told
}

fn say(said: &Said) {
    // Who is gone does not listen; the end of the input will say so.
    let _ = writeln!(io::stdout().lock(), "{said}");
}
