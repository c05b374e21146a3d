//! A group of ranks that carry out operations together.

use std::sync::Arc;

use squall_fabric::{BreakReason, Completion, Fabric, Fingerprint, Region, RegionKind, Time};
use squall_sst::{Mesh, MeshEvent};

use crate::{
    Algorithm, Collective, CollectiveError, CommunicatorConfig, CreateError, Parameters,
    channel::{Channel, post_word},
    cost,
    element::Vector,
    lane::{Common, Lane, Status},
    layout::{ABORT, Layout, Link},
    operation::Operation,
    reduction::Operator,
    schedule::{Call, Schedule, plan},
};

/// How many schedules are kept for calls that come again.
const KEPT_PLANS: usize = 16;

/// One rank's part in a group of ranks that carry out [operations](Collective) together.
///
/// Its methods never block. [`step`](Communicator::step) makes progress with all operations under way; the fabric's
/// owner polls it now and then, and hands each completion to [`on_completion`](Communicator::on_completion).
///
/// All ranks start the same operations in the same order, with the same root and lengths. What differs between ranks
/// can't be noticed in general: operations then hang, or give wrong results; memory outside the communicator is safe.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) config: CommunicatorConfig,
    layout: Layout,
    pub(crate) me: usize,
    mesh: Mesh,
    region: Region,
    staging: Region,
    links: Vec<Option<Link>>,
    /// Ranks whose connection is gone.
    lost: Vec<bool>,
    lanes: Vec<Lane>,
    chunk: Vec<u64>,
    /// The next operation's number.
    next: u64,
    plans: Vec<Plan>,
    /// Which plan was made last.
    last_plan: usize,
    parameters: Parameters,
    overrides: Vec<(Collective, Algorithm)>,
    ended: Option<Ended>,
    /// Peers that were not yet told of the failure.
    untold: Vec<usize>,
    /// A rank that has closed its connection, and until when another may say why.
    suspect: Option<(usize, Time)>,
    /// Peers that were told that this rank needs nobody more; none before it closes.
    farewells: Option<Vec<bool>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Failed(usize),
    Disconnected,
}

impl Ended {
    fn error(self) -> CollectiveError {
        match self {
            Ended::Failed(rank) => CollectiveError::Failed { rank },
            Ended::Disconnected => CollectiveError::Disconnected,
        }
    }
}

/// A schedule, and the call that it is for.
#[derive(Debug)]
struct Plan {
    collective: Collective,
    root: usize,
    bytes: usize,
    in_order: bool,
    schedule: Arc<Schedule>,
}

impl Communicator {
    /// Registers the memory, and starts to connect this node to all other ranks.
    ///
    /// Operations may be started at once: they wait for connections.
    pub fn create(fabric: &mut impl Fabric, config: CommunicatorConfig) -> Result<Communicator, CreateError> {
        let layout = config.layout()?;
        let (node, ranks) = (fabric.node(), config.ranks.len());
        let mut distinct = config.ranks.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let me = config.ranks.iter().position(|&rank| rank == node);
        let (Some(me), true) = (me, distinct.len() == ranks) else {
            return Err(CreateError::Ranks { node, ranks });
        };
        let region = fabric.register(RegionKind::Polled, layout.region_bytes())?;
        let staging = fabric.register(RegionKind::Bulk, layout.staging_bytes())?;
        let lanes = (0..layout.lanes)
            .map(|lane| {
                let channel = |peer| Channel::new(&layout, &region, lane, me, peer, config.first_message);
                Lane::new((0..ranks).map(channel).collect(), layout.slot_bytes)
            })
            .collect();
        let mut hello = Fingerprint::default();
        hello.text("squall collectives 1");
        for number in [layout.lanes, layout.slots, layout.slot_bytes, usize::from(config.reproducible)] {
            hello.number(number as u64);
        }
        config.ranks.iter().for_each(|rank| {
            hello.number(rank.0.into());
        });
        let hello = hello.value().to_le_bytes();
        let mesh = Mesh::connect(fabric, &config.ranks, me, config.tag, &hello, |_| vec![region.clone()]);
        Ok(Communicator {
            layout,
            me,
            mesh,
            region,
            staging,
            links: vec![None; ranks],
            lost: vec![false; ranks],
            lanes,
            chunk: vec![0; layout.slot_bytes / 8],
            next: config.first_message,
            plans: Vec::new(),
            last_plan: 0,
            parameters: Parameters::default(),
            overrides: Vec::new(),
            ended: None,
            untold: Vec::new(),
            suspect: None,
            farewells: None,
            config,
        })
    }

