//! The configuration of membership: the first members, the way for others to join, and the voters.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use squall_fabric::NodeId;

use super::{
    Address, Config, ConfigError, ValuePlace,
    draft::{Given, check_name, node_ids, value_error},
    network::with_id,
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

/// The settings of membership as given, unchecked, without the members.
#[derive(Clone, Debug, Default)]
pub(super) struct MembershipDraft {
    pub(super) join: Option<Given<Vec<String>>>,
    pub(super) storage: Option<Given<PathBuf>>,
    pub(super) sign_log: Option<Given<PathBuf>>,
    pub(super) voters: Option<Given<Vec<u32>>>,
    pub(super) witnesses: Option<Given<Vec<u32>>>,
    pub(super) rack: Option<Given<String>>,
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

impl MembershipDraft {
    /// Tells whether nodes that are not listed may join.
    pub(super) fn is_open(&self) -> bool {
        self.join.is_some()
    }

    pub(super) fn check(&self, id: &Given<u32>, members: &[NodeId]) -> Result<Membership, ConfigError> {
        let me = NodeId(id.value);
        let witnesses = self.check_witnesses(members)?;
        let voters = self.check_voters(members, &witnesses)?;
        let is_listed = members.contains(&me) || witnesses.contains(&me);
        let join = match &self.join {
            // One file may be for all nodes: `join` concerns only the nodes that must join.
            Some(given) if !is_listed => contacts(given, me)?,
            Some(given) => contacts(given, me).map(|_| Vec::new())?,
            None if is_listed => Vec::new(),
            None => {
                let listed: Vec<u32> = members.iter().map(|member| member.0).collect();
                let problem = format!(
                    "is {}, which is not among the members {listed:?}: add it to `members`, give the id of one of them, or let it \
                     join a group that runs, `join = [\"10.0.0.1:7700\"]`",
                    me.0
                );
                return Err(id.error("id", problem));
            }
        };
        let empty = "is empty: give a directory, or leave it out to keep nothing across restarts";
        let storage = path(self.storage.as_ref(), "storage", me, empty)?;
        let empty = "is empty: give the file of a key that `squall keys log` has made, or leave it out to sign nothing";
        let sign_log = path(self.sign_log.as_ref(), "sign_log", me, empty)?;
        if let (Some(given), None) = (&self.sign_log, &storage) {
            let problem = "is given, and there is nowhere to keep a log: give a directory, `storage = \"state/{id}\"`";
            return Err(given.error("sign_log", problem));
        }
        let rack = self.rack.as_ref().map_or(Ok(String::new()), |given| match check_name(&given.value) {
            Ok(()) => Ok(given.value.clone()),
            Err(problem) => Err(given.error("rack", problem)),
        })?;
        Ok(Membership { join, storage, sign_log, voters, witnesses, rack })
    }

    fn check_witnesses(&self, members: &[NodeId]) -> Result<Vec<NodeId>, ConfigError> {
        let Some(given) = &self.witnesses else { return Ok(Vec::new()) };
        let witnesses = node_ids(given, "witnesses")?;
        if let Some(member) = witnesses.iter().find(|witness| members.contains(witness)) {
            let problem = format!("lists {}, which is a member: a witness has no part in any group", member.0);
            return Err(given.error("witnesses", problem));
        }
        if witnesses.len() >= VOTERS {
            let problem = format!("lists {} nodes: give fewer than {VOTERS}, mostly 1", witnesses.len());
            return Err(given.error("witnesses", problem));
        }
        Ok(witnesses)
    }

    fn check_voters(&self, members: &[NodeId], witnesses: &[NodeId]) -> Result<Option<Vec<NodeId>>, ConfigError> {
        let Some(given) = &self.voters else {
            // Witnesses vote, since they have no other purpose.
            let places = VOTERS - witnesses.len();
            let fit = members.len().min(places);
            let even = usize::from((fit + witnesses.len()).is_multiple_of(2));
            let chosen = members.iter().take(fit - even.min(fit)).chain(witnesses).copied().collect();
            return Ok((!witnesses.is_empty() && !members.is_empty()).then_some(chosen));
        };
        let voters = node_ids(given, "voters")?;
        if voters.len().is_multiple_of(2) || voters.len() > MAX_VOTERS {
            let problem = format!(
                "lists {} nodes: give an odd number up to {MAX_VOTERS}, since one more than an odd number survives no more losses",
                voters.len()
            );
            return Err(given.error("voters", problem));
        }
        let is_known = |voter: &NodeId| members.contains(voter) || witnesses.contains(voter) || self.is_open();
        if let Some(stranger) = voters.iter().find(|voter| !is_known(voter)) {
            let problem = format!(
                "lists {}, which is neither among `members` nor among `witnesses`: add it there or remove it",
                stranger.0
            );
            return Err(given.error("voters", problem));
        }
        Ok(Some(voters))
    }
}

/// Returns a path, in which `{id}` stands for this node's id.
fn path(given: Option<&Given<PathBuf>>, key: &str, me: NodeId, empty: &str) -> Result<Option<PathBuf>, ConfigError> {
    let Some(given) = given else { return Ok(None) };
    if given.value.as_os_str().is_empty() {
        return Err(given.error(key, empty));
    }
    let text = given.value.to_str().map(|text| with_id(text, me).into());
    Ok(Some(text.unwrap_or_else(|| given.value.clone())))
}

fn contacts(given: &Given<Vec<String>>, me: NodeId) -> Result<Vec<Contact>, ConfigError> {
    if !(1..=MAX_CONTACTS).contains(&given.value.len()) {
        let problem = format!(
            "lists {} nodes: give 1 to {MAX_CONTACTS} of a group that runs, such as \"10.0.0.1:7700\" or, on one host, an id",
            given.value.len()
        );
        return Err(given.error("join", problem));
    }
    let contact = |text: &String| {
        let text = text.trim();
        if let Ok(id) = text.parse::<u32>() {
            return Ok(Contact::Node(NodeId(id)));
        }
        let address = text.parse().map_err(|remedy| {
            given.error(
                "join",
                format!("is {text:?}: {remedy}; or the id of a node that is on this host or has an address here"),
            )
        })?;
        Ok(Contact::Address(address))
    };
    let contacts = given.value.iter().map(contact).collect::<Result<Vec<_>, _>>()?;
    if contacts == [Contact::Node(me)] {
        let problem = format!("is {}, this node itself: give one that runs in the group already", me.0);
        return Err(given.error("join", problem));
    }
    Ok(contacts)
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
    pub(super) fn check_on_host(&self, draft: &MembershipDraft, place: &ValuePlace) -> Result<(), ConfigError> {
        let address = self.join.iter().find_map(|contact| match contact {
            Contact::Address(address) => Some(address),
            Contact::Node(_) => None,
        });
        let Some(address) = address else { return Ok(()) };
        let place = draft.join.as_ref().map_or(place, |given| &given.place);
        let problem = format!(
            "is {address}, but in shared memory nodes are found by their ids: give the id of a node that runs on this host, or \
             another `fabric.backend` to all nodes"
        );
        Err(value_error(place, "join", problem))
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
