//! A rank of a 1Pipe group.

use squall_fabric::{Completion, Fabric, Time};

use crate::{
    Clock, Controller, CreateError, Delivery, Event, Message, Mode, OnePipeConfig, ScatterError, ScatteringId,
    baseline::TotalOrder,
};

/// One rank's part in a group whose scatterings all ranks deliver in the order of their timestamps.
///
/// Its methods never block. [`step`](OnePipe::step) makes progress: whoever drives it polls the fabric, hands over
/// completions, steps, delivers and [attends](OnePipe::attend) to failures whenever something arrives, and at the
/// [deadline](OnePipe::deadline).
#[derive(Debug)]
pub struct OnePipe<C> {
    config: OnePipeConfig,
    me: usize,
    clock: C,
}

impl<C: Clock> OnePipe<C> {
    /// Registers the memory, and starts to connect this node to all other ranks. Scatterings may be sent at once: they
    /// wait for connections.
    pub fn create(fabric: &mut impl Fabric, config: OnePipeConfig, clock: C) -> Result<OnePipe<C>, CreateError> {
        let me = config.check(fabric.node())?;
        Ok(OnePipe { config, me, clock })
    }

    /// What it was made from.
    pub fn config(&self) -> &OnePipeConfig {
        &self.config
    }

    /// This node's rank.
    pub fn rank(&self) -> usize {
        self.me
    }

    /// How many ranks there were in the beginning.
    pub fn ranks(&self) -> usize {
        self.config.nodes.len()
    }

    /// The epoch that the next settlement ends.
    pub fn epoch(&self) -> u64 {
        self.config.epoch
    }

    /// Whether all other ranks that were not removed were reached, and none is lost.
    pub fn is_connected(&self) -> bool {
        false
    }

    /// Whether a rank was reached, and is neither lost nor removed.
    pub fn is_reached(&self, rank: usize) -> bool {
        rank == self.me
    }

    /// The barrier of a mode: all messages with lower wide timestamps may be delivered, and none is yet to come.
    pub fn barrier(&self, _mode: Mode) -> u64 {
        0
    }

    /// The longest message that fits, in bytes.
    pub fn max_message(&self) -> usize {
        self.config.ring_bytes / 4 - 16
    }

    /// Takes a scattering. It gets its timestamp, and is sent, as soon as there is room for it at all its receivers; until
    /// then it waits, and keeps what room it has got.
    pub fn scatter(
        &mut self,
        now: Time,
        _mode: Mode,
        _messages: &[Message<'_>],
    ) -> Result<ScatteringId, ScatterError> {
        let _ = self.clock.now(now);
        Err(ScatterError::Ended)
    }

    /// Reads what has arrived, sends what waits, acknowledges, and tells its barrier if it is time to. Returns whether there
    /// was anything to do.
    pub fn step(&mut self, _fabric: &mut impl Fabric, _now: Time) -> bool {
        false
    }

    /// Takes note of a completion, if it is of this group's endpoints. Returns whether it is.
    pub fn on_completion(&mut self, _fabric: &mut impl Fabric, _now: Time, _completion: &Completion) -> bool {
        false
    }

    /// Hands out messages of a mode whose turn has come, in their order, at most `max`. Returns how many.
    pub fn deliver(&mut self, _mode: Mode, _max: usize, _sink: &mut impl FnMut(Delivery<'_>)) -> usize {
        0
    }

    /// What happened since the last call.
    pub fn next_event(&mut self) -> Option<Event> {
        None
    }

    /// When [`step`](OnePipe::step) has something to do at the latest, if nothing arrives: [`Time::MAX`] in a group that
    /// is idle.
    pub fn deadline(&self) -> Time {
        Time::MAX
    }

    /// Tells the controller whom this rank suspects, and does what it says.
    pub fn attend(&mut self, _fabric: &mut impl Fabric, _now: Time, _controller: &mut impl Controller) {}

    /// Closes all connections: to others, this rank has failed.
    pub fn disconnect(&mut self, _fabric: &mut impl Fabric) {}

    /// The order of one mode alone, to compare with others.
    pub fn only(self, mode: Mode) -> OneMode<C> {
        OneMode { pipe: self, mode }
    }
}

/// One of the two orders of a [`OnePipe`], as a [`TotalOrder`].
#[derive(Debug)]
pub struct OneMode<C> {
    pipe: OnePipe<C>,
    mode: Mode,
}

impl<C: Clock> TotalOrder for OneMode<C> {
    fn scatter(&mut self, now: Time, messages: &[Message<'_>]) -> Result<ScatteringId, ScatterError> {
        self.pipe.scatter(now, self.mode, messages)
    }

    fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
        self.pipe.step(fabric, now)
    }

    fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        self.pipe.on_completion(fabric, now, completion)
    }

    fn deliver(&mut self, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> usize {
        self.pipe.deliver(self.mode, max, sink)
    }

    fn deadline(&self) -> Time {
        self.pipe.deadline()
    }

    fn is_connected(&self) -> bool {
        self.pipe.is_connected()
    }

    fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.pipe.disconnect(fabric);
    }
}
