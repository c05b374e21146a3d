//! The members that a command talks to, and the options that name them.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use squall::{
    ConfigError, NodeId,
    client::{ClientConfig, ClientConfigError},
    config::{Address, Security},
    log_service::{LogClient, LogError},
};
use squall_command::CommandError;
use squall_fabric::net::Role;

use crate::target::{KeysArgs, load, name};

/// The roles whose keys a command uses, in the order of preference.
const ROLES: [Role; 3] = [Role::Client, Role::Operator, Role::Member];

/// The time that a reader's call may take.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// The time that one member may take to answer where all are asked.
pub(super) const MEMBER_PATIENCE: Duration = Duration::from_secs(5);

/// The bounds within which --timeout is taken as it is.
const TIMEOUTS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1 << 20)];

/// The options of all commands that talk to members.
#[derive(Debug, Args)]
#[command(next_help_heading = "Members to ask")]
pub(super) struct ReachArgs {
    /// The members that this configuration names; the environment (SQUALL_CLUSTER ..) overrides it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node whose keys are used, where all nodes share a configuration [default: what SQUALL_ID or the file says,
    /// else 1]
    #[arg(long, value_name = "N", requires = "config")]
    id: Option<u32>,
    /// Members of this cluster
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with = "config")]
    cluster: Option<String>,
    /// Some members' ids, on this host: of a cluster in shared memory. To read from one alone, name only that
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "cluster", conflicts_with = "address")]
    node: Vec<u32>,
    /// Some members' addresses, as `host:port`. To read from one alone, name only that
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', requires = "cluster")]
    address: Vec<Address>,
    #[command(flatten)]
    keys: KeysArgs,
    /// The durable group
    #[arg(long, value_name = "NAME", value_parser = name, default_value = "log")]
    group: String,
    /// The time to try where no member answers; a number alone is in seconds [default: 5m to append, else 30s]
    #[arg(long, value_name = "TIME", value_parser = squall_units::seconds)]
    timeout: Option<Duration>,
}

impl ReachArgs {
    pub(super) fn group(&self) -> &str {
        &self.group
    }

    /// The time that a call may take: `default` without the option.
    pub(super) fn timeout_or(&self, default: Duration) -> Duration {
        let [least, most] = TIMEOUTS;
        self.timeout.map_or(default, |timeout| timeout.clamp(least, most))
    }

    /// The configuration of a client of the cluster.
    pub(super) fn client(&self) -> Result<ClientConfig, CommandError> {
        let client = match (&self.config, &self.cluster) {
            (Some(path), _) => {
                let client = match self.keys.files(&ROLES)? {
                    Some(keys) => ClientConfig::load_with(path, Security::Tls(keys)),
                    None => match load(path, self.id) {
                        // A client is no node, so it need not say which one it is.
                        Err(ConfigError::Value { key, .. }) if key == "id" => ClientConfig::load(path),
                        config => {
                            config.map_err(ClientConfigError::from).and_then(|config| Ok(ClientConfig::of(&config)?))
                        }
                    },
                };
                client.map_err(CommandError::usage)?
            }
            (None, Some(cluster)) if !self.address.is_empty() => ClientConfig::on_network(
                cluster,
                self.address.iter().map(Address::to_string),
                &self.keys.security(&ROLES)?,
            )
            .map_err(CommandError::usage)?,
            (None, Some(_)) if self.node.is_empty() => {
                return Err(CommandError::Usage("give some members' --node or --address with --cluster".into()));
            }
            (None, Some(cluster)) => ClientConfig::on_host(cluster, self.node.iter().copied().map(NodeId)),
            (None, None) => {
                return Err(CommandError::Usage("give --config, or --cluster with --node or --address".into()));
            }
        };
        Ok(client.with_timeout(self.timeout_or(READ_PATIENCE)))
    }

    /// Whether one member is named, so that no other is to answer.
    pub(super) fn names_one(&self) -> bool {
        self.node.len() + self.address.len() == 1
    }

    /// A reader of the log: at the one member that is named, or at any.
    pub(super) fn log(&self) -> Result<LogClient, CommandError> {
        let log = LogClient::new(&self.client()?, &self.group);
        Ok(if self.names_one() { log.at_contacts() } else { log })
    }

    /// The error of a command that got no answer.
    pub(super) fn failed(&self, error: LogError) -> CommandError {
        match (&error, self.node.first(), self.address.first()) {
            (LogError::Unreachable { .. }, Some(node), _) if self.names_one() => CommandError::Failed(format!(
                "{error}; only node {node} was asked, which is named: name others to ask them, too"
            )),
            (LogError::Unreachable { .. }, None, Some(address)) if self.names_one() => CommandError::Failed(format!(
                "{error}; only {address} was asked, which is named: name others to ask them, too"
            )),
            _ => CommandError::failed(error),
        }
    }
}
