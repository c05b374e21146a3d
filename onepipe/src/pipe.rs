//! A rank of a 1Pipe group.

use std::sync::Arc;

use squall_fabric::{Completion, Fabric, Time};

use crate::{
    Clock, Controller, CreateError, Delivery, Gate, Message, Mode, OnePipeConfig, PipeEvent, ScatterError,
    ScatteringId, engine::Engine, stamps::Clocked,
};

/// One rank's part in a group whose scatterings all ranks deliver in the order of their timestamps.
///
/// Its methods never block. [`step`](OnePipe::step) makes progress. Its driver polls the fabric, hands over
/// completions, steps, delivers and [attends](OnePipe::attend) to failures whenever something arrives, and at the
/// [deadline](OnePipe::deadline).
#[derive(Debug)]
pub struct OnePipe<C> {
    engine: Engine<Clocked<C>>,
}

impl<C: Clock> OnePipe<C> {
    /// Registers the memory, and starts to connect this node to all other ranks. Scatterings may be sent at once: they
    /// wait for connections.
    ///
    /// Fails if the nodes are not different ones with this one among them, if the rings or racks are not possible, or
    /// if the memory can't be registered.
    pub fn create(fabric: &mut impl Fabric, config: OnePipeConfig, clock: C) -> Result<OnePipe<C>, CreateError> {
        OnePipe::with_gate(fabric, config, clock, Arc::default())
    }

    /// [Creates](OnePipe::create) a rank with the gate that its [controller closes](Controller::gate), which no other
    /// rank has or has had. Fails as [`create`](OnePipe::create) does.
    pub fn with_gate(
        fabric: &mut impl Fabric,
        config: OnePipeConfig,
        clock: C,
        gate: Arc<Gate>,
    ) -> Result<OnePipe<C>, CreateError> {
        let engine = Engine::create(fabric, config, Clocked::new(clock), "squall 1pipe 1")?;
        Ok(OnePipe { engine: engine.with_gate(gate) })
    }

    /// The rank's configuration.
    pub fn config(&self) -> &OnePipeConfig {
        &self.engine.config
    }

    /// This node's rank.
    pub fn rank(&self) -> usize {
        self.engine.rank()
    }

    /// The number of ranks in the beginning.
    pub fn ranks(&self) -> usize {
        self.engine.config.nodes.len()
    }

    /// The epoch that the next settlement ends.
    pub fn epoch(&self) -> u64 {
        self.engine.epoch()
    }

    /// Whether all other ranks that were not removed were reached, and none is lost.
    pub fn is_connected(&self) -> bool {
        self.engine.is_connected()
    }

    /// Whether a settlement has removed this rank, or it has left.
    pub fn has_ended(&self) -> bool {
        self.engine.has_ended()
    }

    /// A rank with which this one can't work together, and the reason: another configuration, for example. It was never
    /// reached, and [`is_connected`](OnePipe::is_connected) waits for it in vain; the controller does not hear of it.
    pub fn refused(&self) -> Option<(usize, &str)> {
        self.engine.refused()
    }

    /// Whether a rank was reached, and is neither lost nor removed.
    pub fn is_reached(&self, rank: usize) -> bool {
        self.engine.is_reached(rank)
    }

    /// The barrier of a mode: all messages with lower wide timestamps may be delivered, and none is yet to come.
    pub fn barrier(&self, mode: Mode) -> u64 {
        self.engine.barrier(mode)
    }

    /// The rank that must act next for this one to get any further in a mode, if it waits for one. That rank is to tell
    /// its barrier, to acknowledge, or to take messages so that there is room (then it may be this rank itself).
    ///
    /// While messages flow, it changes all the time. If it is the same for seconds and nothing is delivered, that rank
    /// hangs, though its process is alive: no rank suspects it for that, and the application decides what to do. In a
    /// [hierarchy](crate::Topology::Hierarchy) it is a neighbour in the tree, which may wait for another in turn.
    pub fn waits_for(&self, mode: Mode) -> Option<usize> {
        self.engine.waits_for(mode)
    }

    /// The longest message that fits, in bytes.
    pub fn max_message(&self) -> usize {
        self.engine.max_message()
    }

    /// Takes a scattering. It gets its timestamp, and is sent, as soon as there is room for it at all its receivers;
    /// until then it waits, and keeps the room that it has got.
    ///
    /// Fails if it is empty, or has a message for a rank that there is not or that was removed, two messages for one
    /// rank, or a message that is too long. Fails, too, if too many bytes wait for room, or if this rank is no longer
    /// in its group.
    pub fn scatter(&mut self, now: Time, mode: Mode, messages: &[Message<'_>]) -> Result<ScatteringId, ScatterError> {
        self.engine.scatter(now, mode, messages)
    }

    /// Reads what has arrived, sends what waits, acknowledges, and tells its barrier if it is time to. Returns whether
    /// there was anything to do.
    pub fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
        self.engine.step(fabric, now)
    }

    /// Takes note of a completion, if it is of this group's endpoints. Returns whether it is.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        self.engine.on_completion(fabric, now, completion)
    }

    /// Hands out messages of a mode whose turn has come, in their order, at most `max`. Returns how many.
    pub fn deliver(&mut self, mode: Mode, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> usize {
        self.engine.deliver(mode, max, sink)
    }

    /// The next event that was not returned yet.
    pub fn next_event(&mut self) -> Option<PipeEvent> {
        self.engine.next_event()
    }

    /// The time by which [`step`](OnePipe::step) has something to do, even if nothing arrives: [`Time::MAX`] in a group
    /// that is idle.
    pub fn deadline(&self) -> Time {
        self.engine.deadline()
    }

    /// Tells the controller which ranks this one suspects, and carries out its directives. Returns whether there were
    /// any.
    ///
    /// # Panics
    ///
    /// If the controller closes a [gate](Controller::gate), but not [this rank's](OnePipe::with_gate).
    pub fn attend(&mut self, fabric: &mut impl Fabric, now: Time, controller: &mut impl Controller) -> bool {
        self.engine.attend(fabric, now, controller)
    }

    /// Closes all connections: to others, this rank has failed.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.engine.disconnect(fabric);
    }
}
