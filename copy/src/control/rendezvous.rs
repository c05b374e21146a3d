//! The way from a receiver's name to its process, on one host.
//!
//! A name is that of a socket on this host, `CLUSTER/NAME`, among the names of its user. Only processes of the same
//! user are admitted. Its node id in the fabric is the first 4 bytes of the BLAKE3 of `CLUSTER\0NAME`, under
//! the context `squall cp 1 node id`, little-endian.

use std::{io, os::unix::net::UnixStream};

use squall_fabric::{
    NodeId,
    name::{NameError, check_name_within},
};
use squall_services::local::{self, LocalError, LocalListener};

/// The prefix of a receiver's name.
const KIND: &str = "squall-cp";

/// The longest name of a cluster or receiver, in bytes.
const NAME_BYTES: usize = 32;

/// A reason for which a receiver can't be reached, or can't be one.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// A name breaks the rule of [`check_name`](squall_fabric::name::check_name), here with at most 32 bytes.
    #[error("{name:?} can't be the name of a {what}: {rule}")]
    Name {
        /// The kind of the name: of a cluster, or of a receiver.
        what: &'static str,
        /// The name.
        name: String,
        /// The rule that it breaks.
        rule: NameError,
    },
    /// A name that no process has.
    #[error(
        "no receiver {name:?} runs on this host: start it with `squall cp serve --dir DIRECTORY --name {name} --cluster {cluster}`"
    )]
    Absent {
        /// The receiver's name.
        name: String,
        /// The cluster's name.
        cluster: String,
    },
    /// Another process has the name.
    #[error("a receiver {name:?} of cluster {cluster:?} runs already on this host: stop it, or take another name")]
    Taken {
        /// The receiver's name.
        name: String,
        /// The cluster's name.
        cluster: String,
    },
    /// The process that has the name belongs to another user.
    #[error("the receiver {name:?} belongs to another user, and is not trusted")]
    OtherUser {
        /// The receiver's name.
        name: String,
    },
    /// The system refused.
    #[error("the receiver {name:?} can't be reached: {cause}")]
    System {
        /// The receiver's name.
        name: String,
        /// The system's error.
        cause: io::Error,
    },
}

/// Checks the names of a cluster and a receiver, and returns that of the receiver's socket.
fn full_name(cluster: &str, name: &str) -> Result<String, RendezvousError> {
    for (what, name) in [("cluster", cluster), ("receiver", name)] {
        check_name_within(name, NAME_BYTES).map_err(|rule| RendezvousError::Name {
            what,
            name: name.to_owned(),
            rule,
        })?;
    }
    Ok(format!("{cluster}/{name}"))
}

/// Returns the node id of a name.
pub(crate) fn node_id(cluster: &str, name: &str) -> NodeId {
    let hash = blake3::derive_key("squall cp 1 node id", format!("{cluster}\0{name}").as_bytes());
    NodeId(u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]))
}

/// Returns the fabric's cluster name, so that sources and receivers of copies meet no other nodes.
pub(crate) fn fabric_cluster(cluster: &str) -> String {
    format!("cp/{cluster}")
}

/// Connects to a receiver.
pub(crate) fn dial(cluster: &str, name: &str) -> Result<UnixStream, RendezvousError> {
    let full = full_name(cluster, name)?;
    local::dial(KIND, &full).map_err(|error| match error {
        LocalError::Absent if local::another_user_has(KIND, &full) => {
            no_rendezvous(LocalError::OtherUser, cluster, name)
        }
        error => no_rendezvous(error, cluster, name),
    })
}

fn no_rendezvous(error: LocalError, cluster: &str, name: &str) -> RendezvousError {
    let (name, cluster) = (name.to_owned(), cluster.to_owned());
    match error {
        LocalError::Absent => RendezvousError::Absent { name, cluster },
        LocalError::Taken => RendezvousError::Taken { name, cluster },
        LocalError::OtherUser => RendezvousError::OtherUser { name },
        LocalError::System(cause) => RendezvousError::System { name, cause },
    }
}

/// Takes a name, to which sources can connect from then on.
pub(crate) fn listen(cluster: &str, name: &str) -> Result<LocalListener, RendezvousError> {
    let full = full_name(cluster, name)?;
    LocalListener::bind(KIND, &full).map_err(|error| no_rendezvous(error, cluster, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_receiver_is_named_with_how_to_start_it() {
        let error = dial("test-rendezvous", "nobody").unwrap_err().to_string();
        assert!(error.contains("squall cp serve --dir DIRECTORY --name nobody --cluster test-rendezvous"), "{error}");
    }

    #[test]
    fn a_name_is_taken_once() {
        let _listener = listen("test-rendezvous", "once").unwrap();
        let error = listen("test-rendezvous", "once").unwrap_err();
        assert!(matches!(error, RendezvousError::Taken { .. }), "{error}");
    }

    #[test]
    fn names_that_could_be_others_are_refused() {
        for name in ["", "a/b", "a b", "a,b", &"x".repeat(33)] {
            assert!(matches!(dial("test", name), Err(RendezvousError::Name { .. })), "{name:?}");
        }
    }

    #[test]
    fn the_id_of_a_name_stays_what_it_is() {
        assert_ne!(node_id("cp", "a"), node_id("cp", "b"));
        assert_ne!(node_id("cp", "a"), node_id("other", "a"));
        assert_eq!(node_id("cp", "a"), NodeId(2_863_337_841));
    }
}
