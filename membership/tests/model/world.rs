//! The model's state: nodes, their rows as others see them, messages on their way, and the view log.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use squall_fabric::NodeId;
use squall_membership::{ClusterId, Entry, Layout, Member, Proposal, ShardId, ShardView, View, ViewLogState};

pub(crate) const SHARD: ShardId = ShardId(0);

/// A proposal, or a decision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision(pub(crate) Arc<Proposal>);

impl Decision {
    pub(crate) fn view(&self) -> &Arc<View> {
        &self.0.view
    }

    pub(crate) fn epoch(&self) -> usize {
        self.view().epoch.0 as usize
    }

    pub(crate) fn shard(&self) -> &ShardView {
        &self.view().shards[0]
    }

    /// The members by rank.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.view().members.iter().map(|member| index(member.node))
    }

    pub(crate) fn has(&self, node: usize) -> bool {
        self.nodes().any(|member| member == node)
    }

    pub(crate) fn holds(&self, node: usize) -> bool {
        self.shard().is_complete(id(node))
    }

    pub(crate) fn trim(&self) -> Option<usize> {
        self.0.trims.get(&SHARD).map(|trim| trim.0 as usize)
    }
}

/// Views follow from the log's entries, so they need not be looked at whole.
impl Hash for Decision {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Proposal { by, view, restart, finals, trims, ends } = &*self.0;
        (by, view.epoch, view.nodes(), &view.shards[0].complete, restart, trims, ends).hash(state);
        let finals = finals.values().flatten();
        finals.for_each(|end| (end.node, end.count, end.complete).hash(state));
    }
}

/// The view log, alike everywhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Log {
    pub(crate) log_state: ViewLogState,
    /// The views, by epoch; there is none of epoch 0.
    pub(crate) decided: Vec<Decision>,
}

impl Hash for Log {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.decided.hash(state);
        self.log_state.candidates().len().hash(state);
    }
}

impl Log {
    pub(crate) fn new(members: usize) -> Log {
        let members = (0..members).map(member).collect();
        let mut log = Log { log_state: ViewLogState::default(), decided: Vec::new() };
        log.apply(Entry::First { cluster: ClusterId(1), layout: layout(), members, preferred: Default::default() });
        log
    }

    pub(crate) fn apply(&mut self, entry: Entry) {
        self.log_state.apply(entry);
        self.take_note();
    }

    /// Decides a proposal that the rules may forbid.
    pub(crate) fn force(&mut self, proposal: &Proposal) {
        let (cluster, layout, reason) = (ClusterId(1), layout(), String::new());
        let proposal = proposal.clone();
        if proposal.view.epoch.0 as usize == self.decided.len() + 1 {
            self.log_state = ViewLogState::default();
            self.apply(Entry::Force { cluster, after: ClusterId(1), earlier: Vec::new(), layout, proposal, reason });
        }
    }

    fn take_note(&mut self) {
        let last = self.log_state.last().expect("it has begun");
        if last.view.epoch.0 as usize > self.decided.len() {
            self.decided.push(Decision(Arc::new(last.clone())));
        }
    }

    /// The view of an epoch.
    pub(crate) fn view(&self, epoch: usize) -> Option<&Decision> {
        self.decided.get(epoch.checked_sub(1)?)
    }

    pub(crate) fn last(&self) -> &Decision {
        self.decided.last().expect("it has begun")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    /// Not a member yet.
    Outside,
    Member,
    /// The node knows that the others went on without it.
    Dropped,
    Crashed,
}

/// A member's row, which it shows to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    /// The number of places of the order that it has received.
    pub(crate) received: usize,
    pub(crate) wedged: bool,
    /// The nodes that it accuses, a bit each.
    pub(crate) accuses: u8,
    /// Whether it holds the state.
    pub(crate) complete: bool,
}

