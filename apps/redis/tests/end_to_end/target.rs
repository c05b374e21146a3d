//! The store under test: three replicas of its own, or the servers that `SQUALL_KV_ADDRESSES` names.

use std::{env, net::SocketAddr};

use redis_protocol::resp2::types::OwnedFrame;

use crate::{
    machine::until,
    process::{Cluster, Replica},
    wire::{Client, show},
};

/// The variable with the servers' addresses, as `127.0.0.1:7001,127.0.0.1:7002`. A single redis-server is a target as
/// well. It shows that a check asks for nothing that Redis does not do.
const ADDRESSES: &str = "SQUALL_KV_ADDRESSES";

pub(crate) struct Target {
    addresses: Vec<SocketAddr>,
    /// `None` if the store was started outside of the test.
    pub(crate) cluster: Option<Cluster>,
}

impl Target {
    pub(crate) fn start() -> Target {
        if let Ok(given) = env::var(ADDRESSES) {
            let parse = |text: &str| text.parse().unwrap_or_else(|_| panic!("{ADDRESSES}: {text:?} is not HOST:PORT"));
            return Target { addresses: given.split(',').map(parse).collect(), cluster: None };
        }
        let cluster = Cluster::start();
        let addresses = cluster.replicas.iter().map(Replica::address).collect();
        Target { addresses, cluster: Some(cluster) }
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of this client's replica: clients are spread over all.
    pub(crate) fn address(&self, client: usize) -> SocketAddr {
        self.addresses[client % self.addresses.len()]
    }

    /// A connection of this client to its replica.
    pub(crate) fn connect(&self, client: usize) -> Client {
        Client::connect(self.address(client)).expect("the replica listens")
    }

    pub(crate) fn until_all_hold_the_same(&self) {
        until_all_hold_the_same((0..self.addresses.len()).map(|n| self.connect(n)).collect());
    }

    pub(crate) fn stop(self) {
        if let Some(cluster) = self.cluster {
            cluster.stop();
        }
    }
}

/// Waits until the replicas of these clients hold the same. They soon do once there are no more writes and keys that
/// expire are gone.
pub(crate) fn until_all_hold_the_same(mut clients: Vec<Client>) {
    until("all replicas hold the same", || {
        let states: Vec<_> = clients.iter_mut().map(state).collect();
        states.iter().all(|state| *state == states[0])
    });
}

/// The digest of all that a replica holds. Where DEBUG is not allowed, the names of the keys.
fn state(client: &mut Client) -> Vec<String> {
    let digest = client.ask(&["DEBUG", "DIGEST"]);
    if digest.starts_with('-') {
        let OwnedFrame::Array(keys) = client.call(&["KEYS", "*"]).expect("an answer") else {
            panic!("KEYS has no array")
        };
        let mut names: Vec<String> = keys.iter().map(show).collect();
        names.sort_unstable();
        return names;
    }
    assert!(digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    vec![digest]
}

/// A prefix of keys that no other run has used.
pub(crate) fn fresh_prefix(name: &str) -> String {
    format!("{name}:{:016x}:", fastrand::u64(..))
}
