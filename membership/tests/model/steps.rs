//! The steps of the model, one at a time.

use squall_membership::{Accusations, Entry, Final, Finals, Proposal, Seq, staying, staying_with, successor};
use stateright::{Model, Property};

use super::{
    properties,
    world::{Decision, Life, Log, Node, Row, SHARD, Sent, World, id, layout, member},
};

/// An error that there once was, or might be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The trim is the largest final count.
    TrimIsTheMaximum,
    /// A leader carries out its proposal before it is decided.
    ActsBeforeCommit,
    /// A member that is wedged goes on receiving.
    CountsAfterWedging,
    /// A member accuses all that others accuse.
    AdoptsSuspicion,
    /// A joiner says that it is complete before it has the state.
    JoinerIsComplete,
    /// A member goes on before dropped members have ceased to read.
    DoesNotWaitForLeases,
    /// A sender sends again the messages that it had not delivered when it wedged, although they are within the trim.
    ResendsWithinTheTrim,
}

/// A group, and the faults that it may have.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The members of the first view.
    pub(crate) members: usize,
    /// Nodes that join it.
    pub(crate) joiners: usize,
    /// The number of members that have one message to send.
    pub(crate) messages: usize,
    /// The number of crashes of nodes and breaks of links, in all.
    pub(crate) faults: usize,
    pub(crate) bug: Option<Bug>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Send(usize),
    /// A node receives the next message of the order.
    Receive(usize),
    /// A node sees another's row as it is now.
    See(usize, usize),
    /// A node delivers the messages that all have received.
    Deliver(usize),
    Suspect(usize, usize),
    /// A node asks to join.
    Join(usize),
    /// A member wedges the view so that others can join.
    Ask(usize),
    /// A member proposes as the leader, or in its turn.
    Propose(usize, Turn),
    /// A member's proposal reaches the log.
    Decide(usize),
    /// A node sees the decision: a member waits for leases, cleans up and installs.
    Learn(usize),
    /// A joiner gets the state from another.
    Fetch(usize, usize),
    Crash(usize),
    Cut(usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Leads,
    InSpiteOfAll,
}

impl Group {
    pub(crate) fn nodes(&self) -> usize {
        self.members + self.joiners
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The steps that are possible without another fault.
    pub(crate) fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        for n in 0..self.nodes() {
            let node = &world.nodes[n];
            if node.proposes.is_some() {
                steps.push(Step::Decide(n));
            }
            if !node.is_alive() {
                continue;
            }
            let others = || (0..self.nodes()).filter(move |&other| other != n);
            let reached = || others().filter(|&other| !world.is_cut(n, other));
            if self.learns(world, node, n) {
                steps.push(Step::Learn(n));
            }
            let Some(view) = node.view.as_ref().filter(|_| node.life == Life::Member) else {
                if !world.log.log_state.candidates().contains(&member(n)) && !world.log.last().has(n) {
                    steps.push(Step::Join(n));
                }
                continue;
            };
            let sees = |&other: &usize| {
                let theirs = &world.nodes[other];
                let news = theirs.row.wedged || node.runs();
                theirs.epoch() == node.epoch() && news && theirs.row != node.sees[other]
            };
            steps.extend(reached().filter(sees).map(|other| Step::See(n, other)));
            let is_lost = |&other: &usize| {
                view.has(other)
                    && !node.accuses(other)
                    && (world.is_cut(n, other) || world.nodes[other].life == Life::Crashed)
                    && (self.dares(node, view, other) || !node.row.wedged)
            };
            steps.extend(others().filter(is_lost).map(|other| Step::Suspect(n, other)));
            if (node.runs() || self.has(Bug::CountsAfterWedging)) && stable(node, view, n) > node.delivered {
                steps.push(Step::Deliver(n));
            }
            if let Some((sender, Some(_))) = world.order(view).nth(node.row.received)
                && (node.runs() || self.has(Bug::CountsAfterWedging))
                && !world.is_cut(n, sender)
            {
                steps.push(Step::Receive(n));
            }
            if node.runs() {
                if world.order(view).any(|sent| sent == (n, None)) {
                    steps.push(Step::Send(n));
                }
                if world.log.log_state.candidates().iter().any(|_| world.log.view(node.epoch() + 1).is_none()) {
                    steps.push(Step::Ask(n));
                }
                let has_it = |&from: &usize| {
                    let theirs = &world.nodes[from];
                    theirs.life == Life::Member
                        && theirs.epoch() == node.epoch()
                        && theirs.row.complete
                        && theirs.delivered <= node.delivered
                };
                if !node.row.complete {
                    steps.extend(reached().filter(has_it).map(|from| Step::Fetch(n, from)));
                }
            } else if world.log.view(node.epoch() + 1).is_none() {
                for turn in [Turn::Leads, Turn::InSpiteOfAll] {
                    let proposal = self.proposal(world, n, turn);
                    if proposal.is_some() && proposal != node.proposes {
                        steps.push(Step::Propose(n, turn));
                    }
                }
            }
        }
        steps
    }

