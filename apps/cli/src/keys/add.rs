//! `squall keys add`: certificates and keys for nodes, clients and operators.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use squall::{
    NodeId,
    keys::{Authority, ClientRights, Files, IssuedKeys, KeyFiles, KeysError, MAX_DAYS, Principal},
};
use squall_command::say;
use squall_units::TimeUnit;

use super::until;
use crate::target::name;

const ADD_HELP: &str = "\
Examples:
  squall keys add --dir keys --node 1,2,3
  squall keys add --dir keys --node 2 --force --valid-for 30d
  squall keys add --dir keys --client dashboard --group accounts --read-only
  squall keys add --dir keys --operator alice --valid-for 30d";

/// Makes a certificate and a key for each of these owners.
#[derive(Debug, Args)]
#[command(after_help = ADD_HELP)]
#[group(id = "owners", required = true, multiple = true, args = ["node", "witness", "client", "operator"])]
pub(super) struct AddArgs {
    /// The directory of the CA and of the keys
    #[arg(long, value_name = "DIR", default_value = "keys")]
    dir: PathBuf,
    /// Ids of nodes that are members, or copy files
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1..)]
    node: Vec<u32>,
    /// Ids of nodes that only vote
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1..)]
    witness: Vec<u32>,
    /// Names of programs that send commands and queries from outside
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 1..)]
    client: Vec<String>,
    /// Names of persons and programs that look after the cluster: they may order nodes to leave, suspect or recover
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 1..)]
    operator: Vec<String>,
    /// The groups that these clients may call [default: all]
    #[arg(long, value_name = "GROUP", value_delimiter = ',', num_args = 1.., requires = "client", value_parser = name)]
    group: Option<Vec<String>>,
    /// These clients may send queries, and no commands
    #[arg(long, requires = "client")]
    read_only: bool,
    /// These clients may also read the logs of durable groups, in which all commands of all clients are
    #[arg(long, requires = "client")]
    logs: bool,
    /// The time for which the certificates are good, in whole days, of which a number alone is one; never longer than
    /// the CA's own
    #[arg(long, alias = "days", value_name = "TIME", default_value = "365d", value_parser = days)]
    valid_for: u32,
    /// Replace keys that are there
    #[arg(long)]
    force: bool,
}

/// Reads a time as a number of days.
fn days(text: &str) -> Result<u32, String> {
    const DAY: Duration = Duration::from_secs(86_400);
    squall_units::whole_in(DAY..=DAY * MAX_DAYS, TimeUnit::Days)(text).map(|days| days as u32)
}

impl AddArgs {
    /// The owners, each once.
    fn owners(&self) -> BTreeSet<Principal> {
        let nodes = self.node.iter().map(|&id| Principal::Member(NodeId(id)));
        let witnesses = self.witness.iter().map(|&id| Principal::Witness(NodeId(id)));
        let groups = self.group.as_ref().map(|groups| groups.iter().cloned().collect());
        let rights = ClientRights { groups, commands: !self.read_only, logs: self.logs };
        let clients = self.client.iter().map(|name| Principal::Client(name.clone(), rights.clone()));
        let operators = self.operator.iter().cloned().map(Principal::Operator);
        nodes.chain(witnesses).chain(clients).chain(operators).collect()
    }

    pub(super) fn run(self) -> Result<(), KeysError> {
        let files = Files::in_directory(&self.dir);
        let authority = Authority::load(&files)?;
        let owners = self.owners().into_iter();
        let made: Vec<IssuedKeys> =
            owners.map(|owner| authority.issue(owner, self.valid_for)).collect::<Result<_, _>>()?;
        // All or none: half of a list would have to be taken out of the next call.
        let of = |keys: &IssuedKeys| files.of(keys.owner().clone());
        let mut all = made.iter().flat_map(|keys| [of(keys).key, of(keys).certificate]);
        if let Some(path) = all.find(|path| !self.force && path.exists()) {
            return Err(KeysError::Exists { path });
        }
        for keys in &made {
            keys.save(&files, self.force)?;
        }
        let Some(first) = made.first() else { return Ok(()) };
        say(format_args!("made keys of cluster {:?}, good until {}", authority.cluster(), until(first.certificate())));
        for keys in &made {
            let KeyFiles { certificate, key, .. } = of(keys);
            let owner = keys.owner();
            let may = if let Principal::Client(_, rights) = owner { format!("  may {rights}") } else { String::new() };
            say(format_args!("  {:<10} {}  {}{may}", owner.to_string(), certificate.display(), key.display()));
        }
        let node = made.iter().find(|keys| keys.owner().node().is_some());
        self.say_where(&of(node.unwrap_or(first)), node.is_some());
        Ok(())
    }

    fn say_where(&self, files: &KeyFiles, is_node: bool) {
        let KeyFiles { ca, certificate, key, .. } = files;
        let whom = if is_node { "node" } else { "owner" };
        say(format_args!("\nCopy to each {whom} its own two files and {}, and nothing else:", ca.display()));
        let host = if is_node { "HOST:/etc/squall/keys/" } else { "HOST:DIR/" };
        say(format_args!("  scp -p {} {} {} {host}", ca.display(), certificate.display(), key.display()));
        if !is_node {
            return;
        }
        let dir = Path::new("keys");
        say(format_args!("\nThe configuration, if it is /etc/squall/squall.toml, is the same at all nodes:"));
        say(format_args!("  [security]"));
        for (name, file) in [("ca", "ca.pem"), ("certificate", "node-{id}.pem"), ("key", "node-{id}.key")] {
            say(format_args!("  {name} = \"{}\"", dir.join(file).display()));
        }
    }
}
