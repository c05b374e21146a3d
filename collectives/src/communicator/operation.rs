//! The start of operations, and their results.

use std::marker::PhantomData;

use squall_fabric::Fabric;

use super::Communicator;
use crate::{Collective, CollectiveError, Element, Reduction};

/// An operation that was started; its result is a vector of `T`, or nothing.
#[derive(Debug)]
#[must_use = "an operation is over when its test says so"]
pub struct Operation<T = ()> {
    pub(crate) number: u64,
    result: PhantomData<fn() -> T>,
}

impl<T> Operation<T> {
    pub(crate) fn new(number: u64) -> Operation<T> {
        Operation { number, result: PhantomData }
    }
}

/// The operations. Starting one also does at once whatever is possible.
///
/// # Errors
///
/// All fail when the communicator has [failed](CollectiveError::Failed) or was
/// [disconnected](CollectiveError::Disconnected). They fail when as many operations are under way as it has lanes
/// ([`CollectiveError::Busy`]: a later call with the same values succeeds). They fail when an algorithm was
/// [set](Communicator::set_algorithm) that can't carry them out. An operation that was refused has not been started:
/// the other ranks will wait for it.
impl Communicator {
    /// Starts a barrier, which is over on no rank before all have started it.
    pub fn start_barrier(&mut self, fabric: &mut impl Fabric) -> Result<Operation, CollectiveError> {
        self.start(fabric, (Collective::Barrier, 0, 0), true, None, u8::wrap(Vec::new()))
    }

    /// Gives every rank the root's vector. All ranks give vectors of the same length; the root's values count.
    ///
    /// [By RDMC](crate::Algorithm::Rdmc), it may also fail for lack of [memory](CollectiveError::Memory) or of a
    /// [group](CollectiveError::Group).
    pub fn start_broadcast<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        root: usize,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        let bytes = size_of_val(&vector[..]);
        self.start(fabric, (Collective::Broadcast, root, bytes), true, None, T::wrap(vector))
    }

    /// Combines the ranks' vectors, of the same length, element by element, in rank order. The root's result is the
    /// vector, the others' is empty.
    pub fn start_reduce<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        root: usize,
        reduction: &Reduction<T>,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        self.start_reduction(fabric, Collective::Reduce, root, reduction, vector)
    }

    /// Combines the ranks' vectors, of the same length, element by element, and gives every rank the result.
    pub fn start_allreduce<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        reduction: &Reduction<T>,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        self.start_reduction(fabric, Collective::Allreduce, 0, reduction, vector)
    }

    /// Combines the ranks' vectors of n · b elements, in rank order, and gives rank r the elements from r · b to (r +
    /// 1) · b.
    pub fn start_reduce_scatter<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        reduction: &Reduction<T>,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        self.start_reduction(fabric, Collective::ReduceScatter, 0, reduction, vector)
    }

    /// Brings the ranks' vectors, of the same length, to the root: its result is all of them, in rank order; the
    /// others' is empty.
    pub fn start_gather<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        root: usize,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        self.check_start()?;
        let bytes = size_of_val(&vector[..]);
        let vector = if self.me == root { spread(vector, self.ranks(), self.me) } else { vector };
        self.start(fabric, (Collective::Gather, root, bytes), true, None, T::wrap(vector))
    }

    /// Gives each rank one of the n equal blocks of the root's `vector`, in rank order. The other ranks' vectors have
    /// the length of a block, and their values do not count.
    pub fn start_scatter<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        root: usize,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        let mut bytes = size_of_val(&vector[..]);
        if self.me == root {
            self.check_blocks(Collective::Scatter, &vector)?;
            bytes /= self.ranks();
        }
        self.start(fabric, (Collective::Scatter, root, bytes), true, None, T::wrap(vector))
    }

    /// Gives every rank the vectors, of the same length, of all ranks, in rank order.
    pub fn start_allgather<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        self.check_start()?;
        let bytes = size_of_val(&vector[..]);
        let vector = spread(vector, self.ranks(), self.me);
        self.start(fabric, (Collective::Allgather, 0, bytes), true, None, T::wrap(vector))
    }

    /// Swaps blocks between all ranks. Each rank's vector has n equal blocks; its result is each rank's block for it,
    /// in rank order.
    pub fn start_all_to_all<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        self.check_blocks(Collective::AllToAll, &vector)?;
        let bytes = size_of_val(&vector[..]) / self.ranks();
        self.start(fabric, (Collective::AllToAll, 0, bytes), true, None, T::wrap(vector))
    }

    /// Takes the result of an operation that is over. Fails as [`test`](Communicator::test) does, and with
    /// [`CollectiveError::NotOver`] if the operation is still under way.
    pub fn finish<T: Element>(&mut self, operation: Operation<T>) -> Result<Vec<T>, CollectiveError> {
        if !self.test(&operation)? {
            return Err(CollectiveError::NotOver);
        }
        let (vector, output) = self.take(operation.number);
        // Another type means that the handle is another communicator's.
        let mut vector = T::unwrap(vector).ok_or(CollectiveError::Dropped { lanes: self.config.lanes })?;
        let (start, end) = (output.start / size_of::<T>(), output.end / size_of::<T>());
        vector.truncate(end);
        if start > 0 {
            vector.drain(..start);
        }
        Ok(vector)
    }

    fn start_reduction<T: Element>(
        &mut self,
        fabric: &mut impl Fabric,
        collective: Collective,
        root: usize,
        reduction: &Reduction<T>,
        vector: Vec<T>,
    ) -> Result<Operation<T>, CollectiveError> {
        let mut bytes = size_of_val(&vector[..]);
        if collective == Collective::ReduceScatter {
            self.check_blocks(collective, &vector)?;
            bytes /= self.ranks();
        }
        let operator = reduction.operator()?;
        let commutative = reduction.is_commutative();
        self.start(fabric, (collective, root, bytes), commutative, Some(operator), T::wrap(vector))
    }

    fn check_blocks<T>(&self, collective: Collective, vector: &[T]) -> Result<(), CollectiveError> {
        let (len, ranks) = (vector.len(), self.ranks());
        if len.is_multiple_of(ranks) { Ok(()) } else { Err(CollectiveError::Blocks { collective, len, ranks }) }
    }
}

/// A vector of `ranks` blocks, with `block` in the place of `rank`.
fn spread<T: Element>(block: Vec<T>, ranks: usize, rank: usize) -> Vec<T> {
    let mut vector = vec![T::zeroed(); ranks * block.len()];
    vector[rank * block.len()..][..block.len()].copy_from_slice(&block);
    vector
}
