//! The configuration of membership: the first members, the way for others to join, and the voters.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use squall_fabric::NodeId;

use super::{
    Address, Config, ConfigError,
    settings::{NodeSettings, Setting},
};

/// The most voters: more make each decision wait for more disks, and survive more losses than a group has at once.
const MAX_VOTERS: usize = 7;

/// The most contacts that may be listed.
const MAX_CONTACTS: usize = 16;

/// The most voters where none are listed.
const VOTERS: usize = 5;

/// A node that a joining node asks first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// A node of this host, or one that `[addresses]` has.
    Node(NodeId),
    /// The node of the cluster that listens at this address.
    Address(Address),
}

/// The settings of membership, checked: a part of [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    /// Empty if this node is among the members of the first view.
    pub(super) join: Vec<Contact>,
    pub(super) storage: Option<PathBuf>,
    pub(super) sign_log: Option<PathBuf>,
    pub(super) voters: Option<Vec<NodeId>>,
    pub(super) witnesses: Vec<NodeId>,
    pub(super) rack: String,
}

impl NodeSettings {
    /// Tells whether nodes that are not listed may join.
    pub(super) fn is_open(&self) -> bool {
        self.join.value.is_some()
    }

    /// Checks the settings of membership, without the members.
    pub(super) fn check_membership(&self, me: NodeId, members: &[NodeId]) -> Result<Membership, ConfigError> {
        let witnesses = self.check_witnesses(members)?;
        let voters = self.check_voters(members, &witnesses)?;
        let is_listed = members.contains(&me) || witnesses.contains(&me);
        let contacts = self.check_contacts(me)?;
        if !is_listed && contacts.is_empty() {
            let listed: Vec<u32> = members.iter().map(|member| member.0).collect();
            return Err(self.id.error(format!(
                "is {}, which is not among the members {listed:?}: add it to `members`, give the id of one of them, or let it \
                 join a group that runs, `join = [\"10.0.0.1:7700\"]`",
                me.0
            )));
        }
        // One file may be for all nodes: `join` concerns only the nodes that must join.
        let join = if is_listed { Vec::new() } else { contacts };
        let empty = "is empty: give a directory, or leave it out to keep nothing across restarts";
        let storage = self.storage.path(me, empty)?;
        let empty = "is empty: give the file of a key that `squall keys log` has made, or leave it out to sign nothing";
        let sign_log = self.sign_log.path(me, empty)?;
        let problem = "is given, and there is nowhere to keep a log: give a directory, `storage = \"state/{id}\"`";
        self.sign_log.check(|_| storage.is_some(), |_| problem)?;
        self.rack.check_name()?;
        let rack = self.rack.value.clone().unwrap_or_default();
        Ok(Membership { join, storage, sign_log, voters, witnesses, rack })
    }

    fn check_witnesses(&self, members: &[NodeId]) -> Result<Vec<NodeId>, ConfigError> {
        let witnesses = self.witnesses.node_ids()?.unwrap_or_default();
        if let Some(member) = witnesses.iter().find(|witness| members.contains(witness)) {
            let problem = format!("lists {}, which is a member: a witness has no part in any group", member.0);
            return Err(self.witnesses.error(problem));
        }
        if witnesses.len() >= VOTERS {
            let problem = format!("lists {} nodes: give fewer than {VOTERS}, mostly 1", witnesses.len());
            return Err(self.witnesses.error(problem));
        }
        Ok(witnesses)
    }

    fn check_voters(&self, members: &[NodeId], witnesses: &[NodeId]) -> Result<Option<Vec<NodeId>>, ConfigError> {
        let Some(voters) = self.voters.node_ids()? else {
            // Witnesses vote, since they have no other purpose.
            let places = VOTERS - witnesses.len();
            let fit = members.len().min(places);
            let even = usize::from((fit + witnesses.len()).is_multiple_of(2));
            let chosen = members.iter().take(fit - even.min(fit)).chain(witnesses).copied().collect();
            return Ok((!witnesses.is_empty() && !members.is_empty()).then_some(chosen));
        };
        if voters.len().is_multiple_of(2) || voters.len() > MAX_VOTERS {
            return Err(self.voters.error(format!(
                "lists {} nodes: give an odd number up to {MAX_VOTERS}, since one more than an odd number survives no more losses",
                voters.len()
            )));
        }
        let is_known = |voter: &NodeId| members.contains(voter) || witnesses.contains(voter) || self.is_open();
        if let Some(stranger) = voters.iter().find(|voter| !is_known(voter)) {
            return Err(self.voters.error(format!(
                "lists {}, which is neither among `members` nor among `witnesses`: add it there or remove it",
                stranger.0
            )));
        }
        Ok(Some(voters))
    }

