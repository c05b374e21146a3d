//! The store that a check looks at: three replicas of its own, or whatever `SQUALL_KV_ADDRESSES` names.

use std::{
    env,
    io::{self, Write},
    net::SocketAddr,
    time::Duration,
};

use crate::{
    process::{Cluster, until},
    wire::{Answer, Connection},
};

/// Where the replicas listen, as `127.0.0.1:7001,127.0.0.1:7002`: one redis-server is a target as well, and shows that
/// a check asks for nothing that Redis does not do.
const ADDRESSES: &str = "SQUALL_KV_ADDRESSES";

/// How long any answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Target {
    addresses: Vec<SocketAddr>,
    /// None if somebody else started it.
    pub(crate) cluster: Option<Cluster>,
}

impl Target {
    pub(crate) fn start() -> Target {
        if let Ok(given) = env::var(ADDRESSES) {
            let parse = |text: &str| text.parse().unwrap_or_else(|_| panic!("{ADDRESSES}: {text:?} is not HOST:PORT"));
            return Target { addresses: given.split(',').map(parse).collect(), cluster: None };
        }
        let cluster = Cluster::start();
        let addresses = cluster.replicas.iter().map(|replica| ([127, 0, 0, 1], replica.port).into()).collect();
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
    pub(crate) fn connect(&self, client: usize) -> Connection {
        Connection::open(self.address(client), PATIENCE).expect("the replica listens")
    }

    /// Waits until all replicas hold the same, which they soon do once nobody writes and what expires is gone.
    pub(crate) fn until_all_hold_the_same(&self) {
        let mut connections: Vec<Connection> = (0..self.addresses.len()).map(|n| self.connect(n)).collect();
        let mut states = Vec::new();
        until("all replicas hold the same", || {
            states = connections.iter_mut().map(state).collect();
            states.iter().all(|state| *state == states[0])
        });
    }

    pub(crate) fn stop(self) {
        if let Some(cluster) = self.cluster {
            cluster.stop();
        }
    }
}

/// The digest of all that a replica holds; where DEBUG is not allowed, the names of the keys.
fn state(connection: &mut Connection) -> Vec<String> {
    match connection.ask(&["DEBUG", "DIGEST"]).expect("an answer") {
        Answer::Error(_) => {
            let keys = connection.ask(&["KEYS", "*"]).expect("an answer").array().expect("keys");
            let mut names: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
            names.sort_unstable();
            names
        }
        digest => vec![format!("{digest:?}")],
    }
}

/// A beginning of keys that no other run has used.
pub(crate) fn fresh_prefix(name: &str) -> String {
    format!("{name}:{:016x}:", fastrand::u64(..))
}

/// Says why a test did not run, unless skips are forbidden.
pub(crate) fn skip(reason: &str) {
    assert!(env::var_os("SQUALL_FORBID_SKIPS").is_none(), "{reason}, and SQUALL_FORBID_SKIPS is set");
    // Past the test harness, which keeps what passing tests print to itself.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}
