//! A group of ranks that carry out operations together.

mod ending;
mod operation;

use std::sync::Arc;

use squall_fabric::{BreakReason, Completion, Fabric, Fingerprint, Region, RegionKind, Time};
use squall_sst::{Mesh, MeshEvent};

pub use self::operation::Operation;
use crate::{
    Algorithm, Collective, CollectiveError, CommunicatorConfig, CreateCommunicatorError, Parameters,
    bulk::LongBroadcasts,
    channel::Channel,
    cost,
    element::Vector,
    lane::{Common, Lane, LaneStatus},
    layout::{ABORT_BYTES, MemoryLayout, PeerRegions},
    lending::Lending,
    reduction::Operator,
    schedule::{CollectiveCall, Schedule, plan},
};

/// The number of schedules that are kept for calls that come again.
const KEPT_PLANS: usize = 16;

/// One rank's part in a group of ranks that carry out [operations](Collective) together.
///
/// Its methods never block. [`step`](Communicator::step) makes progress with all operations under way. The fabric's
/// owner polls it now and then, and hands each completion to [`on_completion`](Communicator::on_completion).
///
/// All ranks start the same operations in the same order, with the same root and lengths. Differences between ranks
/// can't be noticed in general: operations then hang, or give wrong results; memory outside the communicator is safe.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) config: CommunicatorConfig,
    layout: MemoryLayout,
    pub(crate) me: usize,
    mesh: Mesh,
    /// The regions that each rank writes into, by rank; this rank's own is not used.
    regions: Vec<Region>,
    /// The word that all ranks may write.
    abort: Region,
    staging: Region,
    landing: Region,
    links: Vec<Option<PeerRegions>>,
    /// Ranks whose connection is gone.
    lost: Vec<bool>,
    lanes: Vec<Lane>,
    /// The long broadcasts; None before the first.
    bulk: Option<Box<LongBroadcasts>>,
    chunk: Vec<u64>,
    /// The next operation's number.
    next: u64,
    plans: Vec<PlannedCall>,
    /// The index of the plan that was made last.
    last_plan: usize,
    /// Whether a lane waits for a fetch, as of the last step.
    needs_completions: bool,
    parameters: Parameters,
    overrides: Vec<(Collective, Algorithm)>,
    ended: Option<Ended>,
    /// The peers that were not yet told of the failure.
    untold: Vec<usize>,
    /// A rank that has closed its connection, and the time until which another may name the cause.
    suspect: Option<(usize, Time)>,
    /// The time of the last completion.
    heard: Time,
    /// The peers that were told that this rank needs no other any more; none before it closes.
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
struct PlannedCall {
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
    ///
    /// Fails if the ranks are not different nodes with this one among them, if the sizes or the tag can't be used, or
    /// if the memory can't be registered.
    pub fn create(
        fabric: &mut impl Fabric,
        config: CommunicatorConfig,
    ) -> Result<Communicator, CreateCommunicatorError> {
        let layout = config.layout()?;
        let (node, ranks) = (fabric.node(), config.ranks.len());
        let mut distinct = config.ranks.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let me = config.ranks.iter().position(|&rank| rank == node);
        let (Some(me), true) = (me, distinct.len() == ranks) else {
            return Err(CreateCommunicatorError::Ranks { node, ranks });
        };
        let register = |_| fabric.register(RegionKind::Polled, layout.region_bytes());
        let regions: Vec<Region> = (0..ranks).map(register).collect::<Result<_, _>>()?;
        let abort = fabric.register(RegionKind::Polled, ABORT_BYTES)?;
        let staging = fabric.register(RegionKind::Bulk, layout.staging_bytes())?;
        let lent = fabric.register(RegionKind::Lent, layout.lent_bytes())?;
        let landing = fabric.register(RegionKind::Bulk, layout.landing_bytes())?;
        let lanes = (0..layout.lanes)
            .map(|lane| {
                let channel = |(peer, region): (usize, &Region)| {
                    Channel::new(&layout, region.clone(), lane, peer, config.first_message)
                };
                let lending = Lending::new(lent.clone(), layout.lent(lane), layout.slot_bytes, layout.lent_blocks());
                Lane::new(regions.iter().enumerate().map(channel).collect(), lending, layout.slot_bytes)
            })
            .collect();
        let mut hello = Fingerprint::default();
        hello.text("squall collectives 2");
        for number in [layout.lanes, layout.slots, layout.slot_bytes, usize::from(config.reproducible)] {
            hello.number(number as u64);
        }
        hello.text(&format!("{:?} {:?}", config.medium, config.block_bytes));
        config.ranks.iter().for_each(|rank| {
            hello.number(rank.0.into());
        });
        let hello = hello.value().to_le_bytes();
        let mesh = Mesh::connect(fabric, &config.ranks, me, config.tag, &hello, |rank| {
            vec![regions[rank].clone(), abort.clone(), lent.clone()]
        });
        Ok(Communicator {
            layout,
            me,
            mesh,
            regions,
            abort,
            staging,
            landing,
            links: vec![None; ranks],
            lost: vec![false; ranks],
            lanes,
            bulk: None,
            chunk: vec![0; layout.slot_bytes / 8],
            next: config.first_message,
            plans: Vec::new(),
            last_plan: 0,
            needs_completions: false,
            parameters: Parameters::default(),
            overrides: Vec::new(),
            ended: None,
            untold: Vec::new(),
            suspect: None,
            heard: Time::ZERO,
            farewells: None,
            config,
        })
    }

