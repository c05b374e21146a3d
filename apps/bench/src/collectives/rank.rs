//! One rank of `squall-bench collectives`.

use std::{
    ops::Range,
    sync::mpsc::{Receiver, TryRecvError},
    time::Duration,
};

use squall::{
    Time,
    collectives::{Builtin, CollectiveError, Collectives, CommunicatorConfig, CommunicatorId, Reduction},
};
use squall_fabric::{Fabric, NodeId, Wait};

use crate::{
    job::{CollectivesJob, Go, Of, ROOT, Timed},
    parent::Stopped,
    processor::processor_seconds,
};

/// The time that a sample's operations take together, at least. Reading the clock and leaving the barrier before then
/// do not count.
const SAMPLE: Duration = Duration::from_micros(200);

/// The time that it may take until all ranks have met.
const CONNECT: Duration = Duration::from_secs(20);

pub(crate) struct CollectivesRank<'a, F> {
    job: &'a CollectivesJob,
    told: &'a Receiver<Go>,
    ranks: Collectives<F>,
    all: CommunicatorId,
    sum: Reduction<f64>,
    vector: Vec<f64>,
}

impl<'a, F: Fabric + Wait> CollectivesRank<'a, F> {
    pub(crate) fn connect(
        job: &'a CollectivesJob,
        fabric: F,
        told: &'a Receiver<Go>,
    ) -> Result<CollectivesRank<'a, F>, Stopped> {
        let mut ranks = Collectives::new(fabric, job.spin.into(), job.nodes as usize);
        let nodes = (0..job.nodes).map(NodeId).collect();
        let config = CommunicatorConfig {
            reproducible: job.reproducible,
            medium: job.medium(),
            ..CommunicatorConfig::new(nodes, Collectives::tag(0, 1))
        };
        let all = ranks.form(config, CONNECT).map_err(|error| error.to_string())?;
        let communicator = ranks.communicator(all).map_err(failed)?;
        communicator.set_algorithm(job.operation.collective(), job.algorithm.map(|by| by.algorithm()));
        let vector = vec![0.0; job.operation.elements(job.elements, job.node as usize, job.nodes as usize)];
        Ok(CollectivesRank { job, told, ranks, all, sum: Builtin::Sum.into(), vector })
    }

    /// Checks one result, and takes the samples.
    pub(crate) fn measure(&mut self) -> Result<Timed, Stopped> {
        self.check()?;
        let batch = self.agree()?;
        self.batch(batch).map_err(failed)?;
        let cpu_before = processor_seconds();
        let mut nanos = Vec::with_capacity(self.job.samples as usize);
        for _ in 0..self.job.samples {
            if !matches!(self.told.try_recv(), Err(TryRecvError::Empty)) {
                return Err(Stopped::Told);
            }
            self.ranks.barrier(self.all).map_err(failed)?;
            let began = Time::boot_clock();
            self.batch(batch).map_err(failed)?;
            nanos.push(Time::boot_clock().since(began).as_nanos() as u64);
        }
        // Processor time is read before the barrier, so that no rank's wait for the others is counted.
        let cpu_seconds = processor_seconds() - cpu_before;
        self.ranks.barrier(self.all).map_err(failed)?;
        let (collective, bytes) = (self.job.operation.collective(), 8 * self.job.elements);
        let communicator = self.ranks.communicator(self.all).map_err(failed)?;
        let algorithm = communicator.algorithm(collective, bytes).to_string();
        Ok(Timed { algorithm, batch, nanos, cpu_seconds })
    }

    /// Determines the number of operations in a sample. The first rank's clock decides.
    fn agree(&mut self) -> Result<u32, Stopped> {
        let mut batch = 1;
        loop {
            let mut took = Duration::MAX;
            // The shortest of several, since the first may have found the other ranks asleep.
            for _ in 0..5 {
                self.ranks.barrier(self.all).map_err(failed)?;
                let began = Time::boot_clock();
                self.batch(batch).map_err(failed)?;
                took = took.min(Time::boot_clock().since(began));
            }
            let next = if took < SAMPLE / 2 { 2 * batch } else { 0 };
            let next = self.ranks.broadcast(self.all, ROOT, vec![next]).map_err(failed)?[0];
            if next == 0 {
                return Ok(batch);
            }
            batch = next;
        }
    }

    fn batch(&mut self, times: u32) -> Result<(), CollectiveError> {
        for _ in 0..times {
            self.once()?;
        }
        Ok(())
    }

    /// Does the operation on this rank's vector. The result is not kept, but its memory is used again.
    fn once(&mut self) -> Result<(), CollectiveError> {
        let elements = self.vector.len();
        let vector = std::mem::take(&mut self.vector);
        self.vector = self.operate(vector)?;
        self.vector.resize(elements, 0.0);
        Ok(())
    }

    #[inline]
    fn operate(&mut self, vector: Vec<f64>) -> Result<Vec<f64>, CollectiveError> {
        let CollectivesRank { ranks, sum, all, .. } = self;
        let all = *all;
        match self.job.operation {
            Of::Barrier => ranks.barrier(all).map(|()| vector),
            Of::Broadcast => ranks.broadcast(all, ROOT, vector),
            Of::Reduce => ranks.reduce(all, ROOT, sum, vector),
            Of::Allreduce => ranks.allreduce(all, sum, vector),
            Of::Gather => ranks.gather(all, ROOT, vector),
            Of::Scatter => ranks.scatter(all, ROOT, vector),
            Of::Allgather => ranks.allgather(all, vector),
            Of::ReduceScatter => ranks.reduce_scatter(all, sum, vector),
            Of::AllToAll => ranks.all_to_all(all, vector),
        }
    }

    /// Compares every element of one result.
    fn check(&mut self) -> Result<(), Stopped> {
        let (me, nodes, block) = (self.job.node as usize, self.job.nodes as usize, self.job.elements);
        let given = |rank: usize| -> Vec<f64> {
            let elements = self.job.operation.elements(block, rank, nodes);
            (0..elements).map(|at| (rank * 31 + at % 1009) as f64).collect()
        };
        let sums = |range: Range<usize>| {
            let mut sums = vec![0.0; range.len()];
            for rank in 0..nodes {
                sums.iter_mut().zip(&given(rank)[range.clone()]).for_each(|(sum, value)| *sum += value);
            }
            sums
        };
        let blocks = |of: &dyn Fn(usize) -> Vec<f64>| (0..nodes).flat_map(of).collect::<Vec<f64>>();
        let mine = me * block..(me + 1) * block;
        let expected = match self.job.operation {
            Of::Barrier => Vec::new(),
            Of::Broadcast => given(ROOT),
            Of::Reduce | Of::Gather if me != ROOT => Vec::new(),
            Of::Reduce | Of::Allreduce => sums(0..block),
            Of::Gather | Of::Allgather => blocks(&given),
            Of::Scatter => given(ROOT)[mine].to_vec(),
            Of::ReduceScatter => sums(mine),
            Of::AllToAll => blocks(&|rank| given(rank)[mine.clone()].to_vec()),
        };
        let result = self.operate(given(me));
        // Sums of whole numbers are the same in any order.
        if result.map_err(failed)? == expected {
            Ok(())
        } else {
            Err(Stopped::Failed("the result is wrong: this is a bug of Squall".to_owned()))
        }
    }

    /// Leaves once all others do.
    pub(crate) fn close(&mut self) -> Result<(), Stopped> {
        self.ranks.close(self.all).map_err(failed)
    }
}

fn failed(error: CollectiveError) -> Stopped {
    Stopped::Failed(error.to_string())
}
