//! The log in virtual time, on its caller's thread.

mod disk;
mod eligibility;
mod runtime;

use std::{
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use openraft::{AsyncRuntime, type_config::TypeConfigExt};
use openraft_rt_sim::SimInstant;
use squall_fabric::{NodeId, Time, sync::Lock};
use squall_membership::{Member, Proposal, Report, ReturnReport, View, ViewEvent, ViewLog};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use self::runtime::Runtime;
pub use self::{disk::SimDisk, eligibility::Eligibility};
use crate::{
    agent::{Forcing, Input},
    disk as store_on_disk,
    log::{DerivedSettings, start},
    machine::Machine,
    network::LogNetwork,
    settings::{Failure, NotForced, Settings, StartError},
    shared::{OwnerMailbox, ViewLogStatus},
    store::{LogStore, Opened},
    types::{AppRequest, AppResponse, LogNode, Types},
    wire::{Contact, Transport},
};

openraft::declare_raft_types!(
    /// A runtime in virtual time.
    pub(crate) Simulated:
        D = AppRequest,
        R = AppResponse,
        NodeId = u64,
        Node = LogNode,
        AsyncRuntime = Runtime,
);

impl Types for Simulated {}

/// The excess by which a log's clock may go further than asked, so that it comes to rest.
const SETTLE: Duration = Duration::from_micros(1);

/// A node's log in virtual time. All its actions follow from its settings, its seed, its disk, its inputs and their
/// times.
///
/// Dropping it is a crash: writes that its disk had not synced may be lost ([`SimDisk::crash`]).
pub struct SimLog {
    runtime: Runtime,
    shared: Arc<OwnerMailbox>,
    inbox: UnboundedSender<Input>,
    outbox: Arc<Outbox>,
    store: LogStore,
    machine: Arc<OnceLock<Machine>>,
    /// The reading of the runtime's clock when the caller's showed `began`.
    origin: SimInstant,
    began: Time,
    now: Time,
    /// The inputs that it has not dealt with.
    inputs: Vec<Input>,
}

#[derive(Default)]
struct Outbox(Lock<Vec<(Contact, Vec<u8>)>>);

impl Transport for Outbox {
    fn send(&self, to: &Contact, message: Vec<u8>) {
        self.0.lock().push((to.clone(), message));
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
            Some(disk) => store_on_disk::open_with(disk, (&settings.cluster, settings.me.node), &mut rng)?,
            None => Opened::in_memory(&mut rng),
        };
        let DerivedSettings { me, config } = DerivedSettings::new(&settings, &opened)?;
        let store = opened.store.clone();
        let machine = Arc::new(OnceLock::new());
        let shared = Arc::new(OwnerMailbox::new(me.clone(), Arc::new(|| {})));
        let outbox = Arc::new(Outbox::default());
        let (inbox, inputs) = unbounded_channel();
        let network = Arc::new(LogNetwork::new(Arc::clone(&outbox) as Arc<dyn Transport>, me));
        let mut runtime = Runtime::with_seed(rng.u64(..));
        let (task_shared, task_inbox, task_machine) = (Arc::clone(&shared), inbox.clone(), Arc::clone(&machine));
        let origin = runtime.block_on(async move {
            let agent =
                start::<Simulated>(settings, Arc::clone(&task_shared), network, config, opened, task_inbox, rng);
            drop(Runtime::spawn(async move {
                match agent.await {
                    Ok(agent) => {
                        // Nothing else sets it.
                        let _ = task_machine.set(agent.machine.clone());
                        agent.run(inputs).await;
                    }
                    Err(failure) => task_shared.fail(failure),
                }
            }));
            Simulated::now()
        });
        let mut log =
            SimLog { runtime, shared, inbox, outbox, store, machine, origin, began: now, now, inputs: Vec::new() };
        log.run();
        Ok(log)
    }

    /// Takes a message from a node. It is dealt with at the next [`advance`](SimLog::advance), or poll.
    pub fn incoming(&mut self, from: NodeId, message: Vec<u8>) {
        self.inputs.push(Input::Message { from, only_votes: false, bytes: message, _room: None });
    }

    /// Runs all that is due up to a time, and then deals with the inputs.
    pub fn advance(&mut self, now: Time) {
        let is_due = self.next_run().is_some_and(|at| at <= now);
        if is_due || !self.inputs.is_empty() {
            self.now = self.now.max(now);
            self.run();
        }
    }

    fn run(&mut self) {
        let until = self.origin + self.now.since(self.began);
        let (inputs, inbox) = (mem::take(&mut self.inputs), self.inbox.clone());
        self.runtime.block_on(async move {
            Simulated::sleep_until(until).await;
            for input in inputs {
                // If the log has stopped, `failure` says why.
                let _ = inbox.send(input);
            }
            // Timers fire only when no task can run. After this one, all tasks have done what they could, also those
            // that sleep for some nanoseconds to let others run.
            Simulated::sleep(SETTLE).await;
        });
    }

    /// The time at which it has something to do of itself: until then it only deals with inputs. None: never.
    pub fn next_run(&self) -> Option<Time> {
        let at = self.runtime.next_timer()?.elapsed_since_start();
        Some(self.began + at.saturating_sub(self.origin.elapsed_since_start()))
    }

    /// Takes the messages to be sent, in order.
    pub fn outgoing(&mut self) -> Vec<(Contact, Vec<u8>)> {
        mem::take(&mut *self.outbox.0.lock())
    }

    /// The next event of which the owner was not told, as of the last time that the log ran.
    pub fn event(&mut self) -> Option<ViewEvent> {
        self.shared.pop()
    }

    /// Whether there is an [`event`](SimLog::event).
    pub fn has_events(&self) -> bool {
        self.shared.has_events()
    }

    /// Whether it has inputs that it has not dealt with.
    pub fn has_inputs(&self) -> bool {
        !self.inputs.is_empty()
    }

    /// This node, as it is known to the log or asks to be.
    pub fn me(&self) -> Member {
        self.shared.lock().me.clone()
    }

    /// The state of the log.
    pub fn status(&self) -> ViewLogStatus {
        self.shared.lock().status.clone()
    }

    /// This node's part, from which it follows which others it would need to lead. None: it has no part in any log.
    pub fn eligibility(&self) -> Option<Eligibility> {
        let (last, membership) = self.store.tail();
        let membership = membership.or_else(|| self.machine.get().map(Machine::membership))?;
        Some(Eligibility::new(self.me().voter, last, &membership))
    }

    /// The reason for which the log has stopped, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.lock().failure.clone()
    }

    /// Tells the others that their group lacks what this node has: see
    /// [`Monitor::say_went_back`](crate::Monitor::say_went_back).
    pub fn say_went_back(&mut self) {
        self.inputs.push(Input::WentBack);
    }

    /// Begins another life of the cluster: see [`Monitor::force`](crate::Monitor::force).
    pub fn force(
        &mut self,
        proposal: Proposal,
        reason: String,
        done: impl FnOnce(Result<(), NotForced>) + Send + 'static,
    ) {
        self.inputs.push(Input::Force(Forcing::new(proposal, reason, done)));
    }
}

impl ViewLog for SimLog {
    fn propose(&mut self, proposal: Proposal) {
        self.inputs.push(Input::Propose(proposal));
    }

    fn join(&mut self, me: Member) {
        self.inputs.push(Input::Join(me));
    }

    fn report(&mut self, to: &View, report: Report) {
        self.inputs.push(Input::Report(to.members.clone(), report));
    }

    fn report_return(&mut self, back: ReturnReport) {
        self.inputs.push(Input::Return(back));
    }

    fn peer_gone(&mut self, node: NodeId) {
        self.inputs.push(Input::PeerGone(node));
    }

    fn poll(&mut self, now: Time) -> Option<ViewEvent> {
        self.advance(now);
        self.event()
    }

    fn deadline(&self) -> Time {
        if self.has_inputs() || self.has_events() {
            return self.now;
        }
        self.next_run().map_or(Time::MAX, |at| at.max(self.now))
    }
}
