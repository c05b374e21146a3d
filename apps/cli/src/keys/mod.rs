//! `squall keys`: a cluster's CA, and its nodes' certificates and keys.

mod add;
mod log;
mod reload;
mod revoke;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use squall::keys::{Authority, Files, KeysError, describe};
use squall_command::{CommandError, say};

use crate::target::name;

const HELP: &str = "\
With keys, nodes on a network talk TLS 1.3, and each side proves its identity. They are made in one place, and copied:

  squall keys init --cluster bank --dir keys       once: the cluster's CA
  squall keys add --dir keys --node 1,2,3          a certificate and a key for each node
  squall keys add --dir keys --client web          for a program outside, which sends commands and queries
  squall keys add --dir keys --operator alice      for a person who gives orders to nodes
  squall keys show keys/*.pem                      the owner of each, and when it expires
  squall keys revoke --dir keys keys/node-3.pem    a certificate that nodes refuse from now on
  squall keys reload --config squall.toml          a running node reads its keys again, and says whether they are good
  squall keys log --dir keys --node 1,2,3          where nodes sign their logs: another key for each

An owner needs ca.pem and its own two files. It never needs ca.key: with that, owners can be made, so keep it where keys
are made, or offline. Certificates name an owner and its cluster, and no host.

A certificate that ends soon is renewed with `add --force`: copy the two files to the node, which notices them within a
second or two, and keeps its connections. A key that was stolen is revoked.";

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
    Add(add::AddArgs),
    Show(show::ShowArgs),
    Revoke(revoke::RevokeArgs),
    Reload(reload::ReloadArgs),
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

impl KeysCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.keys {
            KeysAction::Init(args) => args.run().map_err(CommandError::failed),
            KeysAction::Add(args) => args.run().map_err(CommandError::failed),
            KeysAction::Show(args) => args.run(),
            KeysAction::Revoke(args) => args.run().map_err(CommandError::failed),
            KeysAction::Reload(args) => args.run(),
            KeysAction::Log(args) => args.run().map_err(CommandError::failed),
        }
    }
}

impl InitArgs {
    fn run(self) -> Result<(), KeysError> {
        let files = Files::in_directory(&self.dir);
        let authority = Authority::create(&self.cluster)?;
        authority.save(&files, self.force)?;
        if self.force {
            // It is that of the CA that was there.
            let _ = std::fs::remove_file(files.revocation_list());
        }
        // An empty list, so that configurations can name it from the first.
        authority.revoke(&files, [])?;
        let (certificate, key) = (files.authority_certificate(), files.authority_key());
        let width = certificate.display().to_string().len();
        say(format_args!("made the CA of cluster {:?}, good until {}", self.cluster, until(authority.certificate())));
        say(format_args!("  {}  its certificate, for every node", certificate.display()));
        say(format_args!(
            "  {:width$}  the list of revoked certificates, for nodes whose configuration names it",
            files.revocation_list().display()
        ));
        say(format_args!("  {:width$}  its key, for no node: with it, nodes can be made", key.display()));
        say(format_args!(
            "\nNow make the nodes' keys, such as: squall keys add --dir {} --node 1,2,3",
            self.dir.display()
        ));
        Ok(())
    }
}

/// The day on which a certificate that was just made ends.
fn until(certificate: &str) -> String {
    describe(certificate).ok().and_then(|all| Some(all.first()?.until.date().to_string())).unwrap_or_default()
}
