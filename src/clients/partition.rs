//! The division of a service's keys over the shards of its group.

use crate::clients::query::QueryService;

/// A service whose keys are divided over the shards of its group. Members and clients divide them alike, since all of
/// them call this.
///
/// ```
/// use squall::Partitioned;
/// # use rkyv::Archived;
/// # use squall::{Applied, QueryService, Replicated};
/// # struct Bank;
/// # impl Replicated for Bank {
/// #     type Command = u64;
/// #     type Reply = u64;
/// #     fn apply(&mut self, add: &Archived<u64>, _at: &Applied) -> u64 { add.to_native() }
/// # }
/// # impl QueryService for Bank {
/// #     type Query = ();
/// #     type Answer = ();
/// #     fn answer(&self, _query: &()) {}
/// # }
///
/// impl Partitioned for Bank {
///     type Key = str;
///
///     /// All accounts of one owner are in one shard: `OWNER:ACCOUNT`.
///     fn shard_of(key: &str, shards: u32) -> u32 {
///         let owner = key.split(':').next().unwrap_or(key);
///         squall::shard_of_bytes(owner.as_bytes(), shards)
///     }
/// }
///
/// assert_eq!(Bank::shard_of("ann:1", 8), Bank::shard_of("ann:2", 8));
/// ```
pub trait Partitioned: QueryService {
    /// The type of the keys.
    type Key: ?Sized;

    /// Returns the shard of a key, below `shards`. It depends on nothing else, and not on the program's version:
    /// otherwise a key's state would be looked for where it is not.
    fn shard_of(key: &Self::Key, shards: u32) -> u32;
}

/// Divides keys by consistent hashing: each of n shards has the n-th part of all keys. Of n + 1 shards, the new one has
/// the (n + 1)-th part, and all other keys stay where they were.
///
/// It is the jump consistent hash (Lamping and Veach, 2014) of the key's 64-bit FNV-1a hash, whose bits are mixed as
/// MurmurHash3 does last. The result is the same in all versions.
///
/// # Panics
///
/// If there are no shards.
pub fn shard_of_bytes(key: &[u8], shards: u32) -> u32 {
    assert!(shards > 0, "a group has at least one shard");
    let mut state = mix(fnv_1a(key));
    let (mut shard, mut next) = (0, 0);
    while next < u64::from(shards) {
        shard = next;
        state = state.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        // Doubles are alike on all machines, and this is rounded down the same everywhere.
        next = ((shard + 1) as f64 * ((1_u64 << 31) as f64 / ((state >> 33) + 1) as f64)) as u64;
    }
    shard as u32
}

fn fnv_1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn mix(mut hash: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn keys() -> impl Iterator<Item = [u8; 4]> {
        (0..8000u32).map(u32::to_le_bytes)
    }

    #[test]
    fn shards_have_equal_parts_and_a_new_one_takes_its_part_from_all() {
        for shards in [1, 2, 3, 8, 64] {
            let mut counts = vec![0u32; shards as usize];
            keys().for_each(|key| counts[shard_of_bytes(&key, shards) as usize] += 1);
            let even = 8000 / shards;
            let spread = 5 * f64::from(even).sqrt() as u32;
            assert!(counts.iter().all(|&count| count.abs_diff(even) <= spread), "{shards}: {counts:?}");
            for key in keys() {
                let (before, after) = (shard_of_bytes(&key, shards), shard_of_bytes(&key, shards + 1));
                assert!(after == before || after == shards, "{key:?}");
            }
        }
    }

    #[test]
    fn the_division_never_changes() {
        assert_eq!(fnv_1a(b"foobar"), 0x85944171f73967e8, "as published");
        let of = |key: &str| [2, 8, 1024].map(|shards| shard_of_bytes(key.as_bytes(), shards));
        assert_eq!(["", "a", "account:17"].map(of), [[1, 1, 499], [1, 5, 723], [0, 0, 306]]);
    }
}
