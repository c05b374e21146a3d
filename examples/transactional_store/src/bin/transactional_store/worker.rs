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
    onepipe::{Controller, HostClock, OnePipe, Settler},
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
    words::{OUT, Said, Told},
};

/// How long members may take to meet.
const MEETING: Duration = Duration::from_secs(20);

/// How long a member looks for something to do before it sleeps; meanwhile it leaves its core to whoever wants it.
const YIELDS_FOR: Duration = Duration::from_millis(1);

/// Messages with all accounts in them fit.
const MESSAGE_BYTES: usize = 16 << 10;

/// Values are numbers.
const VALUE_BYTES: usize = 16;

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
}

struct Worker {
    /// Its views settle who has failed.
    _node: Node,
    settler: Settler,
    fabric: ShmFabric,
    member: Member<HostClock>,
    /// Those that it has said to be removed.
    removed: BTreeSet<usize>,
    load: Load,
    phase: Phase,
    /// What is submitted next, before anything new.
    again: Vec<Transaction>,
    lasts: Duration,
    /// Where it puts what it has found.
    file: PathBuf,
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
pub(crate) fn run(args: &Args, rank: u32, placement: Placement) -> ExitCode {
    let Err(stopped) = Worker::open(args, rank, placement).and_then(Worker::run);
    match stopped {
        Stopped::Gone => ExitCode::SUCCESS,
        Stopped::Failed(why) => {
            say(&Said::Failed(why));
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
        let seat = builder.onepipe("store");
        let node = builder.start()?;
        let mut fabric = ShmFabric::open(ShmConfig::new(format!("{cluster}-pipes"), NodeId(id)))?;
        let (config, settler) = seat.take(fabric.waker(), MEETING)?;
        if config.nodes.len() != args.members as usize {
            return Err(Stopped::Failed("a member failed before all had met".to_owned()));
        }
        let gate = settler.gate().cloned().unwrap_or_default();
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
            settler,
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
        // It goes on when it is done, so that nobody sees it go before all are.
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
        progress |= self.member.step(&mut self.fabric, now, &mut self.settler);
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

    /// Takes what it is told. Returns whether that was anything.
    fn hear(&mut self) -> Result<bool, Stopped> {
        let mut any = false;
        loop {
            match self.told.try_recv() {
                Ok(Told::Begin) => self.phase = Phase::Submits { until: Time::boot_clock() + self.lasts },
                Ok(Told::Finish) => {
                    self.write_findings()?;
                    say(&Said::Done);
                }
                Err(TryRecvError::Empty) => return Ok(any),
                Err(TryRecvError::Disconnected) => return Err(Stopped::Gone),
            }
            any = true;
        }
    }

    /// Says whom the store newly goes on without.
    fn tell_removed(&mut self) {
        for rank in 0..self.member.pipe().ranks() {
            if !self.member.store().is_alive(rank) && self.removed.insert(rank) {
                say(&Said::Removed { rank });
            }
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
    fn write_findings(&mut self) -> Result<(), Stopped> {
        let store = self.member.store();
        self.load.findings.executions = store.take_executions();
        self.load.findings.digests = store.digests();
        fs::write(&self.file, postcard::to_allocvec(&self.load.findings)?)?;
        Ok(())
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
