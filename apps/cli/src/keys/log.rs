//! `squall keys log`: keys with which nodes sign their logs.

use std::path::PathBuf;

use clap::Args;
use squall::{
    NodeId,
    keys::{Files, KeysError, LogKeys},
    log_keys::PublicKey,
};
use squall_command::say;

/// Makes a key for each of these nodes, with which it signs its logs, so that they can be shown to others unaltered.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  squall keys log --dir keys --node 1,2,3")]
pub(super) struct LogArgs {
    /// The directory of the keys
    #[arg(long, value_name = "DIR", default_value = "keys")]
    dir: PathBuf,
    /// The nodes' ids
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1.., required = true)]
    node: Vec<u32>,
    /// Replace keys that are there: keep their public halves, which still check what they have signed
    #[arg(long)]
    force: bool,
}

impl LogArgs {
    pub(super) fn run(mut self) -> Result<(), KeysError> {
        self.node.sort_unstable();
        self.node.dedup();
        let files = Files::in_directory(&self.dir);
        let made: Vec<LogKeys> = self.node.iter().map(|&id| LogKeys::create(NodeId(id))).collect::<Result<_, _>>()?;
        // All or none: half of a list would have to be taken out of the next call.
        let mut all = made.iter().flat_map(|keys| [files.log_key(keys.node()), files.log_public_key(keys.node())]);
        if let Some(path) = all.find(|path| !self.force && path.exists()) {
            return Err(KeysError::Exists { path });
        }
        for keys in &made {
            keys.save(&files, self.force)?;
        }
        say(format_args!("made keys with which logs are signed (Ed25519); the public ones:"));
        for keys in &made {
            let key = PublicKey::from_pem(keys.public_key().as_bytes()).map(|key| key.to_string()).unwrap_or_default();
            say(format_args!("  node {:<4} {key}", keys.node().0));
        }
        let Some(node) = made.first().map(LogKeys::node) else { return Ok(()) };
        say(format_args!("\nCopy to each node its own key, which only that node may have:"));
        say(format_args!("  scp -p {} HOST:/etc/squall/keys/", files.log_key(node).display()));
        say(format_args!("\nand say in its configuration, if that is /etc/squall/squall.toml:"));
        say(format_args!("  sign_log = \"keys/node-{{id}}.log.key\""));
        say(format_args!(
            "\nTo check a log, an operator needs the public keys, {} and so on, from a source that can be trusted.",
            files.log_public_key(node).display()
        ));
        Ok(())
    }
}
