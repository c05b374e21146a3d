//! Many groups on one fabric.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use squall_fabric::{Completion, EndpointId, Fabric};

use crate::{
    config::{CreateError, GroupConfig, GroupId},
    events::{Event, Hearsay, Interrupted},
    group::Group,
};

/// The groups of one node, on one fabric and one completion queue.
#[derive(Debug, Default)]
pub struct Rdmc {
    groups: BTreeMap<GroupId, Group>,
    /// The groups for which a step may have something to do; the others cost nothing.
    active: BTreeSet<GroupId>,
    /// The groups that the application is done with, whose members still have to be told something.
    leaving: Vec<Group>,
    /// The group of each endpoint's completions. Endpoints of a leaving group are not here.
    routes: HashMap<EndpointId, GroupId>,
    events: Vec<Event>,
}

impl Rdmc {
    /// Makes a set without groups.
    pub fn new() -> Rdmc {
        Rdmc::default()
    }

    /// Creates this node's part of a group: see [`Group::create`]. Fails as that does, and if there is
    /// a group of this id already.
    pub fn create(&mut self, fabric: &mut impl Fabric, config: GroupConfig) -> Result<(), CreateError> {
        self.refuse_twice(config.id)?;
        let group = Group::create(fabric, config)?;
        self.add(group);
        Ok(())
    }

    /// Creates this node's part of a group that completes an interrupted message: see [`Group::resume`]. Fails as that
    /// does, and if there is a group of this id already.
    pub fn resume(
        &mut self,
        fabric: &mut impl Fabric,
        config: GroupConfig,
        message: Interrupted,
    ) -> Result<(), CreateError> {
        self.refuse_twice(config.id)?;
        let group = Group::resume(fabric, config, message)?;
        self.add(group);
        Ok(())
    }

    fn refuse_twice(&self, id: GroupId) -> Result<(), CreateError> {
        let leaving = self.leaving.iter().any(|group| group.id() == id);
        if leaving || self.groups.contains_key(&id) { Err(CreateError::Exists(id)) } else { Ok(()) }
    }

    fn add(&mut self, group: Group) {
        self.routes.extend(group.endpoints().map(|endpoint| (endpoint, group.id())));
        self.active.insert(group.id());
        self.groups.insert(group.id(), group);
    }

    /// A group, unless it was removed.
    pub fn group(&mut self, id: GroupId) -> Option<&mut Group> {
        let group = self.groups.get_mut(&id)?;
        // The caller may ask something of it.
        self.active.insert(id);
        Some(group)
    }

    /// The failure that a group has only heard of: see [`Group::hearsay`].
    pub fn hearsay(&self, id: GroupId) -> Option<Hearsay> {
        self.groups.get(&id)?.hearsay()
    }

    /// Forgets a group, and [leaves](Group::leave) it if it has not ended. The others still hear the reason from here,
    /// as long as this is stepped.
    pub fn remove(&mut self, fabric: &mut impl Fabric, id: GroupId) -> Vec<Interrupted> {
        let Some(mut group) = self.groups.remove(&id) else { return Vec::new() };
        self.active.remove(&id);
        group.endpoints().for_each(|endpoint| _ = self.routes.remove(&endpoint));
        let interrupted = group.leave(fabric);
        self.leaving.push(group);
        interrupted
    }

    /// Whether no group is left, and no member has to hear anything from this node any more: see [`Group::is_quiet`].
    pub fn is_quiet(&self) -> bool {
        self.groups.is_empty() && self.leaving.is_empty()
    }

    /// Takes note of a completion. Returns whether it is one of these groups'.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion) -> bool {
        let Some(endpoint) = completion.endpoint() else { return false };
        let group = match self.routes.get(&endpoint) {
            Some(&id) => {
                self.active.insert(id);
                self.groups.get_mut(&id)
            }
            None => self.leaving.iter_mut().find(|group| group.endpoints().any(|own| own == endpoint)),
        };
        let Some(group) = group else { return false };
        group.on_completion(fabric, completion);
        true
    }

    /// Steps all groups that may have something to do: see [`Group::step`]. Returns whether anything changed.
    pub fn step(&mut self, fabric: &mut impl Fabric, out: &mut Vec<(GroupId, Event)>) -> bool {
        let mut any = false;
        let Rdmc { groups, active, routes, events, .. } = self;
        active.retain(|&id| {
            let Some(group) = groups.get_mut(&id) else { return false };
            let resuming = !group.has_links();
            let busy = group.step(fabric, events);
            if resuming && group.has_links() {
                routes.extend(group.endpoints().map(|endpoint| (endpoint, id)));
            }
            out.extend(events.drain(..).map(|event| (id, event)));
            any |= busy;
            busy || !group.is_idle()
        });
        for group in &mut self.leaving {
            any |= group.step(fabric, &mut self.events);
            self.events.clear();
            if group.is_quiet() {
                group.disconnect(fabric);
            }
        }
        self.leaving.retain(|group| !group.is_quiet());
        any
    }
}
