//! `squall-bench collectives`: barrier, broadcast, reductions and their family between real processes.

mod rank;

use clap::{Args, value_parser};
use squall_command::CommandError;

pub(crate) use self::rank::CollectivesRank;
use super::{
    cluster,
    job::{By, CollectivesJob, Of, Spinning, Timed, spelt},
    places::{NodePlaces, PlaceArgs},
    printing::Printing,
    report::{CollectivesRow, RowHead},
};

const HELP: &str = "\
Examples:
  squall-bench collectives --nodes 2,4,8 --operation barrier
  squall-bench collectives --nodes 4 --operation allreduce --size 8,1KiB,1MiB --json
  squall-bench collectives --nodes 8 --operation allreduce --size 64KiB --algorithm exchange,tree3,halving,ring
  squall-bench collectives --fabric tcp --operation broadcast --size 16MiB

Every node is a process of its own, whose main thread does the operations: it spins where there is a core for each node,
and yields where there are fewer. Elements are 64-bit floats, reductions add them up. Each node compares one whole
result.

What the figures mean:
  size      bytes of each node's vector; of one block, where each node has one for all: gather, scatter, allgather,
            all-to-all
  us        what one operation takes: after a barrier, a batch of them follow each other without pause, and the node
            that takes longest counts, divided by the batch: the median and the 99th percentile of the samples
  batch     how many operations a sample is of: as many as take 200 us, at most
  cpu us    processor time of all nodes together for one operation, waiting included

The lines before the table say what the machine itself can do; hold the figures against them.
apps/bench/peers/collectives/run measures OpenMPI and MPICH in the same way, in the same run.";

/// Measures collective operations: barrier, broadcast, reductions and their family.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CollectivesArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The number of nodes; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "2")]
    #[arg(value_parser = value_parser!(u32).range(1..=64))]
    nodes: Vec<u32>,
    /// The operation; a list gives a row each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "allreduce")]
    operation: Vec<Of>,
    /// A vector's size, such as 1MiB, rounded up to 8 bytes; a list gives a row each
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "8", value_parser = squall_units::size_in(1..=MAX_SIZE))]
    size: Vec<usize>,
    /// The algorithm; a list gives a row each, for the operations that it can carry out [default: what the cost model
    /// chooses]
    #[arg(long, value_enum, value_delimiter = ',')]
    algorithm: Vec<By>,
    /// Let floats give the same bits whatever the algorithm
    #[arg(long)]
    reproducible: bool,
    /// The number of samples
    #[arg(long, value_name = "N", default_value = "1000", value_parser = value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    /// The waiting policy of a node that waits for others
    #[arg(long, value_enum, default_value = "auto")]
    spin: Spinning,
    #[command(flatten)]
    printing: Printing,
}

/// The most bytes of a vector or block; it bounds the memory of all nodes of a run.
const MAX_SIZE: usize = 1 << 30;

impl CollectivesArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.check().map_err(CommandError::Usage)?;
        let mut report = self.printing.begin()?;
        for (operation, algorithm, size_bytes) in self.cases() {
            for &nodes in &self.nodes {
                let places = self.places.find(nodes)?;
                let jobs = self.jobs(&places, nodes, (operation, algorithm, size_bytes));
                let timed = cluster::run_collectives(&jobs, &places)?;
                report.collectives(&self.row(&jobs[0], &timed))?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.places.check(self.nodes.iter().copied().max().unwrap_or_default())?;
        for by in &self.algorithm {
            if !self.operation.iter().any(|of| by.algorithm().carries_out(of.collective())) {
                let name = spelt(by);
                return Err(format!(
                    "--algorithm {name} carries out none of the operations: --help says which it does"
                ));
            }
        }
        Ok(())
    }

    /// The operations, the algorithm of each, and a vector's bytes. A barrier has none.
    fn cases(&self) -> Vec<(Of, Option<By>, usize)> {
        let mut cases = Vec::new();
        for &of in &self.operation {
            let sizes = if of == Of::Barrier { &[0][..] } else { &self.size };
            let carries_out = |by: &&By| by.algorithm().carries_out(of.collective());
            let mut ways: Vec<Option<By>> = self.algorithm.iter().filter(carries_out).copied().map(Some).collect();
            if ways.is_empty() {
                ways.push(None);
            }
            cases.extend(sizes.iter().flat_map(|&size| ways.iter().map(move |&by| (of, by, size))));
        }
        cases
    }

    /// A job for each node.
    fn jobs(
        &self,
        places: &NodePlaces,
        nodes: u32,
        (operation, algorithm, size_bytes): (Of, Option<By>, usize),
    ) -> Vec<CollectivesJob> {
        let job = |worker| CollectivesJob {
            worker,
            operation,
            algorithm,
            reproducible: self.reproducible,
            elements: operation.block(size_bytes.div_ceil(8), nodes as usize),
            samples: self.samples,
            spin: self.spin,
        };
        places.workers(nodes).map(job).collect()
    }

    fn row(&self, job: &CollectivesJob, timed: &[Timed]) -> CollectivesRow {
        let batch = timed[0].batch;
        // A sample lasts until the last node is done.
        let slowest = |sample: usize| timed.iter().map(|of_node| of_node.nanos[sample]).max().expect("there is a node");
        let mut micros: Vec<f64> =
            (0..job.samples as usize).map(|sample| slowest(sample) as f64 * 1e-3 / f64::from(batch)).collect();
        micros.sort_by(f64::total_cmp);
        let operations = f64::from(batch) * f64::from(job.samples);
        CollectivesRow {
            head: RowHead::of("collectives", job),
            operation: job.operation,
            size_bytes: 8 * job.operation.given(job.elements, job.nodes as usize),
            algorithm: timed[0].algorithm.clone(),
            reproducible: job.reproducible,
            spin: job.spin,
            samples: job.samples,
            batch,
            microseconds_median: quantile(&micros, 0.5),
            microseconds_p99: quantile(&micros, 0.99),
            cpu_microseconds: timed.iter().map(|of_node| of_node.cpu_seconds).sum::<f64>() * 1e6 / operations,
        }
    }
}

/// The quantile of sorted values: the least value that is not exceeded by `part` of them.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.99), quantile(&values[..1], 0.99)), (50.0, 99.0, 1.0));
    }
}
