//! The log on a thread of its own.

use std::{sync::Arc, thread};

use openraft::{Config, Raft, SnapshotPolicy};
use squall_fabric::{NodeId, Time};
use squall_membership::{Member, Proposal, Report, ReturnReport, View, ViewEvent, ViewLog};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::{
    agent::{Agent, Forcing, Input},
    disk::Directory,
    machine::Machine,
    network::{Clients, LogNetwork},
    settings::{Failure, NotForced, Settings, StartError, Timing},
    shared::{OwnerMailbox, ViewLogStatus},
    store::{Opened, random},
    types::{Real, Types},
    wire::Transport,
};

/// A node's view log, on a thread of its own. Dropping it stops the thread and waits for it.
pub struct Log {
    shared: Arc<OwnerMailbox>,
    inbox: UnboundedSender<Input>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The entry for messages to a node's log.
#[derive(Clone)]
pub struct Inlet {
    shared: Arc<OwnerMailbox>,
    inbox: UnboundedSender<Input>,
}

impl Inlet {
    /// Hands over a message that [`Transport`] brought from a node. It is lost if too many wait; after the log has
    /// stopped, nothing happens. A node that `only_votes` does not become a member.
    pub fn incoming(&self, from: NodeId, only_votes: bool, message: Vec<u8>) {
        match self.shared.room(message.len()) {
            Some(room) => {
                drop(self.inbox.send(Input::Message { from, only_votes, bytes: message, _room: Some(room) }));
            }
            None => {
                tracing::debug!(%from, bytes = message.len(), "a message of the view log is dropped: too many wait");
            }
        }
    }
}

/// A view of a node's log for others than its owner. It stays as it was when the log has stopped.
#[derive(Clone)]
pub struct Monitor {
    shared: Arc<OwnerMailbox>,
    inbox: UnboundedSender<Input>,
}

impl Monitor {
    /// This node, as it is known to the log or asks to be.
    pub fn me(&self) -> Member {
        self.shared.lock().me.clone()
    }

    /// The state of the log.
    pub fn status(&self) -> ViewLogStatus {
        self.shared.lock().status.clone()
    }

    /// Whether this node is a voter.
    pub fn is_voter(&self) -> bool {
        let state = self.shared.lock();
        state.status.voters.iter().any(|(node, _)| *node == state.me.node)
    }

    /// The reason for which the log has stopped, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.lock().failure.clone()
    }

    /// Tells the others that their group goes on without something that this node has, and that was decided or
    /// acknowledged. It shows in their [status](Monitor::status).
    pub fn say_went_back(&self) {
        let _ = self.inbox.send(Input::WentBack);
    }

    /// Begins another life of the cluster, of which this node is the only voter. What was decided elsewhere since, and
    /// what others hold that this node does not, is given up. `proposal` follows the last view that this node knows,
    /// and has it as a member; it comes as [`Committed`](ViewEvent::Committed). `reason` (by whom, when, why) is kept
    /// for good.
    ///
    /// The node first asks, for a second, whether another node was forced, or is at this moment: of several only one
    /// goes on. `done` is called with the outcome, on the log's thread; it is dropped if the log has stopped. Nodes of
    /// the old life that hear of the new one go over to it by themselves if they are in no view. Members do, too, if
    /// they can't go on and know of no later view than the new life has.
    pub fn force(&self, proposal: Proposal, reason: String, done: impl FnOnce(Result<(), NotForced>) + Send + 'static) {
        let _ = self.inbox.send(Input::Force(Forcing::new(proposal, reason, done)));
    }
}

impl Log {
    /// Starts a node's log. With a directory, it goes on with the stored part, or begins to store, and its incarnation
    /// is later than all earlier ones. Without, the part ends with the process, and the next process is another part in
    /// the log. `wake` is called whenever [`poll`](ViewLog::poll) has something new, or the log has
    /// [failed](Monitor::failure).
    ///
    /// # Errors
    ///
    /// If the settings contradict themselves, or the directory can't be used.
    pub fn start(
        settings: Settings,
        directory: Option<Directory>,
        transport: Arc<dyn Transport>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Log, StartError> {
        let mut rng = random();
        let opened = match directory {
            Some(directory) => directory.opened,
            None => Opened::in_memory(&mut rng),
        };
        let name = format!("squall-viewlog-{}", settings.me.node.0);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(StartError::Thread)?;
        let DerivedSettings { me, config } = DerivedSettings::new(&settings, &opened)?;
        let shared = Arc::new(OwnerMailbox::new(me.clone(), wake));
        let (inbox, inputs) = unbounded_channel();
        let (task_shared, task_inbox) = (Arc::clone(&shared), inbox.clone());
        let body = move || {
            let _guard = Guard(Arc::clone(&task_shared));
            runtime.block_on(async move {
                let network = Arc::new(LogNetwork::new(transport, me));
                match start::<Real>(settings, Arc::clone(&task_shared), network, config, opened, task_inbox, rng).await
                {
                    Ok(agent) => agent.run(inputs).await,
                    Err(failure) => task_shared.fail(failure),
                }
            });
        };
        let thread = thread::Builder::new().name(name).spawn(body).map_err(StartError::Thread)?;
        Ok(Log { shared, inbox, thread: Some(thread) })
    }

    /// The entry for this node's messages.
    pub fn inlet(&self) -> Inlet {
        Inlet { shared: Arc::clone(&self.shared), inbox: self.inbox.clone() }
    }

    /// A view of the log for others than its owner.
    pub fn monitor(&self) -> Monitor {
        Monitor { shared: Arc::clone(&self.shared), inbox: self.inbox.clone() }
    }

    fn tell(&self, input: Input) {
        // If the log has stopped, `failure` says why.
        let _ = self.inbox.send(input);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.tell(Input::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the view log's thread panicked");
        }
    }
}

impl ViewLog for Log {
    fn propose(&mut self, proposal: Proposal) {
        self.tell(Input::Propose(proposal));
    }

