//! The block size, the algorithm and the look-ahead that suit a message, a group and its medium.
//!
//! Small blocks cost more for each byte; with large ones, all members wait longer for the first. Over a network a
//! binomial pipeline of n members moves k blocks in ⌈log₂ n⌉ + k − 1 steps. A step takes a fixed cost c and the time of
//! B bytes at the rate r of a link. With k = S/B for a message of S bytes, and l = ⌈log₂ n⌉,
//!
//! > T(B) = (l − 1 + S/B) · (c + B/r),
//!
//! which is least at B = √(S·c·r / (l − 1)). That is the peak of the curves in RDMC, DSN 2018, Figure 6: it moves to
//! the right with the message's size.
//!
//! In shared memory every member copies straight from the root's memory, and a block is only the amount that is copied
//! between two looks at everything else. Its size was measured (`squall-bench bulk --sweep`): see
//! `docs/src/measurements/performance.md`.

use std::time::Duration;

use crate::{
    config::{GroupConfig, MAX_BLOCK_BYTES},
    schedule::{Algorithm, Racks},
};

/// The medium that carries a group's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Shared memory, with all members on one host.
    SharedMemory,
    /// Links between hosts.
    Network(Network),
}

/// Links between hosts, alike for all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The rate of a host's link in each direction.
    pub bytes_per_second: u64,
    /// The cost of a block besides its bytes' time: posting it, its latency, and finding that it is complete.
    pub per_block: Duration,
    /// The racks of the members, if racks matter.
    pub racks: Option<Racks>,
}

impl Network {
    /// A network of RDMA cards with links of so many bytes per second, and no racks.
    pub const fn rdma(bytes_per_second: u64) -> Network {
        Network { bytes_per_second, per_block: RDMA_PER_BLOCK, racks: None }
    }

    /// A network of sockets with links of so many bytes per second, and no racks.
    pub const fn tcp(bytes_per_second: u64) -> Network {
        Network { bytes_per_second, per_block: TCP_PER_BLOCK, racks: None }
    }
}

/// A relayer waited 449 µs during the transfer of 256 blocks that Table 1 of RDMC, DSN 2018, breaks down.
const RDMA_PER_BLOCK: Duration = Duration::from_nanos(1750);

/// Two threads are woken for a block and for the word that the next one may come; each takes some 30 µs.
const TCP_PER_BLOCK: Duration = Duration::from_micros(60);

/// The size of a page, in bytes. All blocks but a message's last are whole pages.
const PAGE: usize = 4096;

/// The number of blocks in shared memory, as long as their size is within these bounds.
const SHARED_BLOCKS: u64 = 8;
const SHARED_LEAST: usize = 256 << 10;
const SHARED_MOST: usize = 1 << 20;

/// A message has less than 2³² blocks.
const MOST_BLOCKS: u64 = u32::MAX as u64;

/// The block size in bytes for messages of about `message_bytes` in a group of `members`.
///
/// It is a whole number of pages, over a network a power of two; it grows with the message, and shrinks with the group.
pub fn default_block_bytes(message_bytes: u64, members: usize, medium: &Medium) -> usize {
    let suited = match medium {
        Medium::SharedMemory => {
            let wanted = message_bytes.div_ceil(SHARED_BLOCKS).clamp(SHARED_LEAST as u64, SHARED_MOST as u64);
            (wanted as usize).next_multiple_of(PAGE)
        }
        Medium::Network(network) => {
            let least_time = message_bytes as f64 * network.per_block.as_secs_f64() * network.bytes_per_second as f64;
            let rounds = members.next_power_of_two().trailing_zeros();
            let best = (least_time / f64::from(rounds.saturating_sub(1).max(1))).sqrt();
            // The nearest power of two: then T(B) is at most 6 % of its overhead above the least.
            let power = best.max(1.0).log2().round() as u32;
            1 << power.clamp(PAGE.ilog2(), MAX_BLOCK_BYTES.ilog2())
        }
    };
    let fewest = usize::try_from(message_bytes.div_ceil(MOST_BLOCKS)).map_or(MAX_BLOCK_BYTES, usize::next_power_of_two);
    suited.max(fewest).min(MAX_BLOCK_BYTES)
}

/// The algorithm for a medium.
///
/// In shared memory each receiver copies from the root: no receiver waits for a relay, and all copy a block while it is
/// in the cache. Over a network it is a binomial pipeline. Where racks are known there is one in each rack, so that a
/// block crosses the rack's uplink once (RDMC, DSN 2018, §4.3).
pub fn default_algorithm(medium: &Medium) -> Algorithm {
    match medium {
        Medium::SharedMemory => Algorithm::Interleaved,
        Medium::Network(Network { racks: Some(racks), .. }) => Algorithm::Hybrid(racks.clone()),
        Medium::Network(Network { racks: None, .. }) => Algorithm::BinomialPipeline,
    }
}

/// The number of blocks that each receiver may have under way in shared memory. With fewer it waits for the root's turn
/// on a busy host.
const SHARED_WINDOW: usize = 8;

/// The number of receives beyond the sends: the sender knows of the next one before it needs it.
const RECEIVES_BEYOND: usize = 2;

/// The number of receives ahead over a network, where blocks go in step, one at a time. A block that comes early takes
/// its receiver's bandwidth from one that others wait for, and two that a node sends at once delay the first.
const NETWORK_RECEIVES_AHEAD: usize = 1;
const NETWORK_SENDS_IN_FLIGHT: usize = 1;

