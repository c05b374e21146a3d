//! The steps of the model, one at a time, and the properties that must hold.

use squall_membership::{
    Applied, Entry, Epoch, Final, Finals, HeldCopy, Member, OrderEnd, ReturnReport, Seq, ShardState, Skipped, View,
    reopening, restart,
};
use stateright::{Model, Property};

use super::world::{Node, SHARD, Segment, World, common, cut, held, id, layout, line};

pub(crate) const KEPT: &str = "what is acknowledged is in the line of a shard that goes on";
pub(crate) const ONE_LINE: &str = "who holds the state has what was decided";
pub(crate) const REOPENS: &str = "a suspended shard goes on once all nodes are back with their disks";
pub(crate) const GOES_ON: &str = "where all nodes are up the next view comes";

/// An error that there might be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A member that still runs does not count messages that it has received and not delivered.
    SaysWhatItDelivered,
    /// A member that is wedged goes on receiving.
    ReceivesAfterWedging,
    /// A joiner says that it is complete before its disk has the state.
    CompleteBeforeDisk,
    /// A log that was begun anew in the place of a lost one is taken for the one that its node always had.
    LostLogCounts,
}

/// A group, and the faults that it may have.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) members: usize,
    /// The number of members that have joined, and have not got the state.
    pub(crate) joiners: usize,
    /// The number of places of each view's order.
    pub(crate) messages: u64,
    /// The most views that may follow the one in which all are members.
    pub(crate) views: usize,
    /// The number of crashes, in all.
    pub(crate) crashes: usize,
    /// The number of disks that are replaced by empty ones, or lose their log, in all.
    pub(crate) wipes: usize,
    /// Whether there are no disks. Nodes that crash come back with nothing.
    pub(crate) in_memory: bool,
    pub(crate) bug: Option<Bug>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Receive(usize),
    /// A node delivers the messages that all have received.
    Deliver(usize),
    /// A node's deliveries come to its disk, and it tells the others.
    Persist(usize),
    /// A joiner's replica gets the state from another. Its log is cut to the part that it has in common with the
    /// other's; the rest of that is still to be written.
    Fetch(usize, usize),
    Wedge(usize),
    /// The next view is decided, in which these stay, a bit each.
    Succeed(u32),
    /// A member goes on to the next view, or finds that it was dropped.
    Install(usize),
    /// A member finds that it was dropped, and hears of nothing before the current view.
    Miss(usize),
    Crash(usize),
    /// A node starts again, and asks to join; or asks again, since the view that took it in is over.
    Return(usize),
    /// The disk of a node that is down is replaced by an empty one.
    Wipe(usize),
    /// The disk of a node that is down loses its log.
    Lose(usize),
    /// A part of the state that a node has fetched comes to its disk.
    PersistPart(usize),
    /// A node reports its copy.
    SayBack(usize),
    /// A member reports its copy of the shard, which is suspended.
    SayReopen(usize),
    Restart,
    /// A node that comes from outside installs the current view.
    Enter(usize),
}

