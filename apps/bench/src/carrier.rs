//! The fabrics on which a benchmark runs.

use squall_fabric::{Fabric, Wait, shm::ShmFabric, tcp::TcpFabric};

/// A fabric on which a benchmark runs.
pub(crate) trait Carrier: Fabric + Wait {
    /// The shared-memory fabric, if it is one: only that one can give receivers the pages of one copy.
    fn shm(&mut self) -> Option<&mut ShmFabric> {
        None
    }
}

impl Carrier for ShmFabric {
    fn shm(&mut self) -> Option<&mut ShmFabric> {
        Some(self)
    }
}

impl Carrier for TcpFabric {}

#[cfg(feature = "verbs")]
impl Carrier for squall_fabric::verbs::VerbsFabric {}
