//! The log in virtual time, on its caller's thread.

use std::{
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::{AsyncRuntime, type_config::TypeConfigExt};
use openraft_rt_sim::{SimInstant, SimRuntime};
use redb::StorageBackend;
use squall_fabric::{NodeId, Time};
use squall_membership::{Member, Proposal, Report, View, ViewEvent, ViewLog};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::{
    agent::Input,
    disk,
    log::{Opened, Parts, start},
    network::Network,
    settings::{Failure, Settings, StartError},
    shared::{Shared, Status},
    types::Simulated,
    wire::{Contact, Transport},
};

/// How much further than asked a log's clock may go, so that it comes to rest.
const SETTLE: Duration = Duration::from_micros(1);
/// How often a log looks whether a timer of its own is due: soon after something happened to it, and else.
const ALERT: Duration = Duration::from_millis(1);
const CALM: Duration = Duration::from_millis(10);
/// For how long something that happened keeps it alert.
const ALERT_FOR: Duration = Duration::from_millis(20);

/// A node's log in virtual time. Everything it does follows from its settings, its seed, its disk, and what it is told when.
///
/// Dropping it is a crash: what its disk had not synced may be lost ([`SimDisk::crash`]).
pub struct SimLog {
    runtime: SimRuntime,
    shared: Arc<Shared>,
    inbox: UnboundedSender<Input>,
    outbox: Arc<Outbox>,
    /// What the runtime's clock showed when the caller's showed `began`.
    origin: SimInstant,
    began: Time,
    now: Time,
    alert_until: Time,
    has_input: bool,
}

#[derive(Default)]
struct Outbox(Mutex<Vec<(Contact, Vec<u8>)>>);

impl Transport for Outbox {
    fn send(&self, to: &Contact, message: Vec<u8>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((to.clone(), message));
    }
}

impl SimLog {
    /// Starts a node's log at a time. With a disk, it goes on with what that holds.
    ///
    /// # Errors
    ///
    /// If the settings contradict themselves, or the disk fails.
    pub fn new(settings: Settings, seed: u64, disk: Option<SimDisk>, now: Time) -> Result<SimLog, StartError> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let opened = match disk {
            Some(disk) => disk::open_with(disk, &settings.cluster, &mut rng)?,
            None => Opened::in_memory(&mut rng),
        };
        let Parts { me, config } = Parts::new(&settings, opened.voter)?;
        let shared = Arc::new(Shared::new(me.clone(), Arc::new(|| {})));
        let outbox = Arc::new(Outbox::default());
        let (inbox, inputs) = unbounded_channel();
        let network = Arc::new(Network::new(Arc::clone(&outbox) as Arc<dyn Transport>, me));
        let mut runtime = SimRuntime::with_seed(rng.u64(..));
        let (task_shared, task_inbox) = (Arc::clone(&shared), inbox.clone());
        let origin = runtime.block_on(async move {
            let agent =
                start::<Simulated>(settings, Arc::clone(&task_shared), network, config, opened, task_inbox, rng);
            drop(SimRuntime::spawn(async move {
                match agent.await {
                    Ok(agent) => agent.run(inputs).await,
                    Err(failure) => task_shared.fail(failure),
                }
            }));
            Simulated::now()
        });
        let mut log =
            SimLog { runtime, shared, inbox, outbox, origin, began: now, now, alert_until: now, has_input: true };
        log.advance(now);
        Ok(log)
    }

    /// A message that arrives from a node. It is dealt with at the next [`advance`](SimLog::advance), or poll.
    pub fn incoming(&mut self, from: NodeId, message: Vec<u8>) {
        self.tell(Input::Message(from, message));
    }

    /// Runs all that is due up to a time.
    pub fn advance(&mut self, now: Time) {
        if now <= self.now && !self.has_input {
            return;
        }
        if mem::take(&mut self.has_input) {
            self.alert_until = now.max(self.now) + ALERT_FOR;
        }
        self.now = self.now.max(now);
        let until = self.origin + self.now.since(self.began);
        self.runtime.block_on(async move {
            Simulated::sleep_until(until).await;
            // Timers fire only when no task can run: after this one, all have done what they could, also those that
            // sleep for some nanoseconds to let others run.
            Simulated::sleep(SETTLE).await;
        });
    }

    /// Messages to be sent, in order.
    pub fn outgoing(&mut self) -> Vec<(Contact, Vec<u8>)> {
        mem::take(&mut *self.outbox.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// This node, as it is known to the log or asks to be.
    pub fn me(&self) -> Member {
        self.shared.lock().me.clone()
    }

    /// How the log is.
    pub fn status(&self) -> Status {
        self.shared.lock().status.clone()
    }

    /// Why the log has stopped, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.lock().failure.clone()
    }

    /// Begins another life of the cluster: [`Monitor::force`](crate::Monitor::force).
    pub fn force(&mut self, proposal: Proposal, reason: String) {
        self.tell(Input::Force(proposal, reason));
    }

    fn tell(&mut self, input: Input) {
        self.has_input = true;
        // If the log has stopped, `failure` says why.
        let _ = self.inbox.send(input);
    }
}

impl ViewLog for SimLog {
    fn propose(&mut self, proposal: Proposal) {
        self.tell(Input::Propose(proposal));
    }

    fn join(&mut self, me: Member) {
        self.tell(Input::Join(me));
    }

    fn report(&mut self, to: &View, report: Report) {
        self.tell(Input::Report(to.members.clone(), report));
    }

    fn peer_gone(&mut self, node: NodeId) {
        self.tell(Input::PeerGone(node));
    }

    fn poll(&mut self, now: Time) -> Option<ViewEvent> {
        self.advance(now);
        self.shared.pop()
    }

    fn deadline(&self) -> Time {
        if self.has_input || self.shared.has_events() {
            return self.now;
        }
        let state = self.shared.lock();
        if state.failure.is_some() {
            return Time::MAX;
        }
        let patience = if self.now < self.alert_until { ALERT } else { CALM };
        // A tick that is due by now was run: the next one is not known only while the log starts.
        let tick = self.began + state.next_tick;
        if tick > self.now { tick.min(self.now + patience) } else { self.now + patience }
    }
}

/// A disk that loses what was not synced when its node crashes. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Platter>>);

#[derive(Debug)]
struct Platter {
    rng: fastrand::Rng,
    /// What is there for good.
    synced: Vec<u8>,
    /// What is read.
    current: Vec<u8>,
    unsynced: Vec<Write>,
    /// How many more writes succeed.
    writes_left: Option<u64>,
}

#[derive(Debug)]
enum Write {
    Bytes(u64, Vec<u8>),
    Length(u64),
}

impl SimDisk {
    /// An empty disk. What it loses follows from the seed.
    pub fn new(seed: u64) -> SimDisk {
        let rng = fastrand::Rng::with_seed(seed);
        let platter = Platter { rng, synced: Vec::new(), current: Vec::new(), unsynced: Vec::new(), writes_left: None };
        SimDisk(Arc::new(Mutex::new(platter)))
    }

    /// The power fails: of what was written since the last sync, some is there, some is not, some in part. Call it after the
    /// node's [`SimLog`] was dropped.
    pub fn crash(&self) {
        let mut platter = self.lock();
        let Platter { rng, synced, current, unsynced, .. } = &mut *platter;
        for write in unsynced.drain(..) {
            match write {
                Write::Bytes(offset, mut bytes) => match rng.u8(..3) {
                    0 => {}
                    1 => {
                        bytes.truncate(rng.usize(..=bytes.len()));
                        put(synced, offset, &bytes);
                    }
                    _ => put(synced, offset, &bytes),
                },
                Write::Length(length) => synced.resize(length as usize, 0),
            }
        }
        current.clone_from(synced);
    }

    /// After so many more writes, all fail, as on a disk that is full.
    pub fn fail_after(&self, writes: u64) {
        self.lock().writes_left = Some(writes);
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset as usize..end].copy_from_slice(data);
}

impl Platter {
    fn may_write(&mut self) -> io::Result<()> {
        match &mut self.writes_left {
            Some(0) => Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated disk")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl StorageBackend for SimDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.lock();
        let start = offset as usize;
        let bytes = platter.current.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.lock();
        platter.may_write()?;
        platter.current.resize(len as usize, 0);
        platter.unsynced.push(Write::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.lock();
        let Platter { synced, unsynced, .. } = &mut *platter;
        for write in unsynced.drain(..) {
            match write {
                Write::Bytes(offset, bytes) => put(synced, offset, &bytes),
                Write::Length(length) => synced.resize(length as usize, 0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.lock();
        platter.may_write()?;
        put(&mut platter.current, offset, data);
        platter.unsynced.push(Write::Bytes(offset, data.to_vec()));
        Ok(())
    }
}