    fn join(&mut self, me: Member) {
        self.tell(Input::Join(me));
    }

    fn report(&mut self, to: &View, report: Report) {
        self.tell(Input::Report(to.members.clone(), report));
    }

    fn report_return(&mut self, back: ReturnReport) {
        self.tell(Input::Return(back));
    }

    fn peer_gone(&mut self, node: NodeId) {
        self.tell(Input::PeerGone(node));
    }

    fn poll(&mut self, _now: Time) -> Option<ViewEvent> {
        self.shared.pop()
    }
}

/// A guard that stops the node's log if its thread panics: a node must not go on without its log, not even if that is
/// this crate's fault.
struct Guard(Arc<OwnerMailbox>);

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(Failure::Storage("it has panicked".into()));
        }
    }
}

/// The values that follow from the settings.
pub(crate) struct DerivedSettings {
    pub(crate) me: Member,
    pub(crate) config: Arc<Config>,
}

impl DerivedSettings {
    pub(crate) fn new(settings: &Settings, opened: &Opened) -> Result<DerivedSettings, StartError> {
        let node = settings.me.node;
        if let Some(members) = settings.start.listed().filter(|members| !members.contains(&node)) {
            return Err(StartError::NotListed { node, members });
        }
        let Timing { heartbeat, election, .. } = settings.timing;
        let millis = |time: std::time::Duration| time.as_millis() as u64;
        let config = Config {
            cluster_name: settings.cluster.clone(),
            heartbeat_interval: millis(heartbeat),
            election_timeout_min: millis(election.0),
            election_timeout_max: millis(election.1),
            // The agent decides which node stands, and when.
            enable_tick: false,
            enable_elect: false,
            backoff: "50ms".into(),
            // A view's entry may be of some kilobytes; there are few.
            snapshot_policy: SnapshotPolicy::LogsSinceLast(200),
            max_in_snapshot_log_to_keep: 50,
            install_snapshot_timeout: 1000,
            ..Config::default()
        };
        let config = config.validate().map_err(|e| StartError::Timing(e.to_string()))?;
        let incarnation = opened.store.begin_life(settings.me.incarnation).map_err(StartError::NotStored)?;
        let fingerprint = settings.parameters.fingerprint();
        let me = Member { voter: opened.voter, incarnation, fingerprint, ..settings.me.clone() };
        Ok(DerivedSettings { me, config: Arc::new(config) })
    }
}

/// Starts a raft and its agent, within a runtime.
pub(crate) async fn start<C: Types>(
    settings: Settings,
    shared: Arc<OwnerMailbox>,
    network: Arc<LogNetwork>,
    config: Arc<Config>,
    opened: Opened,
    inbox: UnboundedSender<Input>,
    mut rng: fastrand::Rng,
) -> Result<Agent<C>, Failure> {
    let stopped = |e: &dyn std::error::Error| Failure::Storage(e.to_string());
    let Opened { voter, store, cluster, directory } = opened;
    network.set_cluster(cluster);
    network.set_lives(store.lives());
    store.resign(voter);
    network.count_from(rng.u64(..));
    let applied = inbox.clone();
    let observer = Arc::new(move |entry| {
        // The agent may have ended.
        let _ = applied.send(Input::Applied(entry));
    });
    let machine = Machine::new(store.clone(), observer).map_err(|e| stopped(&e))?;
    let clients = Clients(Arc::clone(&network));
    let raft = Raft::new(voter.0, Arc::clone(&config), clients, store.clone(), machine.clone())
        .await
        .map_err(|e| stopped(&e))?;
    Ok(Agent::new(settings, shared, network, (raft, config), (machine, store, directory), inbox, rng))
}
