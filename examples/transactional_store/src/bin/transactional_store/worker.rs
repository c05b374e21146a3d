//! One member, driven by the thread that runs it.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::Duration,
};

use squall::{
    Config, Node, NodeId, Time,
    config::Backend,
    onepipe::{Controller, HostClock, OnePipe, ViewController},
};
use squall_fabric::{
    Completion, Fabric, Wait, Waker,
    shm::{ShmConfig, ShmFabric},
};
use squall_transactions::{Member, Placement, StoreConfig, SubmitError, Transaction};

use crate::{
    Args,
    cluster::findings_file,
    load::Load,
    words::{MemberCommand, MemberReport, OUT},
};

/// The time that members may take to meet.
const MEETING: Duration = Duration::from_secs(20);

/// The time for which an idle member polls, yielding its core to other threads, before it sleeps.
const YIELDS_FOR: Duration = Duration::from_millis(1);

/// The longest message, in bytes. A transaction with all accounts fits.
const MESSAGE_BYTES: usize = 16 << 10;

/// The longest value, in bytes. The values are numbers.
const VALUE_BYTES: usize = 16;

/// The phases of a member's client. The member serves its shards in all of them.
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
    /// It waits until the transactions under way are over.
    Drains,
    /// It reads all accounts once more, which brings all members to the same point.
    ReadsAll,
    Idle,
}

struct Worker {
    /// The node whose views settle which members have failed.
    _node: Node,
    controller: ViewController,
    fabric: ShmFabric,
    member: Member<HostClock>,
    /// The removed ranks that it has reported.
    removed: BTreeSet<usize>,
    load: Load,
    phase: Phase,
    /// The recalled transactions, which are submitted before anything new.
    again: Vec<Transaction>,
    lasts: Duration,
    /// The file for its results.
    file: PathBuf,
    told: Receiver<MemberCommand>,
    completions: Vec<Completion>,
    /// The time since which there was nothing to do; `None` while there is.
    idle_since: Option<Time>,
}

/// The reason for which a member stops.
enum Stopped {
    /// The process that started it is gone.
    Gone,
    Failed(String),
}

impl<E: std::error::Error> From<E> for Stopped {
    fn from(error: E) -> Stopped {
        Stopped::Failed(error.to_string())
    }
}

/// Runs a member until the process that started it wants no more of it.
pub(crate) fn run(args: &Args, rank: u32, placement: Placement) -> ExitCode {
    let Err(stopped) = Worker::open(args, rank, placement).and_then(Worker::run);
    match stopped {
        Stopped::Gone => ExitCode::SUCCESS,
        Stopped::Failed(why) => {
            say(&MemberReport::Failed(why));
            ExitCode::FAILURE
        }
    }
}

impl Worker {
    fn open(args: &Args, rank: u32, placement: Placement) -> Result<Worker, Stopped> {
        let until = Time::boot_clock() + MEETING;
        let cluster = args.cluster.clone().unwrap_or_default();
        // Ranks are in the order of the nodes' ids.
        let id = rank + 1;
        let config = Config::builder(&cluster, id).members(1..=args.members).backend(Backend::Shm);
        let mut builder = Node::builder(config.formation_timeout(MEETING).build()?);
        let handle = builder.onepipe("store");
        let node = builder.start()?;
        let mut fabric = ShmFabric::open(ShmConfig::new(format!("{cluster}-pipes"), NodeId(id)))?;
        let (config, controller) = handle.take(fabric.waker(), MEETING)?;
        if config.nodes.len() != args.members as usize {
            return Err(Stopped::Failed("a member failed before all had met".to_owned()));
        }
        let gate = controller.gate().cloned().unwrap_or_default();
        let pipe = OnePipe::with_gate(&mut fabric, config, HostClock::default(), gate)?;
        let store = StoreConfig {
            message_bytes: MESSAGE_BYTES,
            value_bytes: VALUE_BYTES,
            window: args.window as usize,
            record: args.smoke,
            ..StoreConfig::new(placement)
        };
        let member = Member::new(pipe, store)?;
        let told = listen(fabric.waker());
        let directory = args.directory.clone().unwrap_or_default();
        Ok(Worker {
            _node: node,
            controller,
            fabric,
            member,
            removed: BTreeSet::new(),
            load: Load::new(rank as usize, args.accounts, args.seed.unwrap_or(0), args.smoke),
            phase: Phase::Meets { until },
            again: Vec::new(),
            lasts: args.lasts(),
            file: findings_file(&directory, rank as usize),
            told,
            completions: Vec::new(),
            idle_since: None,
        })
    }

    fn run(mut self) -> Result<Infallible, Stopped> {
        // An idle member goes on serving, so that the others do not see it leave before all of them are done.
        loop {
            if self.turn()? {
                self.idle_since = None;
            } else {
                self.rest()?;
            }
        }
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
        progress |= self.member.step(&mut self.fabric, now, &mut self.controller);
        if self.member.store().has_ended() {
            return Err(Stopped::Failed(OUT.to_owned()));
        }
        if progress {
            self.tell_removed();
        }
        while let Some(completed) = self.member.store().completed() {
            self.again.extend(self.load.completed(completed, Time::boot_clock().as_nanos())?);
            progress = true;
        }
        Ok(self.submit(now)? || progress)
    }

    /// Takes the words that have arrived. Returns whether there were any.
    fn hear(&mut self) -> Result<bool, Stopped> {
        let mut any = false;
        loop {
            match self.told.try_recv() {
                Ok(MemberCommand::Begin) => self.phase = Phase::Submits { until: Time::boot_clock() + self.lasts },
                Ok(MemberCommand::Finish) => {
                    self.write_findings()?;
                    say(&MemberReport::Done);
                }
                Err(TryRecvError::Empty) => return Ok(any),
                Err(TryRecvError::Disconnected) => return Err(Stopped::Gone),
            }
            any = true;
        }
    }

    /// Reports the ranks that the store has newly removed.
    fn tell_removed(&mut self) {
        for rank in 0..self.member.pipe().ranks() {
            if !self.member.store().is_alive(rank) && self.removed.insert(rank) {
                say(&MemberReport::Removed { rank });
            }
        }
    }

    /// Submits what the phase asks for. Returns whether that was anything.
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
                say(&MemberReport::Ready);
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
                say(&MemberReport::Idle);
                Phase::Idle
            }
            _ => return Ok(any),
        };
        self.phase = next;
        Ok(true)
    }

    /// Submits a transaction. Returns false if as many are under way as may be.
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

    /// Lets time pass after a turn without progress.
    fn rest(&mut self) -> Result<(), Stopped> {
        let now = Time::boot_clock();
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < YIELDS_FOR {
            thread::yield_now();
            return Ok(());
        }
        self.fabric.arm();
        // Writes of other members end the sleep from here on, so the last look comes after `arm`.
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

    /// Writes the results into the file.
    fn write_findings(&mut self) -> Result<(), Stopped> {
        let store = self.member.store();
        self.load.findings.executions = store.take_executions();
        self.load.findings.digests = store.digests();
        fs::write(&self.file, postcard::to_allocvec(&self.load.findings)?)?;
        Ok(())
    }
}

/// Reads the words of the process that started this one. The channel is disconnected once that process is gone.
fn listen(waker: Waker) -> Receiver<MemberCommand> {
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

fn say(said: &MemberReport) {
    // A reader that is gone is noticed by the end of the standard input.
    let _ = writeln!(io::stdout().lock(), "{said}");
}