    fn learns(&self, world: &World, node: &Node, n: usize) -> bool {
        match node.life {
            Life::Outside => world.log.last().has(n),
            _ => world.log.view(node.epoch() + 1).is_some(),
        }
    }

    /// Whether a node may accuse another member: not if that would leave it less than half of the view.
    fn dares(&self, node: &Node, view: &Decision, _other: usize) -> bool {
        let members = view.nodes().count();
        2 * (members - node.row.accuses.count_ones() as usize - 1) >= members
    }

    fn proposal(&self, world: &World, n: usize, turn: Turn) -> Option<Decision> {
        let node = &world.nodes[n];
        let view = node.view.as_ref()?;
        let nodes: Vec<usize> = view.nodes().collect();
        let me = nodes.iter().position(|&other| other == n)?;
        let mut accusations = Accusations::none(nodes.len());
        for (by, &accuser) in nodes.iter().enumerate() {
            for (whom, &accused) in nodes.iter().enumerate() {
                if node.knows(n, accuser).accuses >> accused & 1 == 1 {
                    accusations.accuse(by, whom);
                }
            }
        }
        let stay = match turn {
            Turn::Leads => staying(&accusations),
            Turn::InSpiteOfAll => staying_with(&accusations, me),
        };
        let leads = turn == Turn::InSpiteOfAll || stay.first() == Some(&me);
        let stay: Vec<usize> = stay.into_iter().map(|rank| nodes[rank]).collect();
        if !leads || 2 * stay.len() < nodes.len() || !stay.iter().all(|&other| node.knows(n, other).wedged) {
            return None;
        }
        let end = |&other: &usize| {
            let row = node.knows(n, other);
            Final { node: id(other), count: Seq(row.received as u64), complete: row.complete, on_disk: false }
        };
        let finals = Finals::from([(SHARD, stay.iter().map(end).collect())]);
        let stay: Vec<_> = stay.into_iter().map(id).collect();
        let candidates = world.log.log_state.candidates();
        let join = &candidates[..candidates.len().min(stay.len())];
        let mut proposal: Proposal = successor(view.view(), &layout(), id(n), &stay, join, &finals);
        if self.has(Bug::TrimIsTheMaximum)
            && let Some(trim) = proposal.trims.get_mut(&SHARD)
        {
            *trim = finals[&SHARD].iter().map(|end| end.count).max()?;
        }
        Some(Decision(proposal.into()))
    }

