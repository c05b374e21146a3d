//! Streams and messages between nodes in threads.

mod messages;
mod nodes;
mod streams;

use std::time::Duration;

use squall_fabric::NodeId;

use self::nodes::{Node, PATIENCE, WAYS, Way, caller, fresh_cluster};
use super::*;
