//! What can happen, one step at a time, and what must hold.

use squall_membership::{Back, End, Entry, Epoch, Final, Finals, Held, Seq, ShardState, restart, successor};
use stateright::{Model, Property};

use crate::world::{SHARD, Segment, World, cut, held, id, layout, line, member};

pub(crate) const KEPT: &str = "what is acknowledged is in the line of a shard that goes on";
pub(crate) const ONE_LINE: &str = "who holds the state has what was decided";
pub(crate) const GOES_ON: &str = "where all nodes are up the next view comes";

/// What might be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A member that still runs does not count what it has received and not delivered.
    SaysWhatItDelivered,
    /// A member that is wedged goes on receiving.
    ReceivesAfterWedging,
}

/// A group, and what may go wrong in it.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) members: usize,
    /// How many places each view's order has.
    pub(crate) messages: u64,
    /// How many views there may be.
    pub(crate) views: usize,
    /// How many nodes crash, in all.
    pub(crate) crashes: usize,
    pub(crate) bug: Option<Bug>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Receive(usize),
    /// A node delivers what all have received.
    Deliver(usize),
    /// What a node has delivered comes to its disk, and it tells the others.
    Persist(usize),
    /// A joiner gets the state from another.
    Fetch(usize, usize),
    Wedge(usize),
    /// These stay, a bit each.
    Succeed(u32),
    /// A member goes on to the next view, or finds that it was dropped.
    Install(usize),
    Crash(usize),
    /// A node comes up again, and asks to join; or asks again, since the view that took it in is over.
    Return(usize),
    /// A node says what it has.
    SayBack(usize),
    Restart,
    /// A node that comes from outside installs the current view.
    Enter(usize),
}

