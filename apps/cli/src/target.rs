//! The node that an operator's command asks.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use squall::{
    Config, ConfigError,
    admin::{AdminClient, Fleet, Target},
    config::{Address, NameError, check_name},
};
use squall_command::CommandError;
use squall_fabric::net::Security;

use crate::protection::{ProtectionArgs, Unprotected};

/// The time that a node may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

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
                (Some(address), _) => Ok(Target::at(cluster, address, self.keys.security()?)),
                (None, Some(node)) => Ok(Target::on_host(cluster, node)),
                (None, None) => Err(CommandError::Usage("give --node or --address with --cluster".into())),
            };
        }
        let Some(path) = &self.config else {
            return Err(CommandError::Usage("give --config, or --cluster with --node or --address".into()));
        };
        let config = load(path, self.id).map_err(CommandError::usage)?;
        match &self.address {
            Some(address) => Target::of_config_at(&config, address),
            None => Target::of(&config),
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

/// The keys with which a command proves to members that it may ask them.
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// With --address: the directory with the cluster's ca.pem, and with node-M.pem and node-M.key of some node
    #[arg(long, value_name = "DIR", requires = "cluster", conflicts_with = "security")]
    keys: Option<PathBuf>,
    /// The node whose keys are used, where the directory has those of several
    #[arg(long, value_name = "M", requires = "keys")]
    keys_of: Option<u32>,
    /// With --address, of a cluster without keys: «none» to dial other hosts
    #[arg(long, value_enum, requires = "cluster")]
    security: Option<Unprotected>,
}

impl KeysArgs {
    pub(crate) fn security(&self) -> Result<Security, CommandError> {
        let KeysArgs { keys, keys_of, security } = self;
        ProtectionArgs { keys: keys.clone(), node: *keys_of, security: *security }.security("--keys-of")
    }
}

/// The configuration in a file, as that of node `id` if one is named.
pub(crate) fn load(file: &Path, id: Option<u32>) -> Result<Config, ConfigError> {
    id.map_or_else(|| Config::load(file), |id| Config::load_as(file, id))
}

/// A name that a cluster or a group may have.
pub(crate) fn name(text: &str) -> Result<String, NameError> {
    check_name(text).map(|()| text.to_owned())
}