    /// The communicator's configuration.
    pub fn config(&self) -> &CommunicatorConfig {
        &self.config
    }

    /// Whether as many operations are under way as can be.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.ended.is_none() && self.lanes[self.lane_of(self.next)].status == LaneStatus::UnderWay
    }

    /// This node's rank.
    pub fn rank(&self) -> usize {
        self.me
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.links.len()
    }

    /// Whether all other ranks were reached and none is lost.
    pub fn is_connected(&self) -> bool {
        self.mesh.is_complete()
    }

    /// Whether a rank was reached, and is not lost.
    pub fn is_reached(&self, rank: usize) -> bool {
        rank == self.me || self.links.get(rank).is_some_and(Option::is_some)
    }

    /// The rank whose failure has ended the communicator.
    pub fn failed(&self) -> Option<usize> {
        match self.ended {
            Some(Ended::Failed(rank)) => Some(rank),
            _ => None,
        }
    }

    /// The parameters by which algorithms are chosen.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Sets the parameters by which algorithms are chosen. All ranks set the same, before the same operation.
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.parameters = parameters;
        self.plans.clear();
    }

    /// Sets the algorithm of an operation, or leaves it to the cost model again. All ranks set the same, before the
    /// same operation. An algorithm that can't carry out the operation is refused when the operation is started.
    pub fn set_algorithm(&mut self, collective: Collective, algorithm: Option<Algorithm>) {
        self.overrides.retain(|(of, _)| *of != collective);
        self.overrides.extend(algorithm.map(|algorithm| (collective, algorithm)));
        self.plans.clear();
    }

    /// The algorithm that carries out an operation by default, or that was set.
    ///
    /// `bytes` is the length of the vector; for gather, scatter, allgather, reduce-scatter and all-to-all, that of one
    /// rank's block.
    pub fn algorithm(&self, collective: Collective, bytes: usize) -> Algorithm {
        let set = self.overrides.iter().find(|(of, _)| *of == collective);
        set.map_or_else(|| cost::choose(collective, bytes, self.ranks(), &self.parameters), |&(_, algorithm)| algorithm)
    }

    /// Starts an operation whose vector is laid out as its schedule has it.
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
        if schedule.is_bulk {
            return self.start_bulk(fabric, root, vector);
        }
        let (number, lane) = (self.next, self.lane_of(self.next));
        self.next = self.next.wrapping_add(1);
        self.lanes[lane].start(number, schedule, vector, operator);
        self.run(fabric, lane);
        Ok(Operation::new(number))
    }

    /// Starts a broadcast that goes by an RDMC group.
    #[cold]
    fn start_bulk<T>(
        &mut self,
        fabric: &mut impl Fabric,
        root: usize,
        vector: Vector,
    ) -> Result<Operation<T>, CollectiveError> {
        let (number, lane) = (self.next, self.lane_of(self.next));
        let bulk = self.bulk.get_or_insert_with(|| Box::new(LongBroadcasts::new(&self.config)));
        bulk.start(fabric, &self.config, (root, self.me), lane, vector.bytes())?;
        self.next = self.next.wrapping_add(1);
        self.lanes[lane].start_apart(number, vector);
        bulk.step(fabric, &self.config, self.me, &mut self.lanes);
        Ok(Operation::new(number))
    }

    /// Checks whether an operation can be started now.
    pub(crate) fn check_start(&self) -> Result<(), CollectiveError> {
        if let Some(ended) = self.ended {
            return Err(ended.error());
        }
        if self.farewells.is_some() {
            return Err(CollectiveError::Disconnected);
        }
        if self.is_busy() {
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
        let same = |plan: &&PlannedCall| {
            plan.collective == collective && plan.root == root && plan.bytes == bytes && plan.in_order == in_order
        };
        if let Some(plan) = self.plans.iter().find(same) {
            return Ok(Arc::clone(&plan.schedule));
        }
        let algorithm = self.algorithm(collective, bytes);
        if collective == Collective::Allreduce && algorithm == Algorithm::Ring && in_order {
            return Err(CollectiveError::Order);
        }
        let call = CollectiveCall { collective, algorithm, ranks: self.ranks(), rank: self.me, root, bytes };
        let mut schedule = plan(&call)?;
        schedule.fetch_above = self.parameters.fetch_above;
        let schedule = Arc::new(schedule);
        let plan = PlannedCall { collective, root, bytes, in_order, schedule: Arc::clone(&schedule) };
        if self.plans.len() < KEPT_PLANS {
            self.plans.push(plan);
        } else {
            self.last_plan = (self.last_plan + 1) % KEPT_PLANS;
            self.plans[self.last_plan] = plan;
        }
        Ok(schedule)
    }

    /// Makes progress with all operations under way, as far as the arrived messages permit. Returns whether there was
    /// any, or whether a failure was found that ends them.
    #[inline]
    pub fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
        let had_ended = self.ended.is_some();
        self.look_for_failure(fabric, now);
        let (mut progress, mut is_fetching) = (self.ended.is_some() != had_ended, false);
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].owing {
                self.lanes[lane].settle(fabric, &self.layout, &self.links);
            }
            if self.lanes[lane].status == LaneStatus::UnderWay {
                progress |= self.run(fabric, lane);
                is_fetching |= self.lanes[lane].is_fetching();
            }
        }
        self.needs_completions = is_fetching;
        if self.bulk.is_some() {
            progress |= self.step_bulk(fabric, now);
        }
        progress
    }

    /// Makes progress with long broadcasts. A communicator that has ended leaves their groups alone until it is
    /// disconnected: to other ranks, closing them would look like this rank's failure.
    #[cold]
    fn step_bulk(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
        let Some(bulk) = self.bulk.as_mut().filter(|_| self.ended.is_none()) else { return false };
        let progress = bulk.step(fabric, &self.config, self.me, &mut self.lanes);
        // A rank that has broken the connection of a group has broken others, unless the connection alone is out of
        // order.
        if let Some(rank) = bulk.take_suspect()
            && !self.needs_nobody()
        {
            self.suspect(now, rank);
        }
        progress
    }

    #[inline]
    fn run(&mut self, fabric: &mut impl Fabric, lane: usize) -> bool {
        let common = Common {
            layout: &self.layout,
            links: &self.links,
            staging: &self.staging,
            landing: &self.landing,
            chunk: &mut self.chunk,
        };
        self.lanes[lane].step(fabric, lane, common)
    }

    /// Whether operations go on with completions alone, so that a caller that steps all the time must poll the fabric
    /// before each step. That is so while a message is being fetched, a broadcast by RDMC is under way, or this rank
    /// still passes its vector on.
    #[inline]
    pub fn needs_completions(&self) -> bool {
        self.needs_completions || (self.ended.is_none() && self.bulk.as_ref().is_some_and(|bulk| !bulk.is_idle()))
    }

    /// The time by which [`step`](Communicator::step) has something to do, even if nothing arrives.
    pub fn deadline(&self) -> Time {
        self.suspect.map_or(Time::MAX, |(_, until)| until)
    }

    /// Takes note of a completion, if it is of this communicator's endpoints. Returns whether it is.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        self.heard = now;
        let is_mine = completion.endpoint().is_some_and(|of| self.mesh.endpoints().any(|endpoint| endpoint == of));
        if let (true, Completion::Done { token, result: Ok(()), .. }) = (is_mine, completion)
            && let Some(lane) = self.lanes.get_mut(token.0 as usize)
        {
            lane.fetched();
        }
        match self.mesh.on_completion(fabric, completion) {
            Some(MeshEvent::Up(rank)) => {
                let (endpoint, remote) = self.mesh.link(rank).expect("it has just been reached");
                let expected = [
                    (RegionKind::Polled, self.layout.region_bytes()),
                    (RegionKind::Polled, ABORT_BYTES),
                    (RegionKind::Lent, self.layout.lent_bytes()),
                ];
                match remote {
                    &[region, abort, lent] if [region, abort, lent].map(|at| (at.kind, at.bytes)) == expected => {
                        let [region, abort, lent] = [region, abort, lent].map(|at| at.key);
                        self.links[rank] = Some(PeerRegions { endpoint, region, abort, lent });
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
        is_mine || self.on_bulk_completion(fabric, now, completion)
    }

    fn on_bulk_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        let Some(bulk) = &mut self.bulk else { return false };
        let is_mine = bulk.on_completion(fabric, completion);
        // A rank that closes a group's connections may do so because of another, which the group finds out.
        if let Completion::Broken { peer, reason, .. } = completion
            && let (true, true) = (is_mine, *reason != BreakReason::PeerClosed)
            && let Some(rank) = self.config.ranks.iter().position(|node| node == peer)
        {
            self.look_for_failure(fabric, now);
            // A farewell does not excuse it: it covers no other connections.
            if !self.needs_nobody() {
                self.fail(fabric, rank);
            }
        }
        is_mine
    }

    /// Whether an operation is over. After that, its result is there until as many operations as there are lanes were
    /// started after it. Fails if the communicator ended before the operation was over, or if a later operation has
    /// taken its place.
    #[inline]
    pub fn test<T>(&self, operation: &Operation<T>) -> Result<bool, CollectiveError> {
        let lane = &self.lanes[self.lane_of(operation.number)];
        if lane.operation != Some(operation.number) {
            return Err(CollectiveError::Dropped { lanes: self.lanes.len() });
        }
        match (lane.status, self.ended) {
            (LaneStatus::Over, _) => Ok(true),
            (LaneStatus::Ended, Some(ended)) => Err(ended.error()),
            _ => Ok(false),
        }
    }

    /// Takes the vector of an operation that is over.
    pub(crate) fn take(&mut self, number: u64) -> (Vector, std::ops::Range<usize>) {
        let lane = self.lane_of(number);
        self.lanes[lane].take()
    }
}