impl Group {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// What can happen without another crash.
    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let last = world.last();
        let is_over = |epoch: u64| epoch < last.view.epoch.0;
        let goes_on = world.history.len() < self.views;
        for (n, node) in world.nodes.iter().enumerate() {
            if !node.is_up {
                steps.push(Step::Return(n));
                continue;
            }
            if node.epoch == 0 {
                let me = member(n, node.life);
                if last.view.members.contains(&me) {
                    steps.push(Step::Enter(n));
                } else if world.register.newest(id(n)).is_some_and(|newest| newest.0 >= node.life) {
                    steps.push(Step::Return(n));
                } else if last.view.rank_of(id(n)).is_some() && !world.register.backs().iter().any(|b| b.member == me) {
                    steps.push(Step::SayBack(n));
                }
                continue;
            }
            if node.complete && node.delivered < world.stable(n) {
                steps.push(Step::Deliver(n));
            }
            let told = world.told[node.epoch as usize - 1][n];
            if node.complete && (node.disk != node.log || told.is_none()) {
                steps.push(Step::Persist(n));
            }
            let receives = !node.wedged || self.has(Bug::ReceivesAfterWedging);
            if receives && world.has_received(n) < self.messages && !world.shard(node.epoch).complete.is_empty() {
                steps.push(Step::Receive(n));
            }
            if node.wedged {
                let said = world.register.backs().iter().any(|back| back.member.node == id(n));
                match is_over(node.epoch) {
                    true => steps.push(Step::Install(n)),
                    false if !said => steps.push(Step::SayBack(n)),
                    false => {}
                }
                continue;
            }
            let sources = (0..self.members).filter(|&from| {
                let other = &world.nodes[from];
                from != n && other.is_up && other.epoch == node.epoch && other.complete
            });
            if !node.complete {
                steps.extend(sources.map(|from| Step::Fetch(n, from)));
            }
            let view = &world.proposal(node.epoch).view;
            let is_whole = view.members.iter().all(|m| world.is_in(m.node.0 as usize, view));
            let is_wedged = world.nodes.iter().any(|other| other.epoch == node.epoch && other.wedged);
            let changes =
                node.complete != world.shard(node.epoch).is_complete(id(n)) || !world.register.candidates().is_empty();
            if goes_on && (!is_whole || is_wedged || changes) || is_over(node.epoch) {
                steps.push(Step::Wedge(n));
            }
        }
        if goes_on {
            let stays = |n: usize| world.is_in(n, &last.view) && world.nodes[n].wedged;
            let members: u32 = (0..self.members).filter(|&n| stays(n)).map(|n| 1 << n).sum();
            let halves = (1..1u32 << self.members).filter(|set| set & !members == 0);
            let is_half = |set: &u32| 2 * set.count_ones() as usize >= last.view.members.len();
            steps.extend(halves.filter(is_half).map(Step::Succeed));
            if 2 * world.register.backs().len() > last.view.members.len() {
                steps.push(Step::Restart);
            }
        }
        steps
    }

    fn take(&self, world: &mut World, step: &Step) -> Option<()> {
        match *step {
            Step::Receive(n) => {
                let epoch = world.nodes[n].epoch as usize;
                world.received[epoch - 1][n] += 1;
            }
            Step::Deliver(n) => {
                let stable = world.stable(n);
                deliver(world, n, stable);
            }
            Step::Persist(n) => {
                let node = &mut world.nodes[n];
                node.disk.clone_from(&node.log);
                let (epoch, delivered) = (node.epoch, node.delivered);
                world.told[epoch as usize - 1][n] = Some(delivered);
                world.acknowledge(epoch);
            }
            Step::Fetch(n, from) => {
                let (mut log, delivered) = (world.nodes[from].log.clone(), world.nodes[from].delivered);
                log.iter_mut().for_each(|segment| segment.complete = false);
                let node = &mut world.nodes[n];
                (node.disk, node.log, node.delivered, node.complete) = (log.clone(), log, delivered, true);
            }
            Step::Wedge(n) => world.nodes[n].wedged = true,
            Step::Succeed(set) => {
                let stay: Vec<usize> = (0..self.members).filter(|n| set >> n & 1 == 1).collect();
                let last = world.last().clone();
                let order = last.view.nodes().into_iter().map(|node| node.0 as usize).filter(|n| stay.contains(n));
                let end = |n: usize| {
                    let complete = world.nodes[n].complete;
                    Final { node: id(n), count: Seq(world.has_received(n)), complete }
                };
                let finals: Finals = [(SHARD, order.map(end).collect())].into();
                let nodes: Vec<_> = stay.iter().map(|&n| id(n)).collect();
                let joins = world.register.candidates().iter().filter(|asks| !nodes.contains(&asks.node));
                let join: Vec<_> = joins.take(stay.len()).cloned().collect();
                let proposal = successor(&last.view, &layout(), nodes[0], &nodes, &join, &finals);
                world.apply(Entry::Successor(proposal)).then_some(())?;
            }
            Step::Install(n) => Group::install(world, n),
            Step::Crash(n) => {
                let node = &mut world.nodes[n];
                node.log.clone_from(&node.disk);
                (node.is_up, node.epoch, node.complete, node.wedged, node.delivered) = (false, 0, false, false, 0);
                world.crashes -= 1;
            }
            Step::Return(n) => {
                let node = &mut world.nodes[n];
                (node.is_up, node.life) = (true, node.life + 1);
                let me = member(n, node.life);
                world.apply(Entry::Candidate(me));
            }
            Step::SayBack(n) => {
                let node = &world.nodes[n];
                let epoch = world.last().view.epoch;
                let runs = || {
                    let bug = self.has(Bug::SaysWhatItDelivered);
                    let seq = Seq(if bug { node.delivered } else { world.has_received(n) });
                    Held { end: End { epoch: Epoch(node.epoch), seq }, complete: node.complete }
                };
                let held = if node.epoch > 0 { Some(runs()) } else { held(&node.disk) };
                let held = held.map(|held| (SHARD, held)).into_iter().collect();
                world.apply(Entry::Back(Back { member: member(n, node.life), epoch, held })).then_some(())?;
            }
            Step::Restart => {
                let backs = world.register.backs();
                let proposal = restart(world.last(), &layout(), backs[0].member.node, &backs);
                world.apply(Entry::Successor(proposal)).then_some(())?;
            }
            Step::Enter(n) => Group::enter(world, n, world.last().view.epoch.0),
        }
        world.forget();
        Some(())
    }

    /// A wedged member goes on after what was decided.
    fn install(world: &mut World, n: usize) {
        let epoch = world.nodes[n].epoch;
        let next = world.proposal(epoch + 1).clone();
        if !next.view.members.contains(&member(n, world.nodes[n].life)) {
            let node = &mut world.nodes[n];
            (node.epoch, node.wedged, node.complete, node.delivered) = (0, false, false, 0);
            node.disk.clone_from(&node.log);
            node.life += 1;
            let me = member(n, node.life);
            world.apply(Entry::Candidate(me));
            return;
        }
        if let Some(&Seq(trim)) = next.trims.get(&SHARD)
            && world.nodes[n].complete
            && world.has_received(n) >= trim
        {
            deliver(world, n, trim);
        }
        Group::enter(world, n, epoch + 1);
    }

    fn enter(world: &mut World, n: usize, epoch: u64) {
        let next = world.proposal(epoch).clone();
        let complete = next.view.shards[0].is_complete(id(n));
        let node = &mut world.nodes[n];
        if let Some(&end) = next.ends.get(&SHARD) {
            cut(&mut node.log, end);
        }
        (node.epoch, node.complete, node.delivered, node.wedged) = (epoch, complete, 0, false);
        if complete {
            node.log.push(Segment { epoch, count: 0, complete });
        }
        node.disk.clone_from(&node.log);
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
    let is_suspended = matches!(world.shard(epoch).state, ShardState::Suspended { .. });
    is_suspended || (1..epoch).all(|at| world.acknowledged[at as usize - 1] <= has(at))
}

impl Model for Group {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.members, self.crashes)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        actions.extend(self.steps(world));
        if world.crashes > 0 {
            actions.extend((0..self.members).filter(|&n| world.nodes[n].is_up).map(Step::Crash));
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
                let holders = world.nodes.iter().filter(|node| node.is_up && node.epoch > 0 && node.complete);
                holders.into_iter().all(|node| line(&node.log, node.epoch) == world.line(node.epoch))
            }),
            Property::always(GOES_ON, |group: &Group, world: &World| {
                world.history.len() == group.views
                    || !group.steps(world).is_empty()
                    || world.nodes.iter().all(|node| node.epoch == world.last().view.epoch.0 && !node.wedged)
            }),
        ]
    }
}