    fn check_contacts(&self, me: NodeId) -> Result<Vec<Contact>, ConfigError> {
        let Some(listed) = &self.join.value else { return Ok(Vec::new()) };
        if !(1..=MAX_CONTACTS).contains(&listed.len()) {
            return Err(self.join.error(format!(
                "lists {} nodes: give 1 to {MAX_CONTACTS} of a group that runs, such as \"10.0.0.1:7700\" or, on one host, an id",
                listed.len()
            )));
        }
        let contact = |text: &String| {
            let text = text.trim();
            if let Ok(id) = text.parse::<u32>() {
                return Ok(Contact::Node(NodeId(id)));
            }
            text.parse().map(Contact::Address).map_err(|remedy| {
                self.join.error(format!(
                    "is {text:?}: {remedy}; or the id of a node that is on this host or has an address here"
                ))
            })
        };
        let contacts = listed.iter().map(contact).collect::<Result<Vec<_>, _>>()?;
        if contacts == [Contact::Node(me)] {
            let problem = format!("is {}, this node itself: give one that runs in the group already", me.0);
            return Err(self.join.error(problem));
        }
        Ok(contacts)
    }
}

impl Membership {
    /// Returns all nodes that a configuration mentions, each once.
    pub(super) fn known(&self, me: NodeId, members: &[NodeId]) -> Vec<NodeId> {
        let contacts = self.join.iter().filter_map(|contact| match contact {
            Contact::Node(node) => Some(*node),
            Contact::Address(_) => None,
        });
        let all = members.iter().chain(&self.witnesses).copied().chain([me]).chain(contacts);
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Replaces addresses of known nodes by the nodes, and tells whether an address belongs to none of them.
    pub(super) fn resolve(&mut self, of: impl Fn(&Address) -> Option<NodeId>) -> bool {
        let mut is_elsewhere = false;
        for contact in &mut self.join {
            if let Contact::Address(address) = contact {
                match of(address) {
                    Some(node) => *contact = Contact::Node(node),
                    None => is_elsewhere = true,
                }
            }
        }
        is_elsewhere
    }

    /// Checks that contacts are ids: in shared memory nodes are found by nothing else.
    pub(super) fn check_on_host(&self, join: &Setting<Vec<String>>) -> Result<(), ConfigError> {
        let mut contacts = self.join.iter();
        let Some(Contact::Address(address)) = contacts.find(|contact| matches!(contact, Contact::Address(_))) else {
            return Ok(());
        };
        let problem = format!(
            "is {address}, but in shared memory nodes are found by their ids: give the id of a node that runs on this host, or \
             another `fabric.backend` to all nodes"
        );
        Err(join.error(problem))
    }
}

impl Config {
    /// Returns the nodes that this node asks when it joins a running group. It is empty for a witness, and for a member
    /// of the first view: these wait for each other (and join, if they find that the group is there already).
    pub fn join(&self) -> &[Contact] {
        &self.membership.join
    }

    /// Returns the directory of this node's part of the view log and of its durable groups' logs, so that they count
    /// after a restart; None to keep nothing.
    pub fn storage(&self) -> Option<&Path> {
        self.membership.storage.as_deref()
    }

    /// Returns the file of the key with which this node signs its logs ([`log_keys`](crate::log_keys)); None to sign
    /// nothing.
    pub fn sign_log(&self) -> Option<&Path> {
        self.membership.sign_log.as_deref()
    }

    /// Returns the voters of the view log, in ascending order; they stay the same in all views. None means an odd
    /// number of members, at most 5, which change with the views. If there are witnesses, and no voters are listed, the
    /// voters are the witnesses and the first members.
    pub fn voters(&self) -> Option<&[NodeId]> {
        self.membership.voters.as_deref()
    }

    /// Returns the nodes that take part in the view log alone, in ascending order: they are in no group and hold no
    /// state.
    pub fn witnesses(&self) -> &[NodeId] {
        &self.membership.witnesses
    }

    /// Tells whether this node is a witness.
    pub fn is_witness(&self) -> bool {
        self.membership.witnesses.contains(&self.id)
    }

    /// Returns the name of the rack, power supply or host with which this node may fail. Empty if none is configured.
    pub fn rack(&self) -> &str {
        &self.membership.rack
    }
}
