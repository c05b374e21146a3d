//! The handle to a simulated network, for its driver.

use std::{cell::RefCell, rc::Rc, time::Duration};

use super::{
    config::SimConfig,
    fabric::SimFabric,
    path::LinkProperties,
    queue::NodeIx,
    trace::{TraceEvent, Tracer},
    world::World,
};
use crate::{NodeId, Time};

/// A simulated network of nodes. Clones are handles to the same one. See the [module](super) for a driver's loop.
#[derive(Clone, derive_more::Debug)]
#[debug("SimNet(at {}, {} events)", self.now(), self.events())]
pub struct SimNet {
    world: Rc<RefCell<World>>,
}

impl SimNet {
    /// A network without nodes, at [`Time::ZERO`]. All its randomness comes from `seed`.
    pub fn new(config: SimConfig, seed: u64) -> SimNet {
        SimNet { world: Rc::new(RefCell::new(World::new(config, seed))) }
    }

    /// Starts `node` for the first time.
    ///
    /// # Panics
    ///
    /// When it was started before: see [`restart`](SimNet::restart).
    pub fn fabric(&self, node: NodeId) -> SimFabric {
        assert!(!self.world.borrow().by_id.contains_key(&node), "{node} was started before: restart it");
        let ix = self.world.borrow_mut().add_node(node);
        self.start(ix)
    }

    /// Starts a node again after [`crash`](SimNet::crash) or [`power_off`](SimNet::power_off), with a new incarnation.
    ///
    /// # Panics
    ///
    /// When the node is up, or never was.
    pub fn restart(&self, node: NodeId) -> SimFabric {
        let ix = self.ix(node).unwrap_or_else(|| panic!("{node} was never started"));
        assert!(!self.is_up(node), "{node} is up");
        self.start(ix)
    }

    fn start(&self, ix: NodeIx) -> SimFabric {
        let mut world = self.world.borrow_mut();
        let node = world.node(ix);
        node.up = true;
        node.incarnation += 1;
        let id = node.id;
        world.trace(|_| TraceEvent::Started(id));
        world.notice(ix);
        drop(world);
        SimFabric::new(self.world.clone(), ix)
    }

    fn ix(&self, node: NodeId) -> Option<NodeIx> {
        self.world.borrow().by_id.get(&node).copied()
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.world.borrow().now
    }

    /// The time of the next event, if there is one.
    pub fn next_event(&self) -> Option<Time> {
        self.world.borrow().queue.next_time()
    }

    /// Lets time pass until a node has something to look at, or until `limit`. Returns the time then.
    ///
    /// Appends to `ready` the nodes that the driver is to step: those for which there are completions, or in whose
    /// memory bytes were placed, and now and then one for which nothing happened. `ready` stays empty when `limit` is
    /// reached, and when nothing is left to happen ([`Time::MAX`] for no limit; time then stays where it is). Nodes may
    /// be stepped at any other time too.
    pub fn advance(&self, limit: Time, ready: &mut Vec<NodeId>) -> Time {
        let mut world = self.world.borrow_mut();
        world.advance(limit, ready);
        world.now
    }

    /// Whether the node's process is to be stepped: it is up and not paused.
    pub fn runs(&self, node: NodeId) -> bool {
        self.ix(node).is_some_and(|ix| {
            let mut world = self.world.borrow_mut();
            let node = world.node(ix);
            node.up && !node.paused
        })
    }

    /// Whether the node's process exists.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.ix(node).is_some_and(|ix| self.world.borrow_mut().node(ix).up)
    }

    /// Stops a node's process from running, as `SIGSTOP` does: it is not reported as ready.
    ///
    /// Its NIC goes on: writes land in its memory, posted work proceeds, no endpoint breaks. (A network whose endpoints
    /// need the process to run breaks them: [cut](SimNet::cut) the node off as well.)
    pub fn pause(&self, node: NodeId) {
        let Some(ix) = self.ix(node) else { return };
        let mut world = self.world.borrow_mut();
        if world.node(ix).up && !std::mem::replace(&mut world.node(ix).paused, true) {
            world.trace(|_| TraceEvent::Paused(node));
        }
    }

    /// Lets a paused process run again.
    pub fn resume(&self, node: NodeId) {
        let Some(ix) = self.ix(node) else { return };
        let mut world = self.world.borrow_mut();
        if std::mem::replace(&mut world.node(ix).paused, false) {
            world.trace(|_| TraceEvent::Resumed(node));
            world.notice(ix);
        }
    }

    /// Ends a node's process, as `SIGKILL` does.
    ///
    /// Its posted work gets out in part: on each endpoint some first operations, and of the last of these perhaps only
    /// some words. Its peers' endpoints break with [`ProcessGone`](crate::BreakReason::ProcessGone) at different times
    /// within the failure timeout. The driver drops the node's own state.
    pub fn crash(&self, node: NodeId) {
        self.end(node, true);
    }

    /// Ends a node's host: as [`crash`](SimNet::crash), but the peers are not told, and their endpoints break as
    /// [`Unreachable`](crate::BreakReason::Unreachable).
    pub fn power_off(&self, node: NodeId) {
        self.end(node, false);
    }

    fn end(&self, node: NodeId, seen: bool) {
        if let Some(ix) = self.ix(node)
            && self.is_up(node)
        {
            self.world.borrow_mut().crash(ix, seen);
        }
    }

    /// Cuts two nodes off from each other. Operations on the way stall; their endpoints break as
    /// [`Unreachable`](crate::BreakReason::Unreachable) on both sides, within the failure timeout, unless the cut is
    /// [healed](SimNet::heal) before.
    pub fn cut(&self, a: NodeId, b: NodeId) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// Cuts one direction: operations of `from` do not reach `to`. Endpoints break on both sides as with
    /// [`cut`](SimNet::cut).
    pub fn cut_one_way(&self, from: NodeId, to: NodeId) {
        self.world.borrow_mut().cut(from, to);
    }

    /// Heals both directions: delayed operations get through on the endpoints that are left, and connects are tried
    /// again.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        let mut world = self.world.borrow_mut();
        world.heal(a, b);
        world.heal(b, a);
    }

    /// Whether operations of `from` do not reach `to`.
    pub fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.world.borrow().network.is_cut(from, to).is_some()
    }

    /// The time from `from` to `to`, if nothing delays an operation.
    pub fn latency(&self, from: NodeId, to: NodeId) -> Duration {
        let world = self.world.borrow();
        world.network.latency(from, to).unwrap_or(world.config.latency)
    }

    /// Gives the direction from `from` to `to` another rate or latency. Applies to work that is posted from now on.
    pub fn set_link(&self, from: NodeId, to: NodeId, link: LinkProperties) {
        self.world.borrow_mut().network.set_link(from, to, link);
    }

    /// Reports events to a tracer from now on, or no longer.
    pub fn set_trace(&self, tracer: Option<Tracer>) {
        self.world.borrow_mut().tracer = tracer;
    }

    /// The number of events that were processed: the cost of a run.
    pub fn events(&self) -> u64 {
        self.world.borrow().events
    }
}
