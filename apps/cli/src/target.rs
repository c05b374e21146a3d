//! The node that an operator's command asks.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use squall::{
    Config,
    admin::{AdminClient, AdminError, Target},
    config::{Address, NameError, check_name},
};
use squall_command::CommandError;

use crate::protection::{ProtectionArgs, Unprotected};

/// The time that a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

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

impl TargetArgs {
    pub(crate) fn target(&self) -> Result<Target, CommandError> {
        let usage = |error: &dyn std::fmt::Display| CommandError::Usage(error.to_string());
        if let Some(cluster) = &self.cluster {
            let protection = ProtectionArgs { keys: self.keys.clone(), node: self.keys_of, security: self.security };
            return match (&self.address, self.node) {
                (Some(address), _) => Ok(Target::at(cluster, address, protection.security()?)),
                (None, Some(node)) => Ok(Target::on_host(cluster, node)),
                (None, None) => Err(CommandError::Usage("give --node or --address with --cluster".into())),
            };
        }
        let Some(path) = &self.config else {
            return Err(CommandError::Usage("give --config, or --cluster with --node or --address".into()));
        };
        let config = match self.id {
            Some(id) => Config::load_as(path, id),
            None => Config::load(path),
        };
        let config = config.map_err(|error| usage(&error))?;
        match &self.address {
            Some(address) => Target::of_config_at(&config, address),
            None => Target::of(&config),
        }
        .map_err(|error| usage(&error))
    }

    pub(crate) fn connect(&self) -> Result<AdminClient, CommandError> {
        AdminClient::connect(&self.target()?, PATIENCE).map_err(failed)
    }
}

/// A name that a cluster or a group may have.
pub(crate) fn name(text: &str) -> Result<String, NameError> {
    check_name(text).map(|()| text.to_owned())
}

/// The error of a command whose node refused it, or could not be reached.
pub(crate) fn failed(error: AdminError) -> CommandError {
    CommandError::Failed(error.to_string())
}