impl Group {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The steps that are possible without another crash.
    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        for (n, node) in world.nodes.iter().enumerate() {
            match (node.is_up, node.epoch) {
                (false, _) => steps.push(Step::Return(n)),
                (true, 0) => steps.extend(outside(world, n).filter(|step| !self.in_memory || !says(step))),
                (true, _) => self.inside(world, n, &mut steps),
            }
        }
        if self.goes_on(world) {
            let last = world.last();
            let stays = |n: usize| world.is_in(n, &last.view) && world.nodes[n].wedged;
            let members: u32 = (0..self.members).filter(|&n| stays(n)).map(|n| 1 << n).sum();
            let halves = (1..1u32 << self.members).filter(|set| set & !members == 0);
            let is_half = |set: &u32| 2 * set.count_ones() as usize >= last.view.members.len();
            steps.extend(halves.filter(is_half).map(Step::Succeed));
            if 2 * world.log_state.returns().iter().filter(|back| !back.goes_on).count() > last.view.members.len() {
                steps.push(Step::Restart);
            }
        }
        steps
    }

    /// Whether there may be more views.
    fn goes_on(&self, world: &World) -> bool {
        world.history.len() < 1 + self.joiners + self.views
    }

    /// The steps of a node that has a view.
    fn inside(&self, world: &World, n: usize, steps: &mut Vec<Step>) {
        let (node, last) = (&world.nodes[n], world.last());
        let is_over = node.epoch < last.view.epoch.0;
        if node.whole && node.delivered < world.stable(n) {
            steps.push(Step::Deliver(n));
        }
        let told = world.told[node.epoch as usize - 1][n];
        if node.whole && !self.in_memory && (node.disk != node.log || told.is_none() || !node.complete && !node.wedged)
        {
            steps.push(Step::Persist(n));
        }
        // On any other disk, a part makes no difference.
        let has_lost = self.wipes > world.wipes && node.voter == 1;
        let is_part = node.log.len() > node.disk.len() + 1 && node.log.starts_with(&node.disk);
        steps.extend((node.whole && has_lost && is_part).then_some(Step::PersistPart(n)));
        let receives = !node.wedged || self.has(Bug::ReceivesAfterWedging);
        if receives && world.has_received(n) < self.messages && !world.shard(node.epoch).complete.is_empty() {
            steps.push(Step::Receive(n));
        }
        if node.wedged {
            let said = world.log_state.returns().iter().any(|back| back.member.node == id(n) && !back.goes_on);
            match is_over {
                true => {
                    steps.push(Step::Install(n));
                    let misses = last.view.epoch.0 > node.epoch + 1 && !last.view.members.contains(&world.me(n));
                    steps.extend((self.in_memory && misses).then_some(Step::Miss(n)));
                }
                false if !said => steps.push(Step::SayBack(n)),
                false => {}
            }
            return;
        }
        let sources = (0..self.members).filter(|&from| {
            let other = &world.nodes[from];
            from != n && other.is_up && other.epoch == node.epoch && other.whole
        });
        if !node.whole {
            steps.extend(sources.map(|from| Step::Fetch(n, from)));
        }
        let says = reopen(world, n);
        let has_any = !says.held.is_empty();
        let says = Entry::Return(says);
        if !is_over && has_any && !matches!(world.log_state.clone().apply(says), Applied::Refused(_)) {
            steps.push(Step::SayReopen(n));
        }
        let view = &world.proposal(node.epoch).view;
        let is_whole = view.members.iter().all(|m| world.is_in(m.node.0 as usize, view));
        let is_wedged = world.nodes.iter().any(|other| other.epoch == node.epoch && other.wedged);
        let changes = node.complete != world.shard(node.epoch).is_complete(id(n))
            || !world.log_state.candidates().is_empty()
            || world.shard(node.epoch).is_suspended() && goes_on(&world.last().view, &world.log_state.returns());
        if self.goes_on(world) && (!is_whole || is_wedged || changes) || is_over {
            steps.push(Step::Wedge(n));
        }
    }

    fn take(&self, world: &mut World, step: &Step) -> Option<()> {
        match *step {
            Step::Receive(n) => {
                let epoch = world.nodes[n].epoch as usize;
                world.received[epoch - 1][n] += 1;
            }
            Step::Deliver(n) => {
                let (stable, epoch) = (world.stable(n), world.nodes[n].epoch);
                deliver(world, n, stable);
                if self.in_memory {
                    world.acknowledge_up_to(epoch, stable);
                }
            }
            Step::Persist(n) => {
                let node = &mut world.nodes[n];
                node.disk.clone_from(&node.log);
                node.complete |= !node.wedged;
                node.anew &= !node.complete;
                let (epoch, delivered) = (node.epoch, node.delivered);
                world.told[epoch as usize - 1][n] = Some(delivered);
                world.acknowledge(epoch);
            }
            Step::Fetch(n, from) => {
                let (log, delivered) = (world.nodes[from].log.clone(), world.nodes[from].delivered);
                let node = &mut world.nodes[n];
                node.disk = common(&node.disk, &log);
                (node.log, node.delivered, node.whole) = (log, delivered, true);
                node.complete = self.in_memory || self.has(Bug::CompleteBeforeDisk);
            }
            Step::Wedge(n) => world.nodes[n].wedged = true,
            Step::Succeed(set) => self.succeed(world, set)?,
            Step::Install(n) => self.install(world, n),
            Step::Miss(n) => self.drop_out(world, n, world.last().view.epoch.0),
            Step::Crash(n) => {
                let node = &mut world.nodes[n];
                node.kept = None;
                node.log.clone_from(&node.disk);
                (node.is_up, node.epoch, node.wedged, node.delivered) = (false, 0, false, 0);
                (node.whole, node.complete) = (false, false);
                world.crashes -= 1;
            }
            Step::Return(n) => {
                let node = &mut world.nodes[n];
                (node.is_up, node.life) = (true, node.life + 1);
                let me = world.me(n);
                world.apply(Entry::Candidate(me));
            }
            Step::Wipe(n) => {
                let node = &mut world.nodes[n];
                node.voter += 1;
                node.disk.clear();
                node.log.clear();
                world.wipes -= 1;
            }
            Step::Lose(n) => {
                let node = &mut world.nodes[n];
                node.anew = !self.has(Bug::LostLogCounts);
                node.disk.clear();
                node.log.clear();
                world.wipes -= 1;
            }
            Step::PersistPart(n) => {
                let node = &mut world.nodes[n];
                node.disk = node.log[..=node.disk.len()].to_vec();
            }
            Step::SayBack(n) => {
                let node = &world.nodes[n];
                let epoch = world.last().view.epoch;
                let runs = || {
                    let bug = self.has(Bug::SaysWhatItDelivered);
                    let seq = Seq(if bug { node.delivered } else { world.has_received(n) });
                    HeldCopy {
                        end: OrderEnd { epoch: Epoch(node.epoch), seq },
                        complete: node.complete,
                        version: None,
                        acknowledged: 0,
                        trusted: false,
                        skipped: Skipped::default(),
                    }
                };
                let kept = || node.kept.filter(|_| world.shard(node.epoch).is_suspended()).map(in_memory);
                let held = if node.epoch > 0 { kept().unwrap_or_else(runs) } else { held(node) };
                let back = ReturnReport { member: world.me(n), epoch, goes_on: false, held: [(SHARD, held)].into() };
                world.apply(Entry::Return(back)).then_some(())?;
            }
            Step::SayReopen(n) => {
                let reopen = reopen(world, n);
                world.apply(Entry::Return(reopen)).then_some(())?;
            }
            Step::Restart => {
                let backs = world.log_state.returns();
                let by = backs.iter().find(|back| !back.goes_on)?.member.node;
                let proposal = restart(world.last(), &layout(), by, &backs, Default::default());
                world.apply(Entry::Successor(proposal)).then_some(())?;
            }
            Step::Enter(n) => enter(world, n, world.last().view.epoch.0, false),
        }
        world.forget();
        Some(())
    }

    /// Decides the next view, in which these stay.
    fn succeed(&self, world: &mut World, set: u32) -> Option<()> {
        let stay: Vec<usize> = (0..self.members).filter(|n| set >> n & 1 == 1).collect();
        let last = world.last().clone();
        let order = last.view.nodes().into_iter().map(|node| node.0 as usize).filter(|n| stay.contains(n));
        let end = |n: usize| {
            let (complete, epoch) = (world.nodes[n].complete, last.view.epoch.0);
            let is_kept = self.in_memory || world.told[epoch as usize - 1][n].is_some();
            let on_disk = is_kept && last.view.shards[0].is_complete(id(n));
            Final { node: id(n), count: Seq(world.has_received(n)), complete, on_disk }
        };
        let finals: Finals = [(SHARD, order.map(end).collect())].into();
        let nodes: Vec<_> = stay.iter().map(|&n| id(n)).collect();
        let joins = world.log_state.candidates().iter().filter(|asks| !nodes.contains(&asks.node));
        let join: Vec<_> = joins.take(stay.len()).cloned().collect();
        let backs = world.log_state.returns();
        let proposal = reopening(&last.view, &layout(), nodes[0], (&nodes, &join), &finals, &backs, Default::default());
        world.apply(Entry::Successor(proposal)).then_some(())
    }
}

