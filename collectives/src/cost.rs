//! The costs of operations, and the cheapest algorithm for each.
//!
//! Costs of reductions along trees are those of the thesis (§6.4). They are estimates: the thesis' own measurements lie
//! between the best and the worst of them, or within 8 % of these (§6.5.3).

use crate::{Algorithm, Collective};

/// The inputs of costs: times in microseconds, named as in the thesis (§6.4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// `T_transmit_per_bytes`: one byte's time on the wire.
    pub transmit_per_byte: f64,
    /// `T_copy_rate`: copying one byte to or from registered memory.
    pub copy_per_byte: f64,
    /// `T_operation`, for one byte: combining it with another.
    pub operation_per_byte: f64,
    /// `T_startup`: starting a DMA.
    pub startup: f64,
    /// `T_nic`: the NIC's work on one message.
    pub nic: f64,
    /// `T_descriptor`: posting a message.
    pub descriptor: f64,
    /// `T_mpi`: the calling software's work on one message.
    pub software: f64,
    /// The length from which on, in bytes, vectors go by algorithms that send each byte seldom.
    pub long_bytes: usize,
    /// The length above which, in bytes, messages are fetched from their sender's memory, instead of written into their
    /// receiver's. That pays where a read is a copy. None are longer than a slot.
    pub fetch_above: usize,
    /// The length from which on, in bytes, broadcasts of vectors go by RDMC.
    pub rdmc_bytes: usize,
}

impl Parameters {
    /// The parameters of the thesis' cluster (§6.5.3), which sums integers of 4 bytes.
    ///
    /// The thesis does not give the time of one sum; with 10 ns its choices (Figure 6.30) come out. It knows no RDMC,
    /// which has vectors from 1 MiB on.
    pub const THESIS: Parameters = Parameters {
        transmit_per_byte: 0.010,
        copy_per_byte: 0.027,
        operation_per_byte: 0.0025,
        startup: 2.0,
        nic: 1.52,
        descriptor: 0.6,
        software: 1.3,
        long_bytes: 5 << 10,
        fetch_above: usize::MAX,
        rdmc_bytes: 1 << 20,
    };

    /// The time before a message's first byte goes out.
    fn sender(&self) -> f64 {
        self.software + self.descriptor + self.startup + self.nic
    }

    /// The time from the beginning of one message to its end, with its copies on both sides.
    fn message(&self, bytes: usize) -> f64 {
        let per_byte = self.transmit_per_byte + 2.0 * self.copy_per_byte;
        self.sender() + self.nic + self.startup + per_byte * bytes as f64
    }
}

impl Default for Parameters {
    /// [`THESIS`](Parameters::THESIS), until parameters are measured.
    fn default() -> Parameters {
        Parameters::THESIS
    }
}

/// The time of a reduction in microseconds, in the best case and in the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Messages arrive in the order in which they are combined, and the NIC's work overlaps.
    pub best: f64,
    /// The message that is needed first comes last, and nothing overlaps.
    pub worst: f64,
}

/// The cost of a reduction of `bytes` along a tree (thesis, Figure 6.16), without the broadcast after it.
///
/// `ranks` counts as the power of two below it. Where the figure multiplies a long message's transmission by all nodes,
/// this follows the text (§6.4.2): by the nodes that send.
pub fn tree(degree: usize, ranks: usize, bytes: usize, with: &Parameters) -> Estimate {
    let size = 1usize << ranks.max(1).ilog2();
    let mut estimate = Estimate::default();
    let mut span = 1;
    while span < size {
        let width = (degree + 1).min(size / span);
        let step = tree_step(width - 1, bytes, with);
        estimate.best += step.best;
        estimate.worst += step.worst;
        span *= width;
    }
    let copies = 2.0 * with.copy_per_byte * bytes as f64;
    Estimate { best: estimate.best + copies, worst: estimate.worst + copies }
}

/// The cost of a step in which `senders` ranks write to one.
fn tree_step(senders: usize, bytes: usize, with: &Parameters) -> Estimate {
    let &Parameters { startup, nic, .. } = with;
    let (senders, others) = (senders as f64, senders as f64 - 1.0);
    let transmit = with.transmit_per_byte * bytes as f64;
    let operation = with.operation_per_byte * bytes as f64;
    if transmit > startup + nic {
        let best = with.sender() + transmit * senders + startup + nic + operation;
        return Estimate { best, worst: best + operation * others };
    }
    let waits = (transmit - startup).max(0.0) * others;
    let best = with.sender() + transmit + nic + startup * senders + waits + operation;
    Estimate { best, worst: best + (nic + operation) * others }
}

