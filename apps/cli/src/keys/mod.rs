//! `squall keys`: a cluster's CA, and its nodes' certificates and keys.

mod log;
mod show;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use squall::{
    NodeId,
    keys::{Authority, Files, KeysError, MAX_DAYS, NodeKeys, describe},
};
use squall_command::{CommandError, say};
use squall_units::TimeUnit;

use crate::target::name;

const HELP: &str = "\
With keys, nodes on a network talk TLS 1.3, and each proves its identity. They are made in one place, and copied to the
nodes:

  squall keys init --cluster bank --dir keys      once: the cluster's CA
  squall keys add --dir keys --node 1,2,3         a certificate and a key for each node
  squall keys show keys/*.pem                     the owner of each, and when it expires
  squall keys log --dir keys --node 1,2,3         where nodes sign their logs: another key for each

A node needs ca.pem and its own node-N.pem and node-N.key. It never needs ca.key: with that, nodes can be made, so keep
it where keys are made, or offline. Certificates name a node and its cluster, and no host.

A certificate that ends soon is renewed with `add --force`: copy the two files to the node and restart it. The others
need nothing, as long as the CA is the same. A key that was stolen is good until its certificate ends; to be rid of it
at once, make a new CA (`init --force`) and new keys of all nodes.";

const ADD_HELP: &str = "\
Examples:
  squall keys add --dir keys --node 1,2,3
  squall keys add --dir keys --node 2 --force --valid-for 30d";

/// Makes the keys with which nodes on a network prove their identity.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct KeysCommand {
    #[command(subcommand)]
    keys: KeysAction,
}

#[derive(Debug, Subcommand)]
enum KeysAction {
    Init(InitArgs),
    Add(AddArgs),
    Show(show::ShowArgs),
    Log(log::LogArgs),
}

/// Makes a cluster's CA: ca.pem, which goes to every node, and ca.key, which stays.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  squall keys init --cluster bank --dir keys")]
struct InitArgs {
    /// The cluster's name, as in its configuration
    #[arg(long, value_name = "NAME", value_parser = name)]
    cluster: String,
    /// The directory of the keys; made if it is not there
    #[arg(long, value_name = "DIR", default_value = "keys")]
    dir: PathBuf,
    /// Replace the CA that is there: the certificates that it made are good for nothing then
    #[arg(long)]
    force: bool,
}

/// Makes a certificate and a key for each of these nodes.
#[derive(Debug, Args)]
#[command(after_help = ADD_HELP)]
struct AddArgs {
    /// The directory of the CA and of the keys
    #[arg(long, value_name = "DIR", default_value = "keys")]
    dir: PathBuf,
    /// The nodes' ids
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1.., required = true)]
    node: Vec<u32>,
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

impl KeysCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.keys {
            KeysAction::Init(args) => args.run().map_err(CommandError::failed),
            KeysAction::Add(args) => args.run().map_err(CommandError::failed),
            KeysAction::Show(args) => args.run(),
            KeysAction::Log(args) => args.run().map_err(CommandError::failed),
        }
    }
}

impl InitArgs {
    fn run(self) -> Result<(), KeysError> {
        let files = Files::in_directory(&self.dir);
        let authority = Authority::create(&self.cluster)?;
        authority.save(&files, self.force)?;
        let (certificate, key) = (files.authority_certificate(), files.authority_key());
        let width = certificate.display().to_string().len();
        say(format_args!("made the CA of cluster {:?}, good until {}", self.cluster, until(authority.certificate())));
        say(format_args!("  {}  its certificate, for every node", certificate.display()));
        say(format_args!("  {:width$}  its key, for no node: with it, nodes can be made", key.display()));
        say(format_args!(
            "\nNow make the nodes' keys, such as: squall keys add --dir {} --node 1,2,3",
            self.dir.display()
        ));
        Ok(())
    }
}

impl AddArgs {
    fn run(mut self) -> Result<(), KeysError> {
        self.node.sort_unstable();
        self.node.dedup();
        let files = Files::in_directory(&self.dir);
        let authority = Authority::load(&files)?;
        let made: Vec<NodeKeys> =
            self.node.iter().map(|&id| authority.issue(NodeId(id), self.valid_for)).collect::<Result<_, _>>()?;
        // All or none: half of a list would have to be taken out of the next call.
        let mut all = made.iter().flat_map(|keys| [files.key(keys.node()), files.certificate(keys.node())]);
        if let Some(path) = all.find(|path| !self.force && path.exists()) {
            return Err(KeysError::Exists { path });
        }
        for keys in &made {
            keys.save(&files, self.force)?;
        }
        let Some(first) = made.first() else { return Ok(()) };
        say(format_args!("made keys of cluster {:?}, good until {}", authority.cluster(), until(first.certificate())));
        for keys in &made {
            let (certificate, key) = (files.certificate(keys.node()), files.key(keys.node()));
            say(format_args!("  node {:<4} {}  {}", keys.node().0, certificate.display(), key.display()));
        }
        self.say_where(&files, first.node());
        Ok(())
    }

    fn say_where(&self, files: &Files, node: NodeId) {
        let ca = files.authority_certificate();
        say(format_args!("\nCopy to each node its own two files and {}, and nothing else:", ca.display()));
        say(format_args!(
            "  scp -p {} {} {} HOST:/etc/squall/keys/",
            ca.display(),
            files.certificate(node).display(),
            files.key(node).display()
        ));
        let dir = Path::new("keys");
        say(format_args!("\nThe configuration, if it is /etc/squall/squall.toml, is the same at all nodes:"));
        say(format_args!("  [security]"));
        for (name, file) in [("ca", "ca.pem"), ("certificate", "node-{id}.pem"), ("key", "node-{id}.key")] {
            say(format_args!("  {name} = \"{}\"", dir.join(file).display()));
        }
    }
}

/// The day on which a certificate that was just made ends.
fn until(certificate: &str) -> String {
    describe(certificate).ok().and_then(|all| Some(all.first()?.until.date().to_string())).unwrap_or_default()
}
