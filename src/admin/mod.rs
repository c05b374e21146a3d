//! What operators ask of a node that runs, and tell it: what `squall status`, `suspect`, `leave` and `recover` do.
//!
//! A node answers over a control stream: to processes of its own user on its host where the cluster is in shared memory, else
//! at its port, to who shows a certificate of the cluster's CA. (Without a CA, to whoever reaches the port.)
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
mod report;
mod serve;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

pub(crate) use self::serve::{Admin, Farewell, Farewells, serve};
pub use self::{
    client::{AdminClient, AdminError, Target},
    report::{
        CandidateReport, EmptiedShard, MemberReport, RowReport, ShardCondition, ShardReport, StallReport, Standing,
        StatusReport, ViewLogReport,
    },
};
pub use squall_membership::WaitsFor;

pub use crate::control::{ControlError, FrameError};

/// The longest question and answer, in bytes.
const WORDS: usize = 4 << 20;

/// What a command asks.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Request {
    Status,
    Suspect(NodeId),
    Leave,
    Recover(String),
}

/// What a node answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Reply {
    Status(Box<StatusReport>),
    /// It is done, or under way. Once this node has left there is another one.
    Done,
    /// This node goes on alone, and these shards start empty.
    Recovered(Vec<EmptiedShard>),
    /// It is not, and why, in a sentence.
    Refused(String),
}
