//! 1Pipe itself, as one of the orders that are compared.

use squall_fabric::{Completion, Fabric, Time};

use super::TotalOrder;
use crate::{Clock, Delivery, Message, Mode, OnePipe, ScatterError, ScatteringId};

/// One of the two orders of a [`OnePipe`] alone.
#[derive(Debug)]
pub struct OneMode<C> {
    pipe: OnePipe<C>,
    mode: Mode,
}

impl<C> OneMode<C> {
    /// The order of a rank's messages in a mode.
    pub fn new(pipe: OnePipe<C>, mode: Mode) -> OneMode<C> {
        OneMode { pipe, mode }
    }
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
