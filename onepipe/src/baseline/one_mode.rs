//! One mode of a rank, as one of the orders that are compared.

use squall_fabric::{Completion, Fabric, Time};

use super::TotalOrder;
use crate::{Delivery, Message, Mode, ScatterError, ScatteringId, engine::Engine, stamps::Stamps};

/// One of the two orders of a [`OnePipe`](crate::OnePipe) alone, or of a rank with timestamps of another source.
#[derive(Debug)]
pub struct OneMode<S> {
    engine: Engine<S>,
    mode: Mode,
}

impl<S> OneMode<S> {
    /// The order of a rank's messages in a mode.
    pub fn new(engine: Engine<S>, mode: Mode) -> OneMode<S> {
        OneMode { engine, mode }
    }
}

impl<S: Stamps> TotalOrder for OneMode<S> {
    fn scatter(&mut self, now: Time, messages: &[Message<'_>]) -> Result<ScatteringId, ScatterError> {
        self.engine.scatter(now, self.mode, messages)
    }

    fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
        self.engine.step(fabric, now)
    }

    fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        self.engine.on_completion(fabric, now, completion)
    }

    fn deliver(&mut self, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> usize {
        self.engine.deliver(self.mode, max, sink)
    }

    fn deadline(&self) -> Time {
        self.engine.deadline()
    }

    fn is_connected(&self) -> bool {
        self.engine.is_connected()
    }

    fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.engine.disconnect(fabric);
    }
}