/// The degree of the tree by which a reduction has the least best estimate: the choices of Figure 6.30.
pub fn degree(ranks: usize, bytes: usize, with: &Parameters) -> usize {
    let size = 1usize << ranks.max(1).ilog2();
    let degrees = (1..=size.ilog2()).map(|i| (1 << i) - 1);
    cheapest(degrees.map(|degree| (degree, tree(degree, ranks, bytes, with).best))).unwrap_or(1)
}

/// The first of the candidates that cost the least.
fn cheapest<T>(candidates: impl Iterator<Item = (T, f64)>) -> Option<T> {
    let less = |least: (T, f64), other: (T, f64)| if other.1 < least.1 { other } else { least };
    candidates.reduce(less).map(|(candidate, _)| candidate)
}

/// The algorithm for an operation on `bytes`, counted as [`Communicator::algorithm`](crate::Communicator::algorithm)
/// does. It depends on nothing else, so all ranks choose alike.
///
/// Rings of reductions are not among the choices: [`Algorithm::Direct`] moves as many bytes in fewer steps. They are
/// left to a caller that knows a network where only neighbours reach each other well.
pub fn choose(collective: Collective, bytes: usize, ranks: usize, with: &Parameters) -> Algorithm {
    match collective {
        Collective::Barrier => unless_flat(Algorithm::Dissemination, 0, 0.0, ranks, with),
        Collective::Broadcast if bytes >= with.rdmc_bytes && ranks > 1 => Algorithm::Rdmc,
        Collective::Broadcast if bytes >= with.long_bytes && ranks > 2 => Algorithm::Chain,
        Collective::Broadcast => unless_flat(Algorithm::Binomial, bytes, broadcast_levels(ranks), ranks, with),
        Collective::Reduce => Algorithm::Tree { degree: degree(ranks, bytes, with) },
        Collective::Allreduce => allreduce(bytes, ranks, with),
        Collective::Gather | Collective::Scatter => Algorithm::Flat,
        Collective::Allgather if bytes >= with.long_bytes => Algorithm::Ring,
        Collective::Allgather => unless_flat(Algorithm::Dissemination, bytes, ranks as f64 - 1.0, ranks, with),
        Collective::ReduceScatter | Collective::AllToAll => Algorithm::Pairwise,
    }
}

/// The number of messages that follow each other in a binomial tree, or by dissemination.
fn broadcast_levels(ranks: usize) -> f64 {
    f64::from(ranks.max(1).next_power_of_two().ilog2())
}

/// The time of a step in which each rank sends `bytes` bytes to all others at once, and gets as many from each.
fn flat_step(bytes: usize, ranks: usize, with: &Parameters) -> f64 {
    let each = with.message(bytes) - with.message(0) + 2.0 * (with.descriptor + with.nic + with.startup);
    with.message(bytes) + (ranks as f64 - 2.0).max(0.0) * each
}

/// The factor by which a flat algorithm must be cheaper. These are estimates, and other algorithms don't burden a
/// network with n² messages.
const CLEARLY: f64 = 1.25;

/// The algorithm that takes ⌈log₂ n⌉ steps, and moves `blocks` times the bytes in them; or the flat one if that is
/// clearly cheaper.
fn unless_flat(algorithm: Algorithm, bytes: usize, blocks: f64, ranks: usize, with: &Parameters) -> Algorithm {
    let moved = with.message(bytes) - with.message(0);
    let in_steps = broadcast_levels(ranks) * with.message(0) + blocks * moved;
    if CLEARLY * flat_step(bytes, ranks, with) < in_steps { Algorithm::Flat } else { algorithm }
}

