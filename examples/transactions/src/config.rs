//! The settings of a store.

use crate::Placement;

/// The settings of a store. All but `window` and `record` are the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The placement of keys and shards.
    pub placement: Placement,
    /// The longest message, in bytes. The pipe has to take messages of this length.
    pub message_bytes: usize,
    /// The longest value, in bytes.
    pub value_bytes: usize,
    /// The most transactions of this member that may be under way at a time.
    pub window: usize,
    /// Whether to [keep](crate::Store::take_executions) what is carried out, for a check.
    pub record: bool,
}

impl StoreConfig {
    /// The defaults: messages of up to 16 KiB, values of up to 1 KiB, and 64 transactions at a time.
    pub fn new(placement: Placement) -> StoreConfig {
        StoreConfig { placement, message_bytes: 16 << 10, value_bytes: 1 << 10, window: 64, record: false }
    }
}
