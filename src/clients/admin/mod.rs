//! The requests of operators to a running node, behind `squall status`, `suspect`, `leave` and `recover`.
//!
//! A node answers over a control stream. Where the cluster is in shared memory, it answers processes of its own user on
//! its host. Elsewhere it answers at its port. There it takes orders of operators, and of its own certificate; members
//! and witnesses may ask for its status. (Without a CA, it answers any caller that reaches the port.)
//!
//! ```no_run
//! use std::time::Duration;
//! use squall::admin::{AdminClient, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let target = Target::on_host("bank", 1);
//! let status = AdminClient::connect(&target, Duration::from_secs(5))?.status()?;
//! println!("{} members", status.members.len());
//! # Ok(())
//! # }
//! ```

mod client;
mod fleet;
mod health;
#[cfg(all(test, not(squall_loom)))]
mod health_tests;
mod report;
mod serve;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

pub(crate) use self::serve::{Admin, Farewell, Farewells, serve};
pub use self::{
    client::{AdminClient, AdminError, Target},
    fleet::{Fleet, FleetNode, FleetReport},
    health::{Health, HealthReport},
    report::{
        CandidateReport, CertificateReport, ClientsReport, DeniedReport, EmptiedShard, KeysReport, MemberReport,
        NodeCondition, PortReport, RefusedReport, RowReport, ShardCondition, ShardReport, StallReport, StatusReport,
        TrafficReport, ViewLogReport, WaitReport,
    },
};
pub use squall_membership::WaitsFor;

pub use squall_services::{ControlError, FrameError};

/// The longest request and answer, in bytes.
const WORDS: usize = 4 << 20;

/// A request of a command.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Request {
    Status,
    ReloadKeys,
    Suspect(NodeId),
    Leave,
    Recover(String),
}

/// A node's answer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Reply {
    Status(Box<StatusReport>),
    /// The request is done, or under way. A node that has left sends a second one.
    Done,
    /// The success of a recovery: the node goes on alone, and these shards start empty.
    Recovered(Vec<EmptiedShard>),
    /// The request is refused, for the reason in this sentence.
    Refused(String),
}