impl GroupConfig {
    /// Sets the algorithm, the block size and the look-ahead that suit messages of about `message_bytes` over a medium.
    pub fn suited_to(self, medium: &Medium, message_bytes: u64) -> GroupConfig {
        let members = self.members.len();
        let algorithm = default_algorithm(medium);
        let block_bytes = default_block_bytes(message_bytes, members, medium);
        let suited = GroupConfig { algorithm, block_bytes, ..self };
        match medium {
            Medium::SharedMemory => GroupConfig {
                receives_ahead: SHARED_WINDOW + RECEIVES_BEYOND,
                // The root sends to all others.
                sends_in_flight: SHARED_WINDOW * members.saturating_sub(1).max(1),
                // A block that comes early takes no other block's bandwidth.
                steps_ahead: u64::MAX,
                ..suited
            },
            Medium::Network(_) => GroupConfig {
                receives_ahead: NETWORK_RECEIVES_AHEAD,
                sends_in_flight: NETWORK_SENDS_IN_FLIGHT,
                steps_ahead: 1,
                ..suited
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::*;
    use crate::{
        GroupId,
        schedule::{Outer, Rank, Schedule},
    };

    /// 100 Gb/s, as Fractus in the paper.
    const FAST: u64 = 12_500_000_000;

    fn media() -> [Medium; 3] {
        let slow = Network { per_block: Duration::from_micros(100), ..Network::rdma(125_000_000) };
        [Medium::SharedMemory, Medium::Network(Network::rdma(FAST)), Medium::Network(slow)]
    }

    /// Powers of two and sizes around them.
    fn sizes() -> impl Iterator<Item = u64> {
        (0..=61).flat_map(|power| [(1u64 << power) - 1, 1 << power, (1 << power) + 1, 3 << (power - 1).max(0)])
    }

    #[test]
    fn a_block_is_whole_pages_within_bounds_and_never_one_of_too_many() {
        for medium in media() {
            for members in [1, 2, 3, 4, 17, 512] {
                for size in sizes() {
                    let block = default_block_bytes(size, members, &medium);
                    assert!((PAGE..=MAX_BLOCK_BYTES).contains(&block) && block.is_multiple_of(PAGE), "{size}: {block}");
                    assert!(size.div_ceil(block as u64) <= MOST_BLOCKS, "{size} bytes in blocks of {block}");
                    let network = matches!(medium, Medium::Network(_));
                    assert!(!network || block.is_power_of_two(), "{size}: {block}");
                }
            }
        }
    }

    #[test]
    fn blocks_grow_with_the_message_and_shrink_with_the_group() {
        for medium in media() {
            let of = |size, members| default_block_bytes(size, members, &medium);
            let mut sizes: Vec<u64> = sizes().collect();
            sizes.sort_unstable();
            assert!(sizes.windows(2).all(|pair| of(pair[0], 4) <= of(pair[1], 4)), "{medium:?}");
            assert!((1..64).all(|members| of(1 << 28, members) >= of(1 << 28, members + 1)), "{medium:?}");
        }
    }

    /// The schedule's time by the model above. Blocks have their real lengths: the only one of a short message is
    /// short.
    fn seconds(network: &Network, members: usize, size: u64, block: u64) -> f64 {
        let schedule = Schedule::new(&Algorithm::BinomialPipeline, members, Rank::ROOT).unwrap();
        let steps = schedule.steps(size.div_ceil(block) as u32);
        steps as f64 * (network.per_block.as_secs_f64() + block.min(size) as f64 / network.bytes_per_second as f64)
    }

    #[test]
    fn over_a_network_no_power_of_two_is_much_faster() {
        for medium in media() {
            let Medium::Network(network) = &medium else { continue };
            for members in [3, 4, 8, 16, 512] {
                for size in (16..=30).map(|power| 1u64 << power) {
                    let ours = seconds(network, members, size, default_block_bytes(size, members, &medium) as u64);
                    let best = (12..=30).map(|power| seconds(network, members, size, 1 << power));
                    let best = best.fold(f64::INFINITY, f64::min);
                    assert!(ours <= 1.05 * best, "{members} members, {size} bytes: {ours} s instead of {best} s");
                }
            }
        }
    }

    #[test]
    fn the_algorithm_follows_from_where_the_members_are() {
        let config = || GroupConfig::new(GroupId { group: 0, instance: 0 }, (0..4).map(NodeId).collect());
        let racks = Racks::new(&["a", "a", "b", "b"], Outer::default()).unwrap();
        let racked = Medium::Network(Network { racks: Some(racks.clone()), ..Network::rdma(FAST) });
        for (medium, algorithm) in [
            (Medium::SharedMemory, Algorithm::Interleaved),
            (Medium::Network(Network::rdma(FAST)), Algorithm::BinomialPipeline),
            (racked, Algorithm::Hybrid(racks)),
        ] {
            let suited = config().suited_to(&medium, 1 << 28);
            assert_eq!(suited.algorithm, algorithm);
            suited.check(NodeId(3)).expect("a configuration that is possible");
        }
    }

    #[test]
    fn in_shared_memory_a_receiver_that_keeps_up_never_lets_the_root_wait() {
        let config = GroupConfig::new(GroupId { group: 0, instance: 0 }, (0..4).map(NodeId).collect());
        let suited = config.suited_to(&Medium::SharedMemory, 1 << 28);
        assert!(suited.receives_ahead * 3 > suited.sends_in_flight, "{suited:?}");
    }
}