/// The steps of a node that has no view.
fn outside(world: &World, n: usize) -> Option<Step> {
    let (node, view, me) = (&world.nodes[n], &world.last().view, world.me(n));
    if view.members.contains(&me) {
        return Some(Step::Enter(n));
    }
    if world.log_state.newest(id(n)).is_some_and(|newest| newest.0 >= node.life) {
        return Some(Step::Return(n));
    }
    let was_member = view.members.iter().any(|member| (member.node, member.voter) == (me.node, me.voter));
    let said = world.log_state.returns().iter().any(|back| back.member == me);
    (was_member && !said).then_some(Step::SayBack(n))
}

/// A node's report that it has the shard.
fn reopen(world: &World, n: usize) -> ReturnReport {
    let (member, epoch) = (world.me(n), world.last().view.epoch);
    let node = &world.nodes[n];
    let held = if world.in_memory { node.kept.map(in_memory) } else { Some(held(node)) };
    ReturnReport { member, epoch, goes_on: true, held: held.map(|held| (SHARD, held)).into_iter().collect() }
}

impl Group {
    /// Lets a wedged member go on after the decision.
    fn install(&self, world: &mut World, n: usize) {
        let epoch = world.nodes[n].epoch;
        let next = world.proposal(epoch + 1).clone();
        if !next.view.members.contains(&world.me(n)) {
            return self.drop_out(world, n, epoch + 1);
        }
        let trim = next.trims.get(&SHARD).filter(|trim| world.has_received(n) >= trim.0);
        if let Some(&Seq(trim)) = trim.filter(|_| world.nodes[n].whole) {
            deliver(world, n, trim);
        }
        let keeps = trim.is_some() && !next.ends.contains_key(&SHARD);
        enter(world, n, epoch + 1, keeps);
    }

