//! One node: a member of the store, driven by the thread that runs it.

use std::{
    convert::Infallible,
    fs, iter,
    path::Path,
    sync::mpsc::{Receiver, TryRecvError},
    time::Duration,
};

use squall::{
    Node, Spin, Time,
    onepipe::{HostClock, Pipe, PipeEvent, ViewController},
};
use squall_fabric::{
    NodeId, Wait,
    shm::{ShmConfig, ShmFabric},
};
use squall_transactions::{Store, StoreConfig, SubmitError, Transaction};

use super::{
    check::{Findings, OUT, findings_file},
    client::StoreClient,
};
use crate::{
    job::{Go, StoreCommand, TransactionsJob, WorkerReport},
    parent::{Stopped, say},
    places::{FORMATION_TIMEOUT, configure},
};

/// The longest value, in bytes: a number. So a message has room for a transaction with all accounts.
const VALUE_BYTES: usize = 16;

/// The most messages of one mode that are delivered before the other mode has its turn.
const DELIVERIES: usize = 256;

/// The interval of looks for a command, which wakes no thread.
const LOOK: Duration = Duration::from_millis(10);

struct StoreMember<'a> {
    pipe: Pipe<ShmFabric, ViewController>,
    store: Store,
    client: StoreClient,
    /// The transactions that are submitted before anything new.
    first: Vec<Transaction>,
    told: &'a Receiver<StoreCommand>,
    /// The node whose views settle which members have failed.
    _node: Node,
}

/// Runs a member until the parent wants no more of it.
pub(crate) fn run(job: &TransactionsJob, told: &Receiver<StoreCommand>) -> Result<Infallible, Stopped> {
    let mut member = open(job, told).map_err(|error| error.to_string())?;
    if job.node == 0 {
        member.first.push(member.client.opening());
    }
    member.until_idle()?;
    say(&WorkerReport::Ready);
    loop {
        // A member that has nothing to do serves all the same, so that the others do not see it leave.
        match member.turn()? {
            None => {}
            Some(StoreCommand::Begin(go)) => {
                member.transact(go)?;
                say(&WorkerReport::Transacted(member.client.measured()));
            }
            Some(StoreCommand::Record(directory)) => {
                member.write_findings(&findings_file(&directory, job.node as usize))?;
                say(&WorkerReport::Recorded);
            }
        }
    }
}

/// Meets the other members.
fn open<'a>(
    job: &TransactionsJob,
    told: &'a Receiver<StoreCommand>,
) -> Result<StoreMember<'a>, Box<dyn std::error::Error>> {
    let shape = &job.shape;
    let config = configure(&job.cluster, job.node, shape.nodes, None);
    let mut node = Node::builder(config.formation_timeout(FORMATION_TIMEOUT).build()?);
    let handle = node.onepipe("store");
    let node = node.start()?;
    let fabric = ShmFabric::open(ShmConfig::new(format!("{}-pipes", job.cluster), NodeId(job.node)))?;
    let (config, controller) = handle.take(fabric.waker(), FORMATION_TIMEOUT)?;
    if config.nodes.len() != shape.nodes as usize {
        return Err("a node failed before all had met".into());
    }
    let mut pipe = Pipe::create(fabric, config, HostClock::default(), controller, Spin::Auto, shape.nodes as usize)?;
    pipe.form(FORMATION_TIMEOUT)?;
    let store = StoreConfig {
        value_bytes: VALUE_BYTES,
        window: shape.window as usize,
        record: job.record,
        ..StoreConfig::new(shape.placement()?)
    };
    let store = Store::of_pipe(store, pipe.onepipe())?;
    Ok(StoreMember { pipe, store, client: StoreClient::new(job), first: Vec::new(), told, _node: node })
}

impl StoreMember<'_> {
    /// Submits transactions until the time is over, and waits until they are.
    fn transact(&mut self, go: Go) -> Result<(), Stopped> {
        self.client.counted = Some(go);
        while Time::boot_clock().as_nanos() < go.until {
            while self.first.is_empty() {
                let transaction = self.client.next();
                self.submit(transaction)?;
            }
            self.turn()?;
        }
        self.until_idle()?;
        // Reads all accounts once more, which brings all members to the same point.
        self.first.push(self.client.read_all());
        self.until_idle()
    }

    fn until_idle(&mut self) -> Result<(), Stopped> {
        while !self.first.is_empty() || !self.store.is_idle() {
            self.turn()?;
        }
        Ok(())
    }

    /// Sends what is to be sent, and takes what arrives, for which it waits a moment. Returns the parent's command, if
    /// there is one; there is none before it has done the last.
    fn turn(&mut self) -> Result<Option<StoreCommand>, Stopped> {
        let command = match self.told.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => return Err(Stopped::Told),
        };
        while let Some(transaction) = self.first.pop() {
            if !self.submit(transaction)? {
                break;
            }
        }
        let (pipe, store) = (&mut self.pipe, &mut self.store);
        store.scatter(|mode, messages| pipe.scatter(mode, messages, Duration::ZERO));
        pipe.receive_any(DELIVERIES, LOOK, |delivery| store.on_delivery(&delivery));
        let now = Time::boot_clock().as_nanos();
        let removed = &mut self.client.transacted.removed;
        store.on_events(iter::from_fn(|| pipe.next_event()).inspect(|event| {
            if let PipeEvent::Removed { rank, .. } = event {
                removed.push((*rank, now));
            }
        }));
        if store.has_ended() {
            return Err(Stopped::Failed(OUT.to_owned()));
        }
        while let Some(completed) = self.store.completed() {
            let again = self.client.completed(completed, now).map_err(|error| error.to_string())?;
            self.first.extend(again);
        }
        Ok(command)
    }

    /// Submits a transaction. Returns false if as many are under way as may be; then it is the next.
    fn submit(&mut self, transaction: Transaction) -> Result<bool, String> {
        match self.store.submit(&transaction) {
            Ok(id) => {
                self.client.under_way.insert(id, (Time::boot_clock().as_nanos(), transaction));
                Ok(true)
            }
            Err(SubmitError::Busy { .. }) => {
                self.first.push(transaction);
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn write_findings(&mut self, file: &Path) -> Result<(), String> {
        let records = std::mem::take(&mut self.client.records);
        let findings: Findings = (records, self.store.take_executions(), self.store.copies().clone());
        let bytes = postcard::to_allocvec(&findings).map_err(|error| error.to_string())?;
        fs::write(file, bytes).map_err(|error| format!("{}: {error}", file.display()))
    }
}