    fn take(&self, world: &mut World, step: Step) -> Option<()> {
        match step {
            Step::Send(n) => {
                let epoch = world.nodes[n].epoch();
                world.sent[epoch - 1][n] = Some(Sent::Message);
            }
            Step::Receive(n) => world.nodes[n].row.received += 1,
            Step::See(n, other) => {
                let row = world.nodes[other].row;
                let node = &mut world.nodes[n];
                node.sees[other] = row;
                if row.wedged {
                    node.wedge();
                }
                if self.has(Bug::AdoptsSuspicion) {
                    node.row.accuses |= row.accuses & !(1 << n);
                }
            }
            Step::Deliver(n) => {
                let view = world.nodes[n].view.clone()?;
                let to = stable(&world.nodes[n], &view, n);
                self.deliver(world, n, &view, to, true);
            }
            Step::Suspect(n, other) => {
                let node = &mut world.nodes[n];
                if self.dares(node, &node.view.clone()?, other) {
                    node.row.accuses |= 1 << other;
                }
                node.wedge();
            }
            Step::Join(n) => world.log.apply(Entry::Candidate(member(n))),
            Step::Ask(n) => world.nodes[n].wedge(),
            Step::Propose(n, turn) => {
                let proposal = self.proposal(world, n, turn)?;
                world.nodes[n].proposes = Some(proposal.clone());
                if self.has(Bug::ActsBeforeCommit) {
                    self.go_on(world, n, proposal)?;
                }
            }
            Step::Decide(n) => {
                let proposal = world.nodes[n].proposes.take()?;
                match self.has(Bug::TrimIsTheMaximum) {
                    true => world.log.force(&proposal.0),
                    false => world.log.apply(Entry::Successor((*proposal.0).clone())),
                }
                // The rules would refuse other proposals of this epoch.
                let current = world.log.last().epoch();
                let is_late = |proposal: &Decision| proposal.epoch() <= current;
                world.nodes.iter_mut().for_each(|node| drop(node.proposes.take_if(|proposal| is_late(proposal))));
            }
            Step::Learn(n) if world.nodes[n].life == Life::Outside => {
                let view = world.log.last().clone();
                self.install(world, n, view);
            }
            Step::Learn(n) => {
                let next = world.log.view(world.nodes[n].epoch() + 1)?.clone();
                match next.has(n) {
                    true => self.go_on(world, n, next)?,
                    false => world.nodes[n].ends(Life::Dropped),
                }
            }
            Step::Fetch(n, from) => {
                let view = world.nodes[n].view.clone()?;
                let Node { delivered, applied, began_with, .. } = world.nodes[from].clone();
                let backlog = world.delivered(&view, delivered, world.nodes[n].delivered);
                let node = &mut world.nodes[n];
                node.applied = applied.into_iter().chain(backlog).collect();
                node.began_with = began_with;
                node.row.complete = true;
            }
            Step::Crash(n) => {
                world.nodes[n].ends(Life::Crashed);
                world.faults -= 1;
            }
            Step::Cut(a, b) => {
                world.cut.push((a, b));
                world.cut.sort_unstable();
                world.faults -= 1;
            }
        }
        Some(())
    }

    fn go_on(&self, world: &mut World, n: usize, next: Decision) -> Option<()> {
        let view = world.nodes[n].view.clone()?;
        if !self.has(Bug::DoesNotWaitForLeases) {
            world.nodes[n].waited = view.epoch();
        }
        if let Some(trim) = next.trim() {
            self.deliver(world, n, &view, trim, !self.has(Bug::ResendsWithinTheTrim));
        }
        self.install(world, n, next);
        Some(())
    }

    fn deliver(&self, world: &mut World, n: usize, view: &Decision, to: usize, takes_note: bool) {
        let from = world.nodes[n].delivered;
        let messages = world.delivered(view, from, to);
        let node = &mut world.nodes[n];
        if node.row.complete {
            node.fell_short |= to > node.row.received;
            node.pending &= !(takes_note && messages.contains(&n));
            node.applied.extend(messages);
        }
        node.delivered = to.max(from);
    }

    fn install(&self, world: &mut World, n: usize, view: Decision) {
        if world.sent.len() < view.epoch() {
            world.sent.resize(view.epoch(), vec![None; self.nodes()]);
        }
        let node = &mut world.nodes[n];
        let is_new = node.view.is_none();
        let complete = view.holds(n) || is_new && self.has(Bug::JoinerIsComplete);
        node.life = Life::Member;
        node.row = Row { complete, ..Row::default() };
        node.sees = vec![Row::default(); self.nodes()];
        node.delivered = 0;
        node.began_with = node.applied.len();
        if !node.pending && n < self.messages {
            world.sent[view.epoch() - 1][n] = Some(Sent::Nothing);
        }
        node.view = Some(view);
    }
}

/// The number of places of the order that all have received, as far as a member knows.
fn stable(node: &Node, view: &Decision, n: usize) -> usize {
    view.nodes().map(|other| node.knows(n, other).received).min().unwrap_or(0)
}

impl Model for Group {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let nodes = (0..self.nodes()).map(|n| Node::new(self.nodes(), n < self.messages)).collect();
        let log = Log::new(self.members);
        let mut world =
            World { nodes, sent: Vec::new(), log, cut: Vec::new(), faults: self.faults, messages: self.messages };
        let first = world.log.last().clone();
        (0..self.members).for_each(|n| self.install(&mut world, n, first.clone()));
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        actions.extend(self.steps(world));
        if world.faults == 0 {
            return;
        }
        for n in (0..self.nodes()).filter(|&n| world.nodes[n].is_alive()) {
            actions.push(Step::Crash(n));
            let others =
                (n + 1..self.nodes()).filter(|&other| world.nodes[other].is_alive() && !world.is_cut(n, other));
            actions.extend(others.map(|other| Step::Cut(n, other)));
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        self.take(&mut world, step).map(|()| world)
    }

    fn properties(&self) -> Vec<Property<Group>> {
        properties::all()
    }
}
