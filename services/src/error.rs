//! The errors of streams between nodes.

use std::io;

use squall_fabric::{
    NodeId,
    name::NameError,
    net::{DialError, ServiceId},
};

use super::frame::is_late;

/// A reason for which a service of a node could not be reached, or offered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The cluster's name breaks the rule for names.
    #[error("{cluster:?} can't be the name of a cluster: {rule}")]
    Name {
        /// The cluster's name.
        cluster: String,
        /// The rule that it breaks.
        rule: NameError,
    },
    /// The lack of a process that has the node's name on this host.
    #[error(
        "{node} of cluster {cluster:?} does not run on this host: start it, or give the cluster and the id of one that runs"
    )]
    Absent {
        /// The node.
        node: NodeId,
        /// The cluster's name.
        cluster: String,
    },
    /// Another process is this node.
    #[error(
        "{node} of cluster {cluster:?} runs already on this host: stop that process, or give this node an id of its own"
    )]
    Taken {
        /// The node.
        node: NodeId,
        /// The cluster's name.
        cluster: String,
    },
    /// The process that is that node belongs to another user.
    #[error("{node} runs as another user, and is not trusted: run both as the same user")]
    OtherUser {
        /// The node.
        node: NodeId,
    },
    /// The node's address is not known.
    #[error("it is not known where {} listens: it has no address, so that only it can dial others", whom(.node))]
    NoAddress {
        /// The node, if it is known.
        node: Option<NodeId>,
    },
    /// A call that names no node, though on one host nodes are reached by their ids.
    #[error("a node of a cluster in shared memory is reached by its id, and none was given")]
    NoNode,
    /// The node's port was not reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The node has no such service now.
    #[error("{node} does not offer {service} now: it is starting or ending, or has no part in a cluster")]
    NoService {
        /// The node.
        node: NodeId,
        /// The service.
        service: ServiceId,
    },
    /// The node has as many streams as it permits, or as many of this caller as one may have.
    #[error("{node} has no room for one more stream of {service}: close some, or try again later")]
    Busy {
        /// The node.
        node: NodeId,
        /// The service.
        service: ServiceId,
    },
    /// The other side is no Squall node.
    #[error("{} does not answer as a Squall node does: look at what listens there", whom(.node))]
    NoSquall {
        /// The node that was called, if it is known.
        node: Option<NodeId>,
    },
    /// The other side speaks another version.
    #[error(
        "the other side speaks version {theirs} of control streams, this one {ours}: run the same version at both ends"
    )]
    Version {
        /// This side's version.
        ours: u32,
        /// The other side's version.
        theirs: u32,
    },
    /// Another node answers.
    #[error("{found} answers, but {node} was called: correct the address")]
    OtherNode {
        /// The node that was called.
        node: NodeId,
        /// The node that answers.
        found: NodeId,
    },
    /// The lack of an answer for too long, or the end of the stream by the other side.
    #[error("{} was called, and {}", whom(.node), ended(.cause))]
    Cut {
        /// The node that was called, if it is known.
        node: Option<NodeId>,
        /// The system's error.
        cause: io::Error,
    },
    /// The system refused.
    #[error("it was not possible to {attempt}: {cause}")]
    System {
        /// The operation that failed.
        attempt: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

impl ControlError {
    /// Returns the reason, in a sentence, if the caller's certificate does not permit the service.
    pub fn denied(&self) -> Option<&str> {
        match self {
            ControlError::Dial(DialError::Denied { why, .. }) => Some(why),
            _ => None,
        }
    }
}

fn whom(node: &Option<NodeId>) -> String {
    node.map_or_else(|| "the node that was called".to_owned(), |node| node.to_string())
}

fn ended(cause: &io::Error) -> String {
    match cause.kind() {
        _ if is_late(cause) => "did not answer in time".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "closed the stream".to_owned()
        }
        _ => format!("the stream failed: {cause}"),
    }
}