    /// This node's rank.
    pub fn rank(&self) -> usize {
        self.me
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.links.len()
    }

    /// Whether all other ranks were reached and none is lost.
    pub fn is_connected(&self) -> bool {
        self.mesh.is_complete()
    }

    /// The rank whose failure has ended the communicator.
    pub fn failed(&self) -> Option<usize> {
        match self.ended {
            Some(Ended::Failed(rank)) => Some(rank),
            _ => None,
        }
    }

    /// Sets what algorithms are chosen by. All ranks set the same, before the same operation.
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.parameters = parameters;
        self.plans.clear();
    }

    /// Sets the algorithm of an operation, or leaves it to the cost model again. All ranks set the same, before the
    /// same operation. One that can't carry it out is refused when it is started.
    pub fn set_algorithm(&mut self, collective: Collective, algorithm: Option<Algorithm>) {
        self.overrides.retain(|(of, _)| *of != collective);
        self.overrides.extend(algorithm.map(|algorithm| (collective, algorithm)));
        self.plans.clear();
    }

    /// The algorithm that carries out an operation by default, or that was set.
    ///
    /// `bytes` are those of the vector; of one rank's block, for gather, scatter, allgather, reduce-scatter and
    /// all-to-all. `commutative` is whether the operation that combines elements is.
    pub fn algorithm(&self, collective: Collective, bytes: usize, commutative: bool) -> Algorithm {
        let set = self.overrides.iter().find(|(of, _)| *of == collective);
        set.map_or_else(
            || {
                let in_order = self.config.reproducible || !commutative;
                cost::choose(collective, bytes, self.ranks(), in_order, &self.parameters)
            },
            |&(_, algorithm)| algorithm,
        )
    }

    /// Starts an operation whose vector lies as its schedule wants it.
    pub(crate) fn start<T>(
        &mut self,
        fabric: &mut impl Fabric,
        (collective, root, bytes): (Collective, usize, usize),
        commutative: bool,
        operator: Option<Operator>,
        vector: Vector,
    ) -> Result<Operation<T>, CollectiveError> {
        self.check_start()?;
        if root >= self.ranks() {
            return Err(CollectiveError::Root { rank: root, ranks: self.ranks() });
        }
        let schedule = self.plan(collective, root, bytes, commutative)?;
        let (number, lane) = (self.next, self.lane_of(self.next));
        self.next = self.next.wrapping_add(1);
        self.lanes[lane].start(number, schedule, vector, operator);
        self.run(fabric, lane);
        Ok(Operation::new(number))
    }

    /// Whether an operation can be started now.
    pub(crate) fn check_start(&self) -> Result<(), CollectiveError> {
        if let Some(ended) = self.ended {
            return Err(ended.error());
        }
        if self.farewells.is_some() {
            return Err(CollectiveError::Disconnected);
        }
        if self.lanes[self.lane_of(self.next)].status == Status::UnderWay {
            return Err(CollectiveError::Busy { lanes: self.lanes.len() });
        }
        Ok(())
    }

    fn lane_of(&self, number: u64) -> usize {
        number as usize & (self.lanes.len() - 1)
    }

    fn plan(
        &mut self,
        collective: Collective,
        root: usize,
        bytes: usize,
        commutative: bool,
    ) -> Result<Arc<Schedule>, CollectiveError> {
        let in_order = self.config.reproducible || !commutative;
        let same = |plan: &&Plan| {
            plan.collective == collective && plan.root == root && plan.bytes == bytes && plan.in_order == in_order
        };
        if let Some(plan) = self.plans.iter().find(same) {
            return Ok(Arc::clone(&plan.schedule));
        }
        let algorithm = self.algorithm(collective, bytes, commutative);
        if collective == Collective::Allreduce && algorithm == Algorithm::Ring && in_order {
            return Err(CollectiveError::Order);
        }
        let call = Call { collective, algorithm, ranks: self.ranks(), rank: self.me, root, bytes };
        let schedule = Arc::new(plan(&call)?);
        let plan = Plan { collective, root, bytes, in_order, schedule: Arc::clone(&schedule) };
        if self.plans.len() < KEPT_PLANS {
            self.plans.push(plan);
        } else {
            self.last_plan = (self.last_plan + 1) % KEPT_PLANS;
            self.plans[self.last_plan] = plan;
        }
        Ok(schedule)
    }

    /// Makes progress with all operations under way, as far as what has arrived permits.
    #[inline]
    pub fn step(&mut self, fabric: &mut impl Fabric, now: Time) {
        self.look_for_failure(fabric, now);
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].status == Status::UnderWay {
                self.run(fabric, lane);
            }
        }
    }

    #[inline]
    fn run(&mut self, fabric: &mut impl Fabric, lane: usize) {
        let common = Common {
            layout: &self.layout,
            links: &self.links,
            region: &self.region,
            staging: &self.staging,
            chunk: &mut self.chunk,
        };
        self.lanes[lane].step(fabric, common);
    }

    /// When [`step`](Communicator::step) has something to do at the latest, if nothing arrives.
    pub fn deadline(&self) -> Time {
        self.suspect.map_or(Time::MAX, |(_, until)| until)
    }

    /// Takes note of a completion, if it is of this communicator's endpoints. Returns whether it is.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        let is_mine = completion.endpoint().is_some_and(|of| self.mesh.endpoints().any(|endpoint| endpoint == of));
        match self.mesh.on_completion(fabric, completion) {
            Some(MeshEvent::Up(rank)) => {
                let (endpoint, remote) = self.mesh.link(rank).expect("it has just been reached");
                let expected = (RegionKind::Polled, self.layout.region_bytes());
                match remote {
                    [region] if (region.kind, region.bytes) == expected => {
                        self.links[rank] = Some(Link { endpoint, region: region.key });
                        if self.failed().is_some() {
                            self.untold.push(rank);
                            self.tell(fabric);
                        }
                    }
                    _ => self.fail(fabric, rank),
                }
            }
            Some(MeshEvent::Down(rank, reason)) => self.lose(fabric, now, rank, &reason),
            Some(MeshEvent::Room(_)) | None => {}
        }
        is_mine
    }

    fn lose(&mut self, fabric: &mut impl Fabric, now: Time, rank: usize, reason: &BreakReason) {
        self.links[rank] = None;
        self.lost[rank] = true;
        self.untold.retain(|&peer| peer != rank);
        // Others may have said why it is gone, and that counts.
        self.look_for_failure(fabric, now);
        let is_done = self.region.load(self.layout.farewell(rank)) != 0;
        if self.ended.is_some() || is_done || (self.farewells.is_some() && self.is_idle()) {
            return;
        }
        if *reason == BreakReason::PeerClosed {
            self.suspect.get_or_insert((rank, now + self.config.grace));
        } else {
            self.fail(fabric, rank);
        }
    }

    #[inline]
    fn look_for_failure(&mut self, fabric: &mut impl Fabric, now: Time) {
        if self.ended.is_some() {
            return self.tell(fabric);
        }
        let word = self.region.load(ABORT);
        if word != 0 && word <= self.ranks() as u64 {
            self.fail(fabric, word as usize - 1);
        } else if let Some((rank, until)) = self.suspect
            && now >= until
        {
            self.fail(fabric, rank);
        }
    }

    /// Ends the communicator because a rank has failed, for callers who have other means to see it. All other ranks
    /// hear of it. The first failure counts; a rank that does not exist can't fail.
    ///
    /// Where two ranks fail at the same time, others may hear of them in different order, and name different ones.
    pub fn fail(&mut self, fabric: &mut impl Fabric, rank: usize) {
        if self.ended.is_none() && rank < self.ranks() {
            self.end(Ended::Failed(rank));
            self.untold = (0..self.ranks()).filter(|&peer| self.links[peer].is_some()).collect();
            self.tell(fabric);
        }
    }

    /// Names the failed rank to all who can be reached.
    fn tell(&mut self, fabric: &mut impl Fabric) {
        if let Some(Ended::Failed(rank)) = self.ended {
            let links = &self.links;
            self.untold
                .retain(|&peer| links[peer].is_some_and(|link| !post_word(fabric, &link, ABORT, rank as u64 + 1)));
        }
    }

    fn end(&mut self, ended: Ended) {
        self.ended = Some(ended);
        self.suspect = None;
        for lane in &mut self.lanes {
            if lane.status == Status::UnderWay {
                lane.status = Status::Ended;
            }
        }
    }

    /// Leaves in good order: returns true once no other rank needs this one. Call it again, with
    /// [steps](Communicator::step) between, until then; the communicator is then
    /// [disconnected](Communicator::disconnect).
    ///
    /// It says farewell to the others when the last operation is over, and waits for theirs, or for them to go. None
    /// can be started from the first call on.
    pub fn close(&mut self, fabric: &mut impl Fabric) -> bool {
        if self.ended == Some(Ended::Disconnected) {
            return true;
        }
        let is_idle = self.is_idle();
        let said = self.farewells.get_or_insert_with(|| vec![false; self.links.len()]);
        if !is_idle {
            return false;
        }
        let farewell = self.layout.farewell(self.me);
        let mut done = self.untold.is_empty();
        for (rank, said) in said.iter_mut().enumerate() {
            if let Some(link) = &self.links[rank] {
                *said = *said || post_word(fabric, link, farewell, 1);
                // What was posted last is lost if this side closes first, so that also a failure's name needs an
                // answer.
                let waits =
                    self.ended != Some(Ended::Failed(rank)) && self.region.load(self.layout.farewell(rank)) == 0;
                done = done && *said && !waits;
            } else if self.ended.is_none() && rank != self.me && !self.lost[rank] {
                done = false;
            }
        }
        if done {
            self.disconnect(fabric);
        }
        done
    }

    fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.status != Status::UnderWay)
    }

    /// Closes all connections. Operations under way end with [`CollectiveError::Disconnected`] here; the other ranks
    /// see this one fail, unless it was [closed](Communicator::close) before.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        if self.ended.is_none() {
            self.end(Ended::Disconnected);
        }
        self.links.fill(None);
        self.mesh.disconnect(fabric);
    }

    /// Whether an operation is over. After that, its result is there until as many operations as there are lanes were
    /// started after it.
    #[inline]
    pub fn test<T>(&self, operation: &Operation<T>) -> Result<bool, CollectiveError> {
        let lane = &self.lanes[self.lane_of(operation.number)];
        if lane.operation != Some(operation.number) {
            return Err(CollectiveError::Dropped { lanes: self.lanes.len() });
        }
        match (lane.status, self.ended) {
            (Status::Over, _) => Ok(true),
            (Status::Ended, Some(ended)) => Err(ended.error()),
            _ => Ok(false),
        }
    }

    /// Takes the vector of an operation that is over.
    pub(crate) fn take(&mut self, number: u64) -> (Vector, std::ops::Range<usize>) {
        let lane = self.lane_of(number);
        self.lanes[lane].take()
    }
}
