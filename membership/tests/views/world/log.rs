//! A view log that never fails: one state, of which nodes hear when the network lets them.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_membership::{
    Applied, ClusterId, Entry, Epoch, Layout, Member, OrderEnd, Proposal, Report, ReturnReport, ShardId, View,
    ViewEvent, ViewLogState,
};

use super::after;

/// A message on its way to the view log, or from it.
#[derive(Clone, Debug)]
enum Message {
    Ask(NodeId, Box<Entry>),
    Report(NodeId, Box<Report>),
    /// The node looks for news.
    Look(NodeId),
}

#[derive(Debug)]
pub(crate) struct Log {
    rng: Rng,
    pub(crate) log_state: ViewLogState,
    pub(crate) history: Vec<Proposal>,
    on_the_way: BTreeMap<(Time, u64), Message>,
    sent: u64,
    /// The longest delay.
    pub(crate) delay_ms: f64,
    /// The part of messages that are lost.
    pub(crate) loss: f64,
    /// The nodes that can't reach it.
    pub(crate) cut: BTreeSet<NodeId>,
    /// By node, the last epoch that it has heard of.
    heard: BTreeMap<NodeId, Epoch>,
    asking: BTreeMap<NodeId, Member>,
    backs: BTreeMap<NodeId, ReturnReport>,
    /// The number of reports.
    pub(crate) reports: usize,
    /// The reasons for which proposals were refused.
    pub(crate) refused: Vec<String>,
}

impl Log {
    pub(crate) fn new(layout: Layout, members: Vec<Member>, rng: Rng) -> Log {
        let mut log_state = ViewLogState::default();
        let Applied::View(first) =
            log_state.apply(Entry::First { cluster: ClusterId(1), layout, members, preferred: Default::default() })
        else {
            panic!("there is a first view");
        };
        Log {
            rng,
            log_state,
            history: vec![first],
            on_the_way: BTreeMap::new(),
            sent: 0,
            delay_ms: 3.0,
            loss: 0.0,
            cut: BTreeSet::new(),
            heard: BTreeMap::new(),
            asking: BTreeMap::new(),
            backs: BTreeMap::new(),
            reports: 0,
            refused: Vec::new(),
        }
    }

    pub(crate) fn view(&self) -> &View {
        self.log_state.view().expect("there is one")
    }

    fn send(&mut self, now: Time, message: Message) {
        let at = after(now, self.rng.f64() * self.delay_ms);
        self.sent += 1;
        self.on_the_way.insert((at, self.sent), message);
    }

    fn is_lost(&mut self, node: NodeId) -> bool {
        self.cut.contains(&node) || self.rng.f64() < self.loss
    }

    pub(crate) fn propose(&mut self, now: Time, by: NodeId, proposal: Proposal) {
        if !self.is_lost(by) {
            self.send(now, Message::Ask(by, Box::new(Entry::Successor(proposal))));
        }
    }

    /// Asks to join. As with a real log, it goes on asking until the node is a member.
    pub(crate) fn join(&mut self, now: Time, me: Member) {
        self.asking.insert(me.node, me.clone());
        self.send(now, Message::Ask(me.node, Box::new(Entry::Candidate(me))));
    }

    /// Reports a node that is back, again and again until there is another view.
    pub(crate) fn report_return(&mut self, now: Time, back: ReturnReport) {
        self.backs.insert(back.member.node, back.clone());
        self.send(now, Message::Ask(back.member.node, Box::new(Entry::Return(back))));
    }

    pub(crate) fn report(&mut self, now: Time, to: &View, by: NodeId, report: &Report) {
        self.reports += 1;
        for node in to.nodes() {
            if node != by && !self.is_lost(by) && !self.is_lost(node) {
                self.send(now, Message::Report(node, Box::new(report.clone())));
            }
        }
    }

    /// Begins a node's process, which has heard of nothing.
    pub(crate) fn begins(&mut self, now: Time, node: NodeId) {
        self.heard.remove(&node);
        self.forget(node);
        self.look(now, node);
    }

    /// Lets a node that was cut off, or is new, find the log.
    pub(crate) fn look(&mut self, now: Time, node: NodeId) {
        self.send(now, Message::Look(node));
        if let Some(me) = self.asking.get(&node).cloned() {
            self.send(now, Message::Ask(node, Box::new(Entry::Candidate(me))));
        }
    }

