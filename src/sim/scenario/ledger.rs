//! The replica that scenarios run: it keeps a log of all that it applied. And the messages for it, of all lengths.

use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use rkyv::{Archive, Archived, Deserialize, Serialize};
use squall_fabric::NodeId;

use crate::{
    replicated::{self, Replicated},
    sim::check::Applied,
};

/// What a client submits.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct Append {
    pub(super) client: u32,
    pub(super) number: u64,
    pub(super) padding: Vec<u8>,
}

/// The bytes of a message, which follow from whose it is.
pub(super) fn padding(sender: NodeId, client: u32, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(u64::from(sender.0) << 48 ^ u64::from(client) << 40 ^ number).fill(&mut bytes);
    bytes
}

/// Everything that one replica applied; it outlives the replica.
pub(super) type Log = Arc<Mutex<Vec<Applied>>>;

pub(super) struct Ledger {
    pub(super) log: Log,
    pub(super) len: u64,
}

impl Replicated for Ledger {
    type Command = Append;
    /// How many entries the log has, this one included.
    type Reply = u64;

    fn apply(&mut self, append: &Archived<Append>, at: &replicated::Applied) -> u64 {
        let (client, number) = (append.client.to_native(), append.number.to_native());
        let intact = append.padding == padding(at.sender, client, number, append.padding.len());
        let entry = Applied { sender: at.sender, client, number, intact };
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        self.len += 1;
        self.len
    }
}

/// What lengths messages have, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Small ones have at most this.
    small: usize,
    /// Around this, they become bulk messages.
    threshold: usize,
    /// None has more; as much as the small ones have if there are no bulk messages.
    largest: usize,
    /// Of 256, so many are drawn from all lengths, and as many from around the threshold.
    bulk: u8,
}

impl Sizes {
    /// Of a group with rings of so many bytes, and a reserve.
    pub(super) fn random(ring_bytes: usize, threshold: usize, reserve: usize, rng: &mut Rng) -> Sizes {
        let quarter = ring_bytes / 4 - ENVELOPE;
        let (small, bulk) = (SMALL.min(quarter), [2, 20, 100][rng.usize(0..3)]);
        let largest = if reserve == 0 { small } else { reserve - ENVELOPE };
        Sizes { small, threshold: threshold.min(largest), largest, bulk: if reserve == 0 { 0 } else { bulk } }
    }

    pub(super) fn length(&self, rng: &mut Rng) -> usize {
        match rng.u8(..) {
            any if any < self.bulk => rng.usize(0..=self.largest),
            near if near < 2 * self.bulk => {
                (self.threshold + rng.usize(0..=ENVELOPE)).saturating_sub(ENVELOPE).min(self.largest)
            }
            _ => rng.usize(0..=self.small.min(self.largest)),
        }
    }
}

/// What a message takes besides its padding, at most, in bytes.
const ENVELOPE: usize = 64;

/// Small messages are at most this long, whatever the ring takes, so that runs stay short. In bytes.
const SMALL: usize = 2000;
