//! Other total orders for comparison (the paper's Figure 8), with the same batching and the same rings.

mod lamport;
mod one_mode;
mod sequencer;
mod token;

pub use lamport::Lamport;
pub use one_mode::OneMode;
pub use sequencer::Sequencer;
pub use token::TokenRing;

use squall_fabric::{Completion, Fabric, Time};

use crate::{Delivery, Message, ScatterError, ScatteringId};

/// A rank's part in a total order of scatterings, by 1Pipe or by one of its rivals.
///
/// As with [`OnePipe`](crate::OnePipe), no method blocks.
pub trait TotalOrder {
    /// Takes a scattering, to be sent as soon as there is room for it at all its receivers.
    fn scatter(&mut self, now: Time, messages: &[Message<'_>]) -> Result<ScatteringId, ScatterError>;

    /// Makes the progress that is possible now. Returns whether there was any.
    fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> bool;

    /// Takes note of a completion, if it is of this order's endpoints. Returns whether it is.
    fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool;

    /// Hands out messages whose turn has come, at most `max`. Returns how many.
    ///
    /// The meaning of [`Delivery::stamp`] depends on the order: it is the same at all receivers of a scattering, and
    /// (stamp, sender) increases.
    fn deliver(&mut self, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> usize;

    /// The time by which [`step`](TotalOrder::step) has something to do, even if nothing arrives.
    fn deadline(&self) -> Time;

    /// Whether all other ranks were reached and none is lost.
    fn is_connected(&self) -> bool;

    /// Closes all connections.
    fn disconnect(&mut self, fabric: &mut impl Fabric);
}

/// Implements [`TotalOrder`] for a struct by its field that is an engine.
macro_rules! total_order_by {
    ($order:ty, $engine:ident) => {
        impl TotalOrder for $order {
            fn scatter(&mut self, now: Time, messages: &[Message<'_>]) -> Result<ScatteringId, ScatterError> {
                self.$engine.scatter(now, Mode::BestEffort, messages)
            }

            fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
                self.$engine.step(fabric, now)
            }

            fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
                self.$engine.on_completion(fabric, now, completion)
            }

            fn deliver(&mut self, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> usize {
                self.$engine.deliver(Mode::BestEffort, max, sink)
            }

            fn deadline(&self) -> Time {
                self.$engine.deadline()
            }

            fn is_connected(&self) -> bool {
                self.$engine.is_connected()
            }

            fn disconnect(&mut self, fabric: &mut impl Fabric) {
                self.$engine.disconnect(fabric);
            }
        }
    };
}
use total_order_by;
