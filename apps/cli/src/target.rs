//! The node that an operator's command asks.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use squall::{
    Config, ConfigError,
    admin::{AdminClient, Fleet, Target},
    config::{Address, KeyFiles, NameError, Security, check_name},
};
use squall_command::CommandError;
use squall_fabric::{
    NodeId,
    net::{Principal, Role},
};

use crate::protection::{Unprotected, key_files};

/// The time that a node may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The roles whose keys a command uses, in the order of preference: members may at least ask for the status of others.
const ROLES: [Role; 3] = [Role::Operator, Role::Member, Role::Witness];

/// The options of all commands that ask a node.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which node to ask")]
pub(crate) struct TargetArgs {
    /// The node that this configuration describes; the environment (SQUALL_ID ..) overrides it, as for a node
    #[arg(long, value_name = "FILE", required_unless_present = "cluster")]
    config: Option<PathBuf>,
    /// The node to ask, of a configuration that all nodes share
    #[arg(long, value_name = "N", requires = "config")]
    id: Option<u32>,
    /// A node of this cluster
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with = "config")]
    cluster: Option<String>,
    /// This node, on this host: of a cluster in shared memory
    #[arg(long, value_name = "N", requires = "cluster", conflicts_with = "address", required_unless_present_any = ["config", "address"])]
    node: Option<u32>,
    /// The node that listens at this `host:port`
    #[arg(long, value_name = "ADDRESS")]
    address: Option<Address>,
    #[command(flatten)]
    keys: KeysArgs,
}

impl TargetArgs {
    pub(crate) fn target(&self) -> Result<Target, CommandError> {
        if let Some(cluster) = &self.cluster {
            return match (&self.address, self.node) {
                (Some(address), _) => {
                    Target::at(cluster, address, &self.keys.security(&ROLES)?).map_err(CommandError::usage)
                }
                (None, Some(node)) => Ok(Target::on_host(cluster, node)),
                (None, None) => Err(CommandError::Usage("give --node or --address with --cluster".into())),
            };
        }
        let Some(path) = &self.config else {
            return Err(CommandError::Usage("give --config, or --cluster with --node or --address".into()));
        };
        let config = load(path, self.id).map_err(CommandError::usage)?;
        match (self.keys.files(&ROLES)?, &self.address) {
            (Some(keys), address) => Target::of_config_with(&config, address.as_ref(), &Security::Tls(keys)),
            (None, Some(address)) => Target::of_config_at(&config, address),
            (None, None) => Target::of(&config),
        }
        .map_err(CommandError::usage)
    }

    /// All nodes of the cluster: those of the configuration, or the one that is named and those that it names.
    pub(crate) fn fleet(&self) -> Result<Fleet, CommandError> {
        match &self.config {
            Some(path) if self.address.is_none() => {
                let config = load(path, self.id).map_err(CommandError::usage)?;
                Fleet::of(&config).map_err(CommandError::usage)
            }
            _ => Ok(Fleet::around(self.target()?)),
        }
    }

    pub(crate) fn connect(&self) -> Result<AdminClient, CommandError> {
        AdminClient::connect(&self.target()?, PATIENCE).map_err(CommandError::failed)
    }
}

/// The keys with which a command proves to nodes that it may ask them.
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// The directory with the cluster's ca.pem, and with the certificate and key of the caller: operator-NAME.pem and
    /// operator-NAME.key. Without it, a command with --config uses the node's own keys
    #[arg(long, value_name = "DIR", conflicts_with = "security")]
    keys: Option<PathBuf>,
    /// The owner of the keys, where the directory has those of several: such as operator-alice, or node-3
    #[arg(long, value_name = "OWNER", requires = "keys", value_parser = owner)]
    keys_of: Option<Principal>,
    /// With --address, of a cluster without keys: «none» to dial other hosts
    #[arg(long, value_enum, requires = "cluster")]
    security: Option<Unprotected>,
}

impl KeysArgs {
    /// The protection that the options ask for, with keys of the first of these roles that has some.
    pub(crate) fn security(&self, roles: &[Role]) -> Result<Security, CommandError> {
        Ok(match (self.files(roles)?, self.security) {
            (Some(keys), _) => Security::Tls(keys),
            (None, Some(Unprotected::None)) => Security::None,
            (None, None) => Security::LoopbackOnly,
        })
    }

    /// The keys in the directory that is named, if one is.
    pub(crate) fn files(&self, roles: &[Role]) -> Result<Option<KeyFiles>, CommandError> {
        let find = |directory: &PathBuf| key_files(directory, self.keys_of.clone(), roles, "--keys-of");
        self.keys.as_ref().map(find).transpose()
    }
}

/// Reads the name of an owner of keys, which is also that of its files.
fn owner(text: &str) -> Result<Principal, String> {
    let number = || text.parse().ok().map(|id| Principal::Member(NodeId(id)));
    let problem = || "give it as its files are named: operator-NAME, node-N, witness-N or client-NAME".to_owned();
    Principal::of_label(text).or_else(number).ok_or_else(problem)
}

/// The configuration in a file, as that of node `id` if one is named.
pub(crate) fn load(file: &Path, id: Option<u32>) -> Result<Config, ConfigError> {
    id.map_or_else(|| Config::load(file), |id| Config::load_as(file, id))
}

/// A name that a cluster or a group may have.
pub(crate) fn name(text: &str) -> Result<String, NameError> {
    check_name(text).map(|()| text.to_owned())
}
