//! The view log's state, and the effect of each entry on it, alike wherever the log is read.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

use crate::{
    layout::Layout,
    reopen,
    restart::check_restart,
    return_report::ReturnReport,
    rules,
    view::{ClusterId, Epoch, Incarnation, MAX_MEMBERS, Member, Preferred, View},
    view_log::{Proposal, Refused},
};

/// The place where a cluster's life that an operator forced branched off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// The life before.
    pub after: ClusterId,
    /// Its first view's epoch. Decisions of the life before, from this epoch on, are no part of this one.
    pub epoch: Epoch,
    /// The lives before that one, each with the epoch at which the next one branched off.
    pub earlier: Vec<(ClusterId, Epoch)>,
}

impl Began {
    /// All lives before, each with the first epoch that is no part of this life.
    pub fn lives(&self) -> impl Iterator<Item = (ClusterId, Epoch)> {
        self.earlier.iter().copied().chain([(self.after, self.epoch)])
    }

    /// The first epoch of a life that is no part of this one. None if it is none of the lives before.
    pub fn ended(&self, life: ClusterId) -> Option<Epoch> {
        self.lives().find(|&(before, _)| before == life).map(|(_, epoch)| epoch)
    }
}

/// An entry of the view log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// The first view. Only the first entry can be one.
    First {
        /// The cluster.
        cluster: ClusterId,
        /// The layout of shards, from now on.
        layout: Layout,
        /// The members, by rank.
        members: Vec<Member>,
        /// The nodes that shards prefer.
        preferred: Preferred,
    },
    /// A node that asks to join.
    Candidate(Member),
    /// A node that asks no more, or was not reached for a while.
    Withdraw(NodeId, Incarnation),
    /// The successor of a view, or its restart.
    Successor(Proposal),
    /// The report of a node that comes back.
    Return(ReturnReport),
    /// An operator's decision to go on with what is left, without a quorum of the earlier voters. Only the first entry
    /// of a log that was begun for it can be one.
    Force {
        /// The new life's number.
        cluster: ClusterId,
        /// The life before.
        after: ClusterId,
        /// The lives before that one, as in [`Began::earlier`].
        earlier: Vec<(ClusterId, Epoch)>,
        /// The layout of shards.
        layout: Layout,
        /// The successor of the last view that was known.
        proposal: Proposal,
        /// The operator's words: by whom, when and why.
        reason: String,
    },
}

/// The effect of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// A new view.
    View(Proposal),
    /// The nodes that ask to join have changed.
    Candidates,
    /// The nodes that are back have changed.
    Returns,
    /// An entry that does nothing, since it must not.
    Refused(Refused),
}

/// The decisions of the view log so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewLogState {
    cluster: Option<ClusterId>,
    layout: Layout,
    last: Option<Proposal>,
    candidates: Vec<Member>,
    /// The reports of nodes that are back, of the current view, by node.
    backs: BTreeMap<NodeId, ReturnReport>,
    /// The latest life in which each node was a member: no earlier one comes back.
    newest: BTreeMap<NodeId, Incarnation>,
    /// The views that operators have forced, in words, oldest first.
    forced: Vec<String>,
    began: Option<Began>,
}

impl ViewLogState {
    /// The cluster, if it has begun.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// The layout of shards.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The current view's proposal.
    pub fn last(&self) -> Option<&Proposal> {
        self.last.as_ref()
    }

