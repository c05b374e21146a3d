//! The operator's side.

use std::{io, time::Duration};

use squall_fabric::NodeId;
use squall_services::{
    Caller, ControlError, ControlStream, DialTarget, Service,
    frame::{self, FrameError},
};

use super::{EmptiedShard, Reply, Request, StatusReport, WORDS};
use crate::{
    Config, FabricError,
    config::{Address, Security},
    fabric::dial::network_caller,
};

/// The node to ask, and the identity of the caller.
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) caller: Caller,
    pub(super) contact: DialTarget,
}

/// A conversation with a node.
#[derive(Debug)]
pub struct AdminClient {
    stream: ControlStream,
}

/// A reason for which a node was not asked, or did not do what it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The node was not reached.
    #[error(transparent)]
    Dial(#[from] ControlError),
    /// The conversation broke off.
    #[error("{node} did not answer: {cause}")]
    Cut {
        /// The node.
        node: NodeId,
        /// The cause.
        cause: FrameError,
    },
    /// The node refused.
    #[error("{node} refuses: {why}")]
    Refused {
        /// The node.
        node: NodeId,
        /// The reason, in a sentence.
        why: String,
    },
    /// The node's answer belongs to another request.
    #[error("{node} gives an answer that was not asked for: run the same version at both ends")]
    Unexpected {
        /// The node.
        node: NodeId,
    },
}

impl Target {
    /// Targets the node that a configuration describes, as that node itself: with its keys. Fails if the keys that the
    /// configuration names can't be used, or are not those of its node and cluster.
    pub fn of(config: &Config) -> Result<Target, FabricError> {
        Ok(Target { caller: config.caller()?, contact: config.contact(config.id()) })
    }

    /// Targets a node of a cluster in shared memory, on this host, of this user.
    pub fn on_host(cluster: impl Into<String>, node: u32) -> Target {
        // The caller is no node.
        Target { caller: Caller::on_host(cluster, NodeId(u32::MAX)), contact: DialTarget::on_host(NodeId(node)) }
    }

    /// Targets the node of a cluster that listens at an address, with the keys of an operator or a node. Fails if these
    /// can't be used.
    pub fn at(cluster: impl Into<String>, address: &Address, security: &Security) -> Result<Target, FabricError> {
        Ok(Target { caller: network_caller(cluster, security)?, contact: DialTarget::at(address) })
    }

    /// Targets the node that a configuration describes, or the node of its cluster that listens at an address, with the
    /// caller's own keys. Fails if these can't be used.
    pub fn of_config_with(
        config: &Config,
        address: Option<&Address>,
        security: &Security,
    ) -> Result<Target, FabricError> {
        let contact = address.map_or_else(|| config.contact(config.id()), DialTarget::at);
        Ok(Target { caller: network_caller(config.cluster(), security)?, contact })
    }

    /// Targets the node of a configuration's cluster that listens at an address, as the node that the configuration
    /// describes. Fails as [`of`](Target::of) does.
    pub fn of_config_at(config: &Config, address: &Address) -> Result<Target, FabricError> {
        let security = crate::fabric::net_config(config)?.security;
        let caller = Caller::on_network(config.cluster(), config.id(), security);
        Ok(Target { caller, contact: DialTarget::at(address) })
    }
}

impl AdminClient {
    /// Calls a node. Each answer, too, may take as long as `timeout`. Fails if the node can't be reached within
    /// `timeout`, or does not accept the caller.
    pub fn connect(target: &Target, timeout: Duration) -> Result<AdminClient, AdminError> {
        let client = AdminClient { stream: target.caller.dial(&target.contact, Service::Admin, timeout)? };
        client.stream.set_timeout(Some(timeout)).map_err(|error| client.cut(error))?;
        Ok(client)
    }

    /// Returns the node that answers.
    pub fn node(&self) -> NodeId {
        self.stream.peer
    }

    /// Returns the node's view of its cluster. Fails if the conversation broke off, or if no answer came within the
    /// timeout.
    pub fn status(&mut self) -> Result<StatusReport, AdminError> {
        match self.ask(&Request::Status)? {
            Reply::Status(report) => Ok(*report),
            other => Err(self.unexpected(other)),
        }
    }

    /// Makes the node suspect a member, as if that member had failed. If it runs, it is dropped from the view, and
    /// joins again. Fails if the node refuses, or as [`status`](AdminClient::status) does.
    pub fn suspect(&mut self, node: NodeId) -> Result<(), AdminError> {
        self.tell(&Request::Suspect(node))
    }

    /// Makes the node read its keys again. Fails if it has none, or if those in the files can't be used: it goes on
    /// with those that it has.
    pub fn reload_keys(&mut self) -> Result<(), AdminError> {
        self.tell(&Request::ReloadKeys)
    }

    /// Makes the node leave its group, and waits until it has left, for `timeout` at most. Fails if the node refuses,
    /// or has not left after `timeout`.
    pub fn leave(&mut self, timeout: Duration) -> Result<(), AdminError> {
        self.tell(&Request::Leave)?;
        self.stream.set_timeout(Some(timeout)).map_err(|error| self.cut(error))?;
        match self.hear() {
            Ok(Reply::Done) => Ok(()),
            // The node has left, and its process has ended before it could answer.
            Err(AdminError::Cut { cause: FrameError::Closed, .. }) => Ok(()),
            Ok(other) => Err(self.unexpected(other)),
            Err(error) => Err(error),
        }
    }

    /// Makes the node go on with what is left of the group, without a quorum of the voters: see `squall recover`.
    /// `reason` is recorded in the view log: it names the operator, the time and the cause. Returns the shards that
    /// start empty. Fails if the node refuses, or as [`status`](AdminClient::status) does.
    pub fn recover(&mut self, reason: impl Into<String>) -> Result<Vec<EmptiedShard>, AdminError> {
        match self.ask(&Request::Recover(reason.into()))? {
            Reply::Recovered(emptied) => Ok(emptied),
            other => Err(self.unexpected(other)),
        }
    }

    fn tell(&mut self, request: &Request) -> Result<(), AdminError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    fn unexpected(&self, reply: Reply) -> AdminError {
        let node = self.node();
        match reply {
            Reply::Refused(why) => AdminError::Refused { node, why },
            Reply::Status(_) | Reply::Done | Reply::Recovered(_) => AdminError::Unexpected { node },
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, AdminError> {
        frame::write(&mut self.stream.writer, request, WORDS).map_err(|cause| self.cut(cause))?;
        self.hear()
    }

    fn hear(&mut self) -> Result<Reply, AdminError> {
        frame::read(&mut self.stream.reader, WORDS).map_err(|cause| match cause {
            cause if cause.is_late() => {
                self.cut(io::Error::new(io::ErrorKind::TimedOut, "there was no answer in time"))
            }
            cause => self.cut(cause),
        })
    }

    fn cut(&self, cause: impl Into<FrameError>) -> AdminError {
        AdminError::Cut { node: self.node(), cause: cause.into() }
    }
}