    /// Drops a wedged member out, as the view of this epoch tells it.
    fn drop_out(&self, world: &mut World, n: usize, epoch: u64) {
        let (me, received) = (world.me(n), world.has_received(n));
        let holds = match &world.shard(epoch).state {
            ShardState::Suspended { last_holders, .. } => last_holders.iter().any(|holder| holder.is(&me)),
            _ => false,
        };
        let node = &mut world.nodes[n];
        if self.in_memory && node.complete && holds {
            node.kept = Some(OrderEnd { epoch: Epoch(node.epoch), seq: Seq(received) });
        }
        (node.epoch, node.wedged, node.delivered) = (0, false, 0);
        (node.whole, node.complete) = (false, false);
        if !self.in_memory {
            node.disk.clone_from(&node.log);
        }
        node.life += 1;
        let me = world.me(n);
        world.apply(Entry::Candidate(me));
    }
}

/// A copy in the memory of a process that was dropped.
fn in_memory(end: OrderEnd) -> HeldCopy {
    HeldCopy { end, complete: true, version: None, acknowledged: 0, trusted: false, skipped: Skipped::default() }
}

fn says(step: &Step) -> bool {
    matches!(step, Step::SayBack(_))
}

/// Lets a node install a view. Nothing of the view before need be on its disk.
fn enter(world: &mut World, n: usize, epoch: u64, keeps: bool) {
    let next = world.proposal(epoch).clone();
    let complete = next.view.shards[0].is_complete(id(n));
    let node = &mut world.nodes[n];
    if let Some(&end) = next.ends.get(&SHARD) {
        cut(&mut node.log, end);
        cut(&mut node.disk, end);
        // It delivers the rest from memory.
        let rest = node.log.last_mut().filter(|last| node.kept.is_some() && last.epoch == end.epoch.0);
        if let Some(last) = rest.filter(|_| complete) {
            last.count = end.seq.0;
        }
    }
    node.kept = node.kept.filter(|_| next.view.shards[0].is_suspended());
    node.whole = complete || keeps && node.whole;
    (node.epoch, node.complete, node.delivered, node.wedged) = (epoch, complete, 0, false);
    if node.whole {
        node.log.push(Segment { epoch, count: 0 });
    }
}