fn allreduce(bytes: usize, ranks: usize, with: &Parameters) -> Algorithm {
    let levels = f64::from(ranks.max(1).ilog2());
    let excess = if ranks.is_power_of_two() { 0.0 } else { 2.0 };
    let operation = with.operation_per_byte * bytes as f64;
    let message = with.message(bytes);
    let start = with.message(0);
    let moved = message - start;
    let degree = degree(ranks, bytes, with);
    // The part of a vector that is in other ranks' blocks, where each rank has its block.
    let others = 1.0 - 1.0 / ranks.max(1) as f64;
    let flat = flat_step(bytes, ranks, with) + (ranks as f64 - 1.0) * operation;
    let candidates = [
        (Algorithm::Exchange, (levels + excess) * message + (levels + excess / 2.0) * operation),
        (Algorithm::Tree { degree }, tree(degree, ranks, bytes, with).best + broadcast_levels(ranks) * message),
        (Algorithm::Flat, CLEARLY * flat),
        (Algorithm::Direct, 2.0 * flat_step(0, ranks, with) + others * (2.0 * moved + operation)),
        (Algorithm::Halving, 2.0 * levels * start + others * (2.0 * moved + operation) + excess * message),
    ];
    cheapest(candidates.into_iter()).unwrap_or(Algorithm::Exchange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_degrees_are_those_of_figure_6_30() {
        let choices = |ranks| -> Vec<usize> { (2..=12).map(|i| degree(ranks, 1 << i, &Parameters::THESIS)).collect() };
        // From 4 bytes to 4 KiB.
        assert_eq!(choices(4), [3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1]);
        assert_eq!(choices(8), [7, 7, 7, 7, 7, 7, 7, 3, 3, 1, 1]);
        assert_eq!(choices(16), [3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1]);
    }

    #[test]
    fn one_step_costs_what_the_equations_say() {
        // T_sender = 5.42 µs. Short (§6.4.3, first case): transmit 0.04, operation 0.01, three senders.
        let copies = 2.0 * 0.027 * 4.0;
        let short = tree(3, 4, 4, &Parameters::THESIS);
        assert!((short.best - (5.42 + 0.04 + 1.52 + 3.0 * 2.0 + 0.01 + copies)).abs() < 1e-9);
        assert!((short.worst - (5.42 + 0.04 + 3.0 * (1.52 + 2.0 + 0.01) + copies)).abs() < 1e-9);
        // Long (§6.4.2): transmit 40.96, operation 10.24.
        let copies = 2.0 * 0.027 * 4096.0;
        let long = tree(3, 4, 4096, &Parameters::THESIS);
        assert!((long.best - (5.42 + 3.0 * 40.96 + 1.52 + 2.0 + 10.24 + copies)).abs() < 1e-9);
        assert!((long.worst - (5.42 + 3.0 * 40.96 + 1.52 + 2.0 + 3.0 * 10.24 + copies)).abs() < 1e-9);
    }

    #[test]
    fn long_vectors_are_cut_and_short_ones_take_the_fewest_steps() {
        let choose = |bytes, ranks| choose(Collective::Allreduce, bytes, ranks, &Parameters::THESIS);
        assert_eq!(choose(8, 2), Algorithm::Exchange);
        assert_eq!(choose(1 << 20, 6), Algorithm::Direct);
        assert_eq!(choose(64 << 10, 64), Algorithm::Halving);
    }

    #[test]
    fn where_a_step_takes_long_and_a_message_does_not_there_is_one_step() {
        // Processes that take turns on a core.
        let crowded = Parameters {
            transmit_per_byte: 1e-4,
            copy_per_byte: 5e-5,
            operation_per_byte: 1e-4,
            software: 5.0,
            descriptor: 0.05,
            startup: 0.05,
            nic: 0.05,
            ..Parameters::THESIS
        };
        for ranks in 3..=64 {
            for (collective, usual) in [
                (Collective::Barrier, Algorithm::Dissemination),
                (Collective::Broadcast, Algorithm::Binomial),
                (Collective::Allgather, Algorithm::Dissemination),
            ] {
                assert_eq!(choose(collective, 8, ranks, &Parameters::THESIS), usual, "among {ranks}");
            }
            let chosen = [Collective::Barrier, Collective::Broadcast, Collective::Allgather, Collective::Allreduce]
                .map(|collective| choose(collective, 8, ranks, &crowded));
            assert!(ranks > 16 || chosen == [Algorithm::Flat; 4], "{chosen:?} among {ranks}");
        }
    }

    #[test]
    fn broadcasts_go_by_rdmc_from_their_threshold_on() {
        let with = Parameters { rdmc_bytes: 1 << 16, ..Parameters::THESIS };
        let choose = |bytes, ranks| choose(Collective::Broadcast, bytes, ranks, &with);
        assert_eq!(choose(100, 4), Algorithm::Binomial);
        assert_eq!(choose((1 << 16) - 1, 4), Algorithm::Chain);
        assert_eq!([choose(1 << 16, 2), choose(1 << 16, 4)], [Algorithm::Rdmc; 2]);
        assert_eq!(choose(1 << 16, 1), Algorithm::Binomial);
    }
}
