//! The fabric of a run's messages, and the places of its nodes.

use std::{io, net::TcpListener, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use squall::{
    Config, ConfigBuilder, NodeId,
    config::{Address, Backend, Security, VerbsOptions},
    keys::{Authority, Files, KeysError},
};
use squall_command::{CommandError, TemporaryDirectory};

/// The fabric that carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FabricKind {
    /// Shared memory of this host
    Shm,
    /// Sockets: over loopback, unless addresses are given
    Tcp,
    /// RDMA, in a program that was built with the feature `verbs`
    Verbs,
}

impl FabricKind {
    /// The default of a configuration.
    pub(crate) fn default_bulk_threshold(self) -> usize {
        match self {
            FabricKind::Shm | FabricKind::Tcp => 256 << 10,
            FabricKind::Verbs => 10 << 10,
        }
    }
}

/// Options for the places of nodes.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The fabric that carries the messages
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) fabric: FabricKind,
    /// Protect all connections by TLS, with keys of this run alone (not with --fabric shm)
    #[arg(long)]
    pub(crate) tls: bool,
    /// The addresses at which the nodes listen, in order, as HOST or HOST:PORT; {host} stands for the node's number,
    /// from 1, so that one entry is enough [default: free ports of 127.0.0.1]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    addresses: Vec<String>,
    /// The RDMA device of each node, with --fabric verbs; {host} stands for its number, from 1 [default: the first with
    /// an active port]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Start each node through this command, such as "ip netns exec host{host}"; {host} stands for its number, from 1
    #[arg(long, value_name = "COMMAND")]
    wrap: Option<String>,
}

/// The port where an address names none.
const PORT: u16 = 7700;

impl PlaceArgs {
    pub(crate) fn check(&self, most_nodes: u32) -> Result<(), String> {
        if self.fabric == FabricKind::Verbs && !cfg!(feature = "verbs") {
            return Err(
                "this program was built without RDMA: build it with `-p squall-bench --features verbs`, which needs libibverbs"
                    .into(),
            );
        }
        if self.fabric == FabricKind::Shm && (self.tls || !self.addresses.is_empty() || self.wrap.is_some()) {
            return Err(
                "--tls, --addresses and --wrap are for nodes on a network: give --fabric tcp or verbs too".into()
            );
        }
        if self.device.is_some() && self.fabric != FabricKind::Verbs {
            return Err("--device is an RDMA device: give --fabric verbs too".into());
        }
        if self.wrap.as_ref().is_some_and(|wrap| wrap.trim().is_empty()) {
            return Err("--wrap \"\" starts nothing: give a command, such as \"ip netns exec host{host}\"".into());
        }
        if self.fabric != FabricKind::Shm && !self.addresses.is_empty() {
            self.listed(most_nodes)?;
        }
        Ok(())
    }

    /// Finds a place for each of `nodes` nodes of a new cluster, and makes keys if they need some.
    pub(crate) fn find(&self, nodes: u32) -> Result<NodePlaces, CommandError> {
        let places = NodePlaces::on_this_host();
        if self.fabric == FabricKind::Shm {
            return Ok(places);
        }
        let failed = |error| CommandError::Failed(format!("no free port of 127.0.0.1 was found: {error}"));
        let addresses = match self.addresses.is_empty() {
            true => free_ports(nodes).map_err(failed)?,
            false => self.listed(nodes).map_err(CommandError::Failed)?,
        };
        let keys = self.tls.then(|| RunKeys::make(&places.cluster, nodes)).transpose().map_err(CommandError::failed)?;
        let place = NodeAddresses {
            fabric: self.fabric,
            device: self.device.clone(),
            addresses,
            keys: keys.as_ref().map(|keys| keys.directory.path().to_owned()),
        };
        Ok(NodePlaces { place: Some(place), wrap: self.wrap.clone(), keys, ..places })
    }

