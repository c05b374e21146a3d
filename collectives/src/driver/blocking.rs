//! Operations that return when they are over.

use squall_fabric::{Fabric, Wait};

use super::{Collectives, CommunicatorId};
use crate::{CollectiveError, Element, Reduction};

/// Operations that return when they are over on this rank. Each is described, with its vectors, at the
/// [communicator](crate::Communicator)'s method that starts it.
///
/// # Errors
///
/// The errors are the communicator's. None of them leaves an operation behind, except that other ranks wait for one
/// that was refused here.
impl<F: Fabric + Wait> Collectives<F> {
    /// Returns once all ranks have called it. Fails if a rank has failed, if the communicator was closed, or if an
    /// algorithm was set that can't carry out the operation.
    pub fn barrier(&mut self, on: CommunicatorId) -> Result<(), CollectiveError> {
        let started = self.start(on, |communicator, fabric| communicator.start_barrier(fabric))?;
        self.until_over(&started)
    }

    /// Gives every rank the root's vector. Fails as [`barrier`](Collectives::barrier) does, and if there is no rank
    /// `root`, or no memory or RDMC group for a long vector.
    pub fn broadcast<T: Element>(
        &mut self,
        on: CommunicatorId,
        root: usize,
        vector: Vec<T>,
    ) -> Result<Vec<T>, CollectiveError> {
        let started = self.start(on, |communicator, fabric| communicator.start_broadcast(fabric, root, vector))?;
        self.wait(started)
    }

    /// Combines the ranks' vectors, element by element. The root's result is the vector, the others' is empty. Fails as
    /// [`barrier`](Collectives::barrier) does, and if there is no rank `root`, or if the reduction is not defined on
    /// such elements.
    pub fn reduce<T: Element>(
        &mut self,
        on: CommunicatorId,
        root: usize,
        reduction: &Reduction<T>,
        vector: Vec<T>,
    ) -> Result<Vec<T>, CollectiveError> {
        let started =
            self.start(on, |communicator, fabric| communicator.start_reduce(fabric, root, reduction, vector))?;
        self.wait(started)
    }

    /// Combines the ranks' vectors, element by element, and gives every rank the result. Fails as
    /// [`barrier`](Collectives::barrier) does, and if the reduction is not defined on such elements, or needs another
    /// order than the algorithm that was set has.
    pub fn allreduce<T: Element>(
        &mut self,
        on: CommunicatorId,
        reduction: &Reduction<T>,
        vector: Vec<T>,
    ) -> Result<Vec<T>, CollectiveError> {
        let started = self.start(on, |communicator, fabric| communicator.start_allreduce(fabric, reduction, vector))?;
        self.wait(started)
    }

    /// Combines the ranks' vectors, of n blocks, and gives rank r the r-th block. Fails as
    /// [`barrier`](Collectives::barrier) does, and if the vector has no n equal blocks, or if the reduction is not
    /// defined on such elements.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        on: CommunicatorId,
        reduction: &Reduction<T>,
        vector: Vec<T>,
    ) -> Result<Vec<T>, CollectiveError> {
        let started =
            self.start(on, |communicator, fabric| communicator.start_reduce_scatter(fabric, reduction, vector))?;
        self.wait(started)
    }

    /// Brings the ranks' vectors to the root, in rank order; the others' result is empty. Fails as
    /// [`barrier`](Collectives::barrier) does, and if there is no rank `root`.
    pub fn gather<T: Element>(
        &mut self,
        on: CommunicatorId,
        root: usize,
        vector: Vec<T>,
    ) -> Result<Vec<T>, CollectiveError> {
        let started = self.start(on, |communicator, fabric| communicator.start_gather(fabric, root, vector))?;
        self.wait(started)
    }

    /// Gives each rank its block of the root's vector; the other ranks' vectors have the length of a block. Fails as
    /// [`barrier`](Collectives::barrier) does, and if there is no rank `root`, or if the root's vector has no n equal
    /// blocks.
    pub fn scatter<T: Element>(
        &mut self,
        on: CommunicatorId,
        root: usize,
        vector: Vec<T>,
    ) -> Result<Vec<T>, CollectiveError> {
        let started = self.start(on, |communicator, fabric| communicator.start_scatter(fabric, root, vector))?;
        self.wait(started)
    }

    /// Gives every rank the vectors of all, in rank order. Fails as [`barrier`](Collectives::barrier) does.
    pub fn allgather<T: Element>(&mut self, on: CommunicatorId, vector: Vec<T>) -> Result<Vec<T>, CollectiveError> {
        let started = self.start(on, |communicator, fabric| communicator.start_allgather(fabric, vector))?;
        self.wait(started)
    }

    /// Swaps blocks: each rank's vector has a block for each rank, and its result is each rank's block for it, in rank
    /// order. Fails as [`barrier`](Collectives::barrier) does, and if the vector has no n equal blocks.
    pub fn all_to_all<T: Element>(&mut self, on: CommunicatorId, vector: Vec<T>) -> Result<Vec<T>, CollectiveError> {
        let started = self.start(on, |communicator, fabric| communicator.start_all_to_all(fabric, vector))?;
        self.wait(started)
    }
}