fn deliver(world: &mut World, n: usize, up_to: u64) {
    let node = &mut world.nodes[n];
    if let Some(last) = node.log.last_mut().filter(|last| last.epoch == node.epoch) {
        last.count = last.count.max(up_to);
    }
    node.delivered = node.delivered.max(up_to);
}

fn is_kept(world: &World) -> bool {
    let epoch = world.last().view.epoch.0;
    let line = world.line(epoch);
    let has = |at: u64| line.iter().find(|(epoch, _)| *epoch == at).map_or(0, |(_, count)| *count);
    world.shard(epoch).is_suspended() || (1..epoch).all(|at| world.acknowledged[at as usize - 1] <= has(at))
}

/// Whether all nodes together can reopen the shard, if it is suspended, with the present contents of their disks.
fn can_reopen(world: &World) -> bool {
    let last = &world.last().view;
    if !last.shards[0].is_suspended() {
        return true;
    }
    let members: Vec<_> = (0..world.nodes.len()).map(|n| world.me(n)).collect();
    let back = |(member, node): (&Member, &Node)| {
        let held = [(SHARD, held(node))].into();
        ReturnReport { member: member.clone(), epoch: last.epoch, goes_on: true, held }
    };
    let backs: Vec<ReturnReport> = members.iter().zip(&world.nodes).map(back).collect();
    goes_on(&View { members, ..(**last).clone() }, &backs)
}

/// Whether the shard, which is suspended, goes on with these copies if all members stay.
fn goes_on(view: &View, backs: &[ReturnReport]) -> bool {
    let nodes = view.nodes();
    let finals = [(SHARD, Vec::new())].into();
    reopening(view, &layout(), nodes[0], (&nodes, &[]), &finals, backs, Default::default()).ends.contains_key(&SHARD)
}

impl Model for Group {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        actions.extend(self.steps(world));
        if world.crashes > 0 {
            actions.extend((0..self.members).filter(|&n| world.nodes[n].is_up).map(Step::Crash));
        }
        if world.wipes > 0 {
            let down = || (0..self.members).filter(|&n| !world.nodes[n].is_up);
            actions.extend(down().flat_map(|n| [Step::Wipe(n), Step::Lose(n)]));
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        self.take(&mut world, &step).map(|()| world)
    }

    fn properties(&self) -> Vec<Property<Group>> {
        vec![
            Property::always(KEPT, |_, world: &World| is_kept(world)),
            Property::always(ONE_LINE, |_, world: &World| {
                let holders = world.nodes.iter().filter(|node| node.is_up && node.epoch > 0 && node.whole);
                holders.into_iter().all(|node| line(&node.log, node.epoch) == world.line(node.epoch))
            }),
            Property::always(REOPENS, |group: &Group, world: &World| {
                group.in_memory || world.wipes < group.wipes || can_reopen(world)
            }),
            Property::always(GOES_ON, |group: &Group, world: &World| {
                !group.goes_on(world)
                    || group.in_memory && world.crashes < group.crashes
                    || world.wipes < group.wipes
                    || !group.steps(world).is_empty()
                    || world.nodes.iter().all(|node| node.epoch == world.last().view.epoch.0 && !node.wedged)
            }),
        ]
    }
}