    fn listed(&self, nodes: u32) -> Result<Vec<String>, String> {
        let pattern = match &self.addresses[..] {
            [one] if one.contains(HOST) => Some(one),
            list if list.len() < nodes as usize => {
                return Err(format!(
                    "--addresses lists {} for {nodes} nodes: give one for each, or one with {HOST} in it",
                    list.len()
                ));
            }
            _ => None,
        };
        let of = |node: u32| {
            let text = numbered(pattern.unwrap_or_else(|| &self.addresses[node as usize]), node);
            let address = text.parse().or_else(|_| format!("{text}:{PORT}").parse::<Address>());
            address.map(|address| address.to_string()).map_err(|remedy| format!("--addresses has {text:?}: {remedy}"))
        };
        (0..nodes).map(of).collect()
    }
}

/// The text that stands for a node's number, from 1.
const HOST: &str = "{host}";

fn numbered(text: &str, node: u32) -> String {
    text.replace(HOST, &(node + 1).to_string())
}

/// Shorter than the parent's patience, so that a node can report which members are missing.
pub(crate) const FORMATION_TIMEOUT: Duration = Duration::from_secs(20);

/// The configuration of one of `nodes` nodes.
pub(crate) fn configure(cluster: &str, node: u32, nodes: u32, place: Option<&NodeAddresses>) -> ConfigBuilder {
    let config = Config::builder(cluster, node).members(0..nodes);
    match place {
        Some(place) => place.apply(config, node),
        None => config.backend(Backend::Shm),
    }
}

/// Ports of loopback that were free a moment ago.
fn free_ports(nodes: u32) -> io::Result<Vec<String>> {
    // All listeners are open at once, so that no port comes twice.
    let held = (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

/// The place of one run's nodes, and the keys that go with the run.
#[derive(Debug)]
pub(crate) struct NodePlaces {
    /// A name that no other run's nodes have.
    pub(crate) cluster: String,
    pub(crate) place: Option<NodeAddresses>,
    wrap: Option<String>,
    #[expect(dead_code, reason = "its files go with it")]
    keys: Option<RunKeys>,
}

impl NodePlaces {
    /// The nodes share memory.
    pub(crate) fn on_this_host() -> NodePlaces {
        let cluster = format!("squall-bench-{}-{:016x}", std::process::id(), fastrand::u64(..));
        NodePlaces { cluster, place: None, wrap: None, keys: None }
    }

    /// The nodes of all workers.
    pub(crate) fn workers(&self, nodes: u32) -> impl Iterator<Item = WorkerNode> {
        let (cluster, place) = (&self.cluster, &self.place);
        (0..nodes).map(move |node| WorkerNode { cluster: cluster.clone(), node, nodes, place: place.clone() })
    }

    /// The command through which a node is started: a program and its first arguments.
    pub(crate) fn wrapper(&self, node: u32) -> Vec<String> {
        let words = self.wrap.iter().flat_map(|wrap| wrap.split_whitespace());
        words.map(|word| numbered(word, node)).collect()
    }
}

/// The node of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerNode {
    /// Unique to the run, so that nodes of different runs never connect.
    pub(crate) cluster: String,
    /// This worker's node, from 0, which is also its rank.
    pub(crate) node: u32,
    pub(crate) nodes: u32,
    /// The addresses of the node; None in shared memory.
    pub(crate) place: Option<NodeAddresses>,
}

impl WorkerNode {
    /// The configuration that the fabric is opened with.
    pub(crate) fn config(&self) -> Result<Config, String> {
        configure(&self.cluster, self.node, self.nodes, self.place.as_ref()).build().map_err(|error| error.to_string())
    }

    /// The fabric as the command line spells it.
    pub(crate) fn fabric(&self) -> FabricKind {
        self.place.as_ref().map_or(FabricKind::Shm, |place| place.fabric)
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.keys.is_some())
    }
}

/// The fabric and the addresses of all nodes of a network, as each node is told them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeAddresses {
    fabric: FabricKind,
    /// The name of the RDMA device, as it was given.
    device: Option<String>,
    /// The addresses, by node.
    addresses: Vec<String>,
    /// The directory of the keys, if there is TLS.
    keys: Option<PathBuf>,
}

impl NodeAddresses {
    /// The addresses, by node.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The addresses of the first nodes alone.
    pub(crate) fn of_first(mut self, nodes: u32) -> NodeAddresses {
        self.addresses.truncate(nodes as usize);
        self
    }