    /// The current view.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.last.as_ref().map(|last| &last.view)
    }

    /// The nodes that ask to join, in the order in which they asked.
    pub fn candidates(&self) -> &[Member] {
        &self.candidates
    }

    /// The reports of nodes that are back, of the current view, in the order of their numbers. A view that is decided
    /// discards them.
    pub fn returns(&self) -> Vec<ReturnReport> {
        self.backs.values().cloned().collect()
    }

    /// The latest life in which a node was a member. To join it needs a later one.
    pub fn newest(&self, node: NodeId) -> Option<Incarnation> {
        self.newest.get(&node).copied()
    }

    /// The latest life in which a node was a member, or asks to be one.
    pub fn known(&self, node: NodeId) -> Option<Incarnation> {
        let asks = self.candidates.iter().filter(|asks| asks.node == node).map(|asks| asks.incarnation);
        asks.chain(self.newest(node)).max()
    }

    /// The views that operators have forced, in words, oldest first.
    pub fn forced(&self) -> &[String] {
        &self.forced
    }

    /// The place where this life began, if an operator forced it.
    pub fn began(&self) -> Option<&Began> {
        self.began.as_ref()
    }

    /// Applies an entry.
    pub fn apply(&mut self, entry: Entry) -> Applied {
        self.try_apply(entry).unwrap_or_else(Applied::Refused)
    }

    fn try_apply(&mut self, entry: Entry) -> Result<Applied, Refused> {
        match entry {
            Entry::First { cluster, layout, members, preferred } => {
                if self.cluster.is_some() {
                    return Err(Refused::OutOfPlace);
                }
                check_members(&members)?;
                layout.check_preferred(&members, &preferred).map_err(Refused::Rule)?;
                let view = View { life: cluster, ..View::first(members, &layout, preferred) };
                let by = view.members[0].node;
                let (finals, trims, ends) = Default::default();
                (self.cluster, self.layout) = (Some(cluster), layout);
                Ok(self.advance(Proposal { by, view: Arc::new(view), restart: false, finals, trims, ends }))
            }
            Entry::Candidate(member) => {
                let view = self.view().ok_or(Refused::OutOfPlace)?;
                if !view.has_fingerprint_of(&member) {
                    let node = member.node;
                    return Err(Refused::Rule(format!("{node} is configured otherwise than the members")));
                }
                if let Some(known) = self.known(member.node).filter(|&known| known >= member.incarnation) {
                    let (node, asked) = (member.node, member.incarnation);
                    let why = format!("{node} asks to join as incarnation {}, and {} is known of it", asked.0, known.0);
                    return Err(Refused::Rule(why));
                }
                self.candidates.retain(|other| other.node != member.node);
                self.candidates.push(member);
                Ok(Applied::Candidates)
            }
            Entry::Withdraw(node, incarnation) => {
                let before = self.candidates.len();
                self.candidates.retain(|other| other.node != node || other.incarnation > incarnation);
                if before == self.candidates.len() {
                    return Err(Refused::Rule(format!("{node} does not ask to join")));
                }
                Ok(Applied::Candidates)
            }
            Entry::Successor(proposal) => {
                let last = self.last.as_ref().ok_or(Refused::OutOfPlace)?;
                match proposal.restart {
                    true => check_restart(last, &self.layout, &self.returns(), &proposal)?,
                    false => {
                        reopen::check(&last.view, &self.layout, &self.candidates, &self.returns(), &proposal)?;
                    }
                }
                Ok(self.advance(proposal))
            }
            Entry::Return(back) => self.note_return(back),
            Entry::Force { cluster, after, earlier, layout, mut proposal, reason } => {
                if self.cluster.is_some() {
                    return Err(Refused::OutOfPlace);
                }
                check_members(&proposal.view.members)?;
                Arc::make_mut(&mut proposal.view).life = cluster;
                self.forced.push(reason);
                self.began = Some(Began { after, epoch: proposal.view.epoch, earlier });
                (self.cluster, self.layout) = (Some(cluster), layout);
                Ok(self.advance(proposal))
            }
        }
    }

    /// Notes what a member that came back has, unless it is of an earlier incarnation.
    fn note_return(&mut self, mut back: ReturnReport) -> Result<Applied, Refused> {
        let view = self.view().ok_or(Refused::OutOfPlace)?;
        if self.began.is_some() {
            // A log of a later epoch is of the life before, which may have gone further: it has no place in
            // this one.
            back.held.retain(|_, held| held.end.epoch <= view.epoch);
        }
        back.check(view)?;
        let (node, is) = (back.member.node, back.member.incarnation);
        // A node that goes on may have more to say.
        let stands = |known: &&ReturnReport| {
            let known_is = known.member.incarnation;
            known_is > is || known_is == is && (!known.goes_on || **known == back)
        };
        if let Some(known) = self.backs.get(&node).filter(stands) {
            let known = known.member.incarnation.0;
            let why = format!("{node} is back as incarnation {}, and was already as {known}", is.0);
            return Err(Refused::Rule(why));
        }
        self.backs.insert(node, back);
        Ok(Applied::Returns)
    }

    fn advance(&mut self, next: Proposal) -> Applied {
        for member in &next.view.members {
            let newest = self.newest.entry(member.node).or_default();
            *newest = member.incarnation.max(*newest);
        }
        self.candidates.retain(|asks| self.newest.get(&asks.node).is_none_or(|&newest| newest < asks.incarnation));
        self.backs.clear();
        self.last = Some(next.clone());
        Applied::View(next)
    }
}

/// Checks that a view that follows from no other has members, each once.
fn check_members(members: &[Member]) -> Result<(), Refused> {
    rules::check_each_once(members)?;
    if members.is_empty() || members.len() > MAX_MEMBERS {
        let (len, most) = (members.len(), MAX_MEMBERS);
        return Err(Refused::Rule(format!("a view of {len} members can't be: 1 to {most} can")));
    }
    Ok(())
}
