//! A rank of a 1Pipe group.

use std::sync::Arc;

use squall_fabric::Fabric;

use crate::{Clock, CreateError, Gate, OnePipeConfig, engine::Engine, stamps::Clocked};

/// One rank's part in a group whose scatterings all ranks deliver in the order of their timestamps.
///
/// Its methods never block. [`step`](OnePipe::step) makes progress. Its driver polls the fabric, hands over
/// completions, steps, delivers and [attends](OnePipe::attend) to failures whenever something arrives, and at the
/// [deadline](OnePipe::deadline).
pub type OnePipe<C> = Engine<Clocked<C>>;

impl<C: Clock> OnePipe<C> {
    /// Registers the memory, and starts to connect this node to all other ranks. Scatterings may be sent at once: they
    /// wait for connections.
    pub fn create(fabric: &mut impl Fabric, config: OnePipeConfig, clock: C) -> Result<OnePipe<C>, CreateError> {
        OnePipe::with_gate(fabric, config, clock, Arc::default())
    }

    /// [Creates](OnePipe::create) a rank with the gate that its [controller closes](crate::Controller::gate), which no
    /// other rank has or has had.
    pub fn with_gate(
        fabric: &mut impl Fabric,
        config: OnePipeConfig,
        clock: C,
        gate: Arc<Gate>,
    ) -> Result<OnePipe<C>, CreateError> {
        Engine::new(fabric, config, Clocked::new(clock), gate, "squall 1pipe 1")
    }
}