/// A sender's content of its place in a view's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sent {
    /// The sender has nothing more to say.
    Nothing,
    Message,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Node {
    pub(crate) life: Life,
    /// The view that it has installed.
    pub(crate) view: Option<Decision>,
    pub(crate) row: Row,
    /// By node, its row as this one has seen it.
    pub(crate) sees: Vec<Row>,
    /// The number of places of its view's order that it has delivered.
    pub(crate) delivered: usize,
    /// The senders of all messages that it has ever delivered.
    pub(crate) applied: Vec<usize>,
    /// The number of these when it installed its view.
    pub(crate) began_with: usize,
    /// Whether it was asked to send a message that it does not know to be delivered.
    pub(crate) pending: bool,
    /// Its last proposal, on the way to the log.
    pub(crate) proposes: Option<Decision>,
    /// The last epoch at whose end it has waited until no other could read because of it.
    pub(crate) waited: usize,
    /// Whether the log called for something that it does not have.
    pub(crate) fell_short: bool,
}

impl Node {
    pub(crate) fn new(nodes: usize, pending: bool) -> Node {
        Node {
            life: Life::Outside,
            view: None,
            row: Row::default(),
            sees: vec![Row::default(); nodes],
            delivered: 0,
            applied: Vec::new(),
            began_with: 0,
            pending,
            proposes: None,
            waited: 0,
            fell_short: false,
        }
    }

    pub(crate) fn epoch(&self) -> usize {
        self.view.as_ref().map_or(0, Decision::epoch)
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.life, Life::Outside | Life::Member)
    }

    pub(crate) fn runs(&self) -> bool {
        self.life == Life::Member && !self.row.wedged
    }

    /// Wedges the node. From here on it only collects final counts, so its knowledge of members that are not wedged
    /// makes no difference.
    pub(crate) fn wedge(&mut self) {
        self.row.wedged = true;
        self.sees.iter_mut().filter(|row| !row.wedged).for_each(|row| *row = Row::default());
    }

    /// Ends the node's membership; its knowledge makes no difference any more.
    pub(crate) fn ends(&mut self, life: Life) {
        self.life = life;
        self.sees.fill(Row::default());
    }

    pub(crate) fn accuses(&self, other: usize) -> bool {
        self.row.accuses >> other & 1 == 1
    }

    /// A node's row, as it knows it.
    pub(crate) fn knows(&self, me: usize, node: usize) -> &Row {
        if node == me { &self.row } else { &self.sees[node] }
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    /// The contents of the places, by epoch from 1 on and by node.
    pub(crate) sent: Vec<Vec<Option<Sent>>>,
    pub(crate) log: Log,
    /// Pairs of nodes that don't reach each other any more, the lower first.
    pub(crate) cut: Vec<(usize, usize)>,
    /// The number of faults that may still come.
    pub(crate) faults: usize,
    /// The number of nodes that had a message to send: the first ones.
    pub(crate) messages: usize,
}

impl World {
    pub(crate) fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    /// The contents of a view's order, by place: each sender that ever had a message has one, by rank.
    pub(crate) fn order<'a>(&'a self, view: &'a Decision) -> impl Iterator<Item = (usize, Option<Sent>)> + 'a {
        let sent = self.sent.get(view.epoch() - 1);
        let senders = view.shard().senders.iter().map(|&sender| index(sender)).filter(|&sender| sender < self.messages);
        senders.map(move |sender| (sender, sent.and_then(|sent| sent[sender])))
    }

    /// The senders of the messages in some places of a view's order.
    pub(crate) fn delivered(&self, view: &Decision, from: usize, to: usize) -> Vec<usize> {
        let places = self.order(view).take(to).skip(from);
        places.filter(|(_, sent)| *sent == Some(Sent::Message)).map(|(sender, _)| sender).collect()
    }
}

pub(crate) fn id(node: usize) -> NodeId {
    NodeId(node as u32)
}

pub(crate) fn index(node: NodeId) -> usize {
    node.0 as usize
}

pub(crate) fn member(node: usize) -> Member {
    Member::new(id(node), squall_membership::Incarnation(1))
}

/// One shard of all members.
pub(crate) fn layout() -> Layout {
    Layout::of_all(["g".to_string()])
}