    /// Puts the place into a configuration.
    fn apply(&self, config: ConfigBuilder, node: u32) -> ConfigBuilder {
        let security = match &self.keys {
            // A benchmark's messages are no secret.
            None => Security::None,
            Some(directory) => Security::Tls(Files::in_directory(directory).of(NodeId(node))),
        };
        let all = (0..).zip(&self.addresses);
        let config = all.fold(config, |config, (node, address)| config.addresses(node, [address]));
        let backend = match self.fabric {
            FabricKind::Shm => Backend::Shm,
            FabricKind::Tcp => Backend::Tcp,
            FabricKind::Verbs => Backend::Verbs,
        };
        let device = self.device.as_ref().map(|device| numbered(device, node));
        config.backend(backend).verbs(VerbsOptions { device, ..VerbsOptions::default() }).security(security)
    }
}

/// Keys of a run, in a directory that is removed with them.
#[derive(Debug)]
struct RunKeys {
    directory: TemporaryDirectory,
}

impl RunKeys {
    fn make(cluster: &str, nodes: u32) -> Result<RunKeys, KeysError> {
        let directory = TemporaryDirectory::new("bench-keys");
        let directory = directory.map_err(|cause| KeysError::Write { path: std::env::temp_dir(), cause })?;
        let files = Files::in_directory(directory.path());
        let authority = Authority::create(cluster)?;
        authority.save(&files, false)?;
        for node in (0..nodes).map(NodeId) {
            authority.issue(node, 1)?.save(&files, false)?;
        }
        Ok(RunKeys { directory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(addresses: &[&str]) -> PlaceArgs {
        let addresses = addresses.iter().map(|text| (*text).to_owned()).collect();
        PlaceArgs {
            fabric: FabricKind::Tcp,
            tls: false,
            addresses,
            device: None,
            wrap: Some("ip netns exec host{host}".into()),
        }
    }

    fn config(places: &NodePlaces, node: usize) -> Config {
        assert!(places.place.is_some(), "they are on a network");
        places.workers(2).nth(node).expect("there are two").config().expect("it is possible")
    }

    #[test]
    fn nodes_are_told_where_all_are() {
        for (listed, expected) in [
            (&["host{host}"][..], ["host1:7700", "host2:7700"]),
            (&["[fd77::{host}]:1"], ["[fd77::1]:1", "[fd77::2]:1"]),
            (&["[fd77::{host}]"], ["[fd77::1]:7700", "[fd77::2]:7700"]),
            (&["10.0.0.1:80", "10.0.0.2", "10.0.0.3"], ["10.0.0.1:80", "10.0.0.2:7700"]),
        ] {
            let places = args(listed).find(2).unwrap();
            let config = config(&places, 1);
            let addresses = [0, 1].map(|node| config.addresses(NodeId(node))[0].to_string());
            assert_eq!(addresses, expected);
            assert_eq!(places.wrapper(1), ["ip", "netns", "exec", "host2"]);
        }
        let places = args(&[]).find(2).unwrap();
        let config = config(&places, 0);
        assert!(config.listen()[0].is_loopback());
        assert_ne!(config.addresses(NodeId(0)), config.addresses(NodeId(1)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let error = args(&["10.0.0.1"]).check(2).unwrap_err();
        assert!(error.contains("--addresses lists 1 for 2 nodes"), "{error}");
        assert!(args(&["10.0.0"]).check(1).is_err());
        let shm = PlaceArgs { fabric: FabricKind::Shm, wrap: None, ..args(&[]) };
        assert_eq!(shm.check(2), Ok(()));
        let protected = PlaceArgs { tls: true, ..shm.clone() };
        assert!(protected.check(2).unwrap_err().contains("--fabric tcp"));
        let device = PlaceArgs { device: Some("rxe0".into()), ..shm };
        assert!(device.check(2).unwrap_err().contains("--fabric verbs"));
    }

    #[test]
    fn a_run_has_keys_of_its_own_and_leaves_none() {
        let places = PlaceArgs { tls: true, ..args(&[]) }.find(2).unwrap();
        for node in [0, 1] {
            config(&places, node).check_keys().expect("they are this node's");
        }
        let directory = places.place.as_ref().and_then(|place| place.keys.clone()).expect("there are keys");
        assert!(directory.is_dir());
        drop(places);
        assert!(!directory.exists());
    }
}
