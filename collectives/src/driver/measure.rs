//! The medium of messages, measured in the parameters of the cost model.
//!
//! The first rank measures once, on a communicator that has just been formed, and tells the others: all choose by the
//! same numbers. Each figure is the least of several, since all other work of a host only adds to it.

use std::{hint::black_box, time::Duration};

use squall_fabric::{Fabric, Time, Wait};

use super::{Collectives, CommunicatorId};
use crate::{Algorithm, Builtin, Collective, CollectiveError, Parameters};

/// The bytes of a vector that takes longer than the fixed time of its messages, and fits into any cache.
const LONG: usize = 64 << 10;

/// The length above which messages are fetched, if that is quicker: shorter ones are copied in less time than a request
/// takes.
const FETCH_ABOVE: usize = 1 << 10;

/// The part of the other time that fetching may take at most. On a network both take about as long, and noise is not to
/// decide.
const CLEARLY: f64 = 0.9;

/// The number of measurements of which the least counts.
const TRIES: usize = 5;

/// The number of operations that are timed together.
const BATCH: usize = 8;

impl<F: Fabric + Wait> Collectives<F> {
    /// Measures a communicator's parameters. All ranks call it.
    pub(super) fn measure(&mut self, on: CommunicatorId) -> Result<(), CollectiveError> {
        let communicator = self.communicator(on)?;
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        if ranks == 1 {
            return Ok(());
        }
        let step = self.batches_of(on, |all| all.barrier(on))? / f64::from(ranks.next_power_of_two().ilog2());
        let post = self.posting(on)?;
        let written = self.long_broadcast(on, usize::MAX)?;
        let fetched = self.long_broadcast(on, FETCH_ABOVE)?;
        let mut measured = Parameters::default();
        if rank == 0 {
            let copy = copying() / LONG as f64;
            let is_fetched = fetched < CLEARLY * written;
            measured = Parameters {
                transmit_per_byte: (written.min(fetched) / LONG as f64 - 2.0 * copy).max(0.0),
                copy_per_byte: copy,
                operation_per_byte: combining() / LONG as f64,
                // A fabric does not say what a message's time consists of. So the cost of posting counts for each
                // message, half of it for taking the message out, and everything else only delays it.
                startup: post / 2.0,
                nic: 0.0,
                descriptor: post,
                software: (step - 2.0 * post).max(0.0),
                fetch_above: if is_fetched { FETCH_ABOVE } else { usize::MAX },
                // A rank that reads from the root's memory has no use for blocks that other ranks would pass on.
                long_bytes: if is_fetched { usize::MAX } else { measured.long_bytes },
                rdmc_bytes: if is_fetched { usize::MAX } else { measured.rdmc_bytes },
            };
        }
        let told = self.broadcast(on, 0, to_bytes(&measured))?;
        self.communicator(on)?.set_parameters(from_bytes(&told));
        Ok(())
    }

    /// The least time of one operation in a batch, in microseconds.
    fn batches_of(
        &mut self,
        on: CommunicatorId,
        mut once: impl FnMut(&mut Self) -> Result<(), CollectiveError>,
    ) -> Result<f64, CollectiveError> {
        let mut least = Duration::MAX;
        for _ in 0..TRIES {
            self.barrier(on)?;
            let began = Time::boot_clock();
            for _ in 0..BATCH {
                once(self)?;
            }
            self.barrier(on)?;
            least = least.min(Time::boot_clock().since(began));
        }
        Ok(micros(least) / BATCH as f64)
    }

    /// The least time that the first rank takes to post a message, in microseconds.
    fn posting(&mut self, on: CommunicatorId) -> Result<f64, CollectiveError> {
        let messages = self.communicator(on)?.ranks().next_power_of_two().ilog2();
        let mut least = Duration::MAX;
        for _ in 0..TRIES * BATCH {
            // All ranks have entered, so nothing delays the post.
            self.barrier(on)?;
            let began = Time::boot_clock();
            let started = self.start(on, |all, fabric| all.start_broadcast(fabric, 0, vec![0u64]))?;
            least = least.min(Time::boot_clock().since(began));
            self.wait(started)?;
        }
        Ok(micros(least) / f64::from(messages))
    }

    /// The least time of a long broadcast, in microseconds, where messages longer than `fetch_above` are fetched.
    fn long_broadcast(&mut self, on: CommunicatorId, fetch_above: usize) -> Result<f64, CollectiveError> {
        let communicator = self.communicator(on)?;
        communicator.set_parameters(Parameters { fetch_above, ..Parameters::default() });
        communicator.set_algorithm(Collective::Broadcast, Some(Algorithm::Chain));
        let mut vector = vec![1u8; LONG];
        let took = self.batches_of(on, |all| {
            vector = all.broadcast(on, 0, std::mem::take(&mut vector))?;
            Ok(())
        })?;
        self.communicator(on)?.set_algorithm(Collective::Broadcast, None);
        Ok(took)
    }
}

/// The time of copying [`LONG`] bytes, in microseconds.
fn copying() -> f64 {
    let (from, mut to) = (vec![1u8; LONG], vec![0u8; LONG]);
    least_of(|| black_box(&mut to).copy_from_slice(black_box(&from)))
}

/// The time of combining [`LONG`] bytes, in microseconds.
fn combining() -> f64 {
    let (with, mut into) = (vec![1.0; LONG / 8], vec![0.0; LONG / 8]);
    least_of(|| Builtin::Sum.combine(black_box(&mut into), black_box(&with)))
}

fn least_of(mut once: impl FnMut()) -> f64 {
    let tries = (0..TRIES * BATCH).map(|_| {
        let began = Time::boot_clock();
        once();
        Time::boot_clock().since(began)
    });
    micros(tries.min().unwrap_or_default())
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The parameters in bytes, for ranks of any machine.
fn to_bytes(parameters: &Parameters) -> Vec<u8> {
    let &Parameters {
        transmit_per_byte,
        copy_per_byte,
        operation_per_byte,
        startup,
        nic,
        descriptor,
        software,
        long_bytes,
        rdmc_bytes,
        fetch_above,
    } = parameters;
    let times = [transmit_per_byte, copy_per_byte, operation_per_byte, startup, nic, descriptor, software];
    let words =
        times.map(f64::to_bits).into_iter().chain([long_bytes, rdmc_bytes, fetch_above].map(|bytes| bytes as u64));
    words.flat_map(u64::to_le_bytes).collect()
}

fn from_bytes(bytes: &[u8]) -> Parameters {
    let word = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
        u64::from_le_bytes(word)
    };
    let time = |index| f64::from_bits(word(index));
    let bytes = |index| usize::try_from(word(index)).unwrap_or(usize::MAX);
    Parameters {
        transmit_per_byte: time(0),
        copy_per_byte: time(1),
        operation_per_byte: time(2),
        startup: time(3),
        nic: time(4),
        descriptor: time(5),
        software: time(6),
        long_bytes: bytes(7),
        rdmc_bytes: bytes(8),
        fetch_above: bytes(9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_the_same_when_they_were_told() {
        let parameters = Parameters { fetch_above: 17, ..Parameters::default() };
        assert_eq!(from_bytes(&to_bytes(&parameters)), parameters);
    }

    #[test]
    fn the_machine_takes_time() {
        assert!(copying() > 0.0 && combining() > 0.0);
    }
}