    pub(crate) fn deadline(&self) -> Time {
        self.on_the_way.keys().next().map_or(Time::MAX, |(at, _)| *at)
    }

    /// The events that arrive by now, each with its receiver.
    pub(crate) fn step(&mut self, now: Time, nodes: &[NodeId]) -> Vec<(NodeId, ViewEvent)> {
        let mut events = Vec::new();
        while let Some(entry) = self.on_the_way.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Message::Ask(by, _) if self.cut.contains(&by) => {}
                Message::Ask(_, entry) => {
                    match self.log_state.apply(*entry) {
                        Applied::View(next) => self.history.push(next),
                        Applied::Candidates | Applied::Returns => {}
                        Applied::Refused(why) => {
                            self.refused.push(why.to_string());
                            continue;
                        }
                    }
                    for &node in nodes {
                        self.send(now, Message::Look(node));
                    }
                }
                Message::Report(to, report) => events.push((to, ViewEvent::Reported(*report))),
                Message::Look(node) if self.cut.contains(&node) => {}
                Message::Look(node) => {
                    let last = self.view().epoch;
                    let heard = self.heard.insert(node, last);
                    // A node that was away for long, or is new, hears of the current view only.
                    let from = heard.filter(|heard| last.0 - heard.0 < 4).map_or(last.0, |heard| heard.0 + 1);
                    let news = self.history.iter().filter(|next| next.view.epoch.0 >= from);
                    let has_it = |me: &Member| news.clone().any(|next| next.view.members.contains(me));
                    if self.asking.get(&node).is_some_and(has_it) {
                        self.asking.remove(&node);
                    }
                    events.extend(news.map(|next| (node, ViewEvent::Committed(next.clone()))));
                    events.push((node, ViewEvent::Candidates(self.log_state.candidates().to_vec())));
                    events.push((node, ViewEvent::Returns(self.log_state.returns())));
                }
            }
        }
        events
    }

    /// Asks again for each node that has asked and is no member; in a later life, if it was a member and has not heard
    /// of it.
    pub(crate) fn remind(&mut self, now: Time) {
        let epoch = self.view().epoch;
        self.backs.retain(|_, back| back.epoch >= epoch);
        let backs = self.log_state.returns();
        let unheard = self.backs.values().filter(|back| !backs.contains(back)).cloned();
        let unheard: Vec<_> = unheard.map(|back| (back.member.node, Entry::Return(back))).collect();
        for (node, entry) in unheard {
            self.send(now, Message::Ask(node, Box::new(entry)));
        }
        for (node, mut me) in self.asking.clone() {
            let newest = self.log_state.newest(node).filter(|newest| *newest >= me.incarnation);
            if let Some(newest) = newest.filter(|_| !self.view().members.contains(&me)) {
                me.incarnation.0 = newest.0 + 1;
                self.asking.insert(node, me.clone());
            }
            if !self.view().members.contains(&me) && !self.log_state.candidates().contains(&me) {
                self.send(now, Message::Ask(node, Box::new(Entry::Candidate(me))));
            }
        }
    }

    /// Takes note that a node's process is gone: it asks no more.
    pub(crate) fn gone(&mut self, now: Time, node: NodeId) {
        if let Some(me) = self.asking.get(&node) {
            let withdraw = Entry::Withdraw(node, me.incarnation);
            self.send(now, Message::Ask(node, Box::new(withdraw)));
        }
        self.forget(node);
    }

    fn forget(&mut self, node: NodeId) {
        self.asking.remove(&node);
        self.backs.remove(&node);
    }

    /// The ends of a shard's views in the epochs before this one, as they were decided. Views in which it was suspended
    /// have none.
    pub(crate) fn line(&self, shard: ShardId, before: Epoch) -> Vec<OrderEnd> {
        let mut line: Vec<OrderEnd> = Vec::new();
        for next in self.history.iter().filter(|next| next.view.epoch > Epoch::FIRST && next.view.epoch <= before) {
            let trim = next.trims.get(&shard).map(|&seq| OrderEnd { epoch: Epoch(next.view.epoch.0 - 1), seq });
            if let Some(&end) = next.ends.get(&shard) {
                line.retain(|known| known.epoch < end.epoch);
                line.push(end);
            } else {
                line.extend(trim);
            }
        }
        line.retain(|&end| end > OrderEnd::START);
        line
    }
}
