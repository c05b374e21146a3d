//! `squall log verify`.

mod directories;
mod members;

use std::path::PathBuf;

use clap::Args;
use squall_command::CommandError;

use super::reach::ReachArgs;

const HELP: &str = "\
Examples:
  squall log verify --config log.toml                     at all members of a group that runs
  squall log verify audit/1/logs/log                      one node's log as it lies on its disk, though the node runs
  squall log verify copy-of-1 copy-of-2 --signers keys    copies, and which nodes have signed them

Each member reads every record on its disk, checks it, and makes a digest (BLAKE3) of it; all members' digests must
agree, up to the last version that all have. The group goes on meanwhile.

With directories no member is asked, and nothing is changed: each log's records are checked, their chained digest is
computed (SHA-256; equal for equal logs), and the signatures are checked that lie beside them, if the node had a key for
that (`squall keys log`). What several of them have in common must be the same.

A member that is started again meanwhile, or is behind, is waited for, for 20 s.

The exit code is 1 if a record is damaged or altered, if logs differ, or if no node whose key was given has signed; and
3 if nothing of that was found, and a member could not be checked to the end: it did not answer, or was behind.";

/// Checks every record of a log at every member, and that all members have the same; or checks logs in directories.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct VerifyArgs {
    /// Logs in these directories, instead of those of members that run
    #[arg(value_name = "DIR", conflicts_with_all = ["config", "cluster"])]
    directories: Vec<PathBuf>,
    /// The directory with the signers' public keys: node-N.log.pem
    #[arg(long, value_name = "DIR", requires = "directories")]
    signers: Option<PathBuf>,
    #[command(flatten)]
    reach: ReachArgs,
    /// Say nothing but the result
    #[arg(short, long)]
    quiet: bool,
}

impl VerifyArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        match self.directories.is_empty() {
            true => members::verify(&self.reach, self.quiet),
            false => directories::verify(&self.directories, self.signers.as_deref(), self.quiet),
        }
    }
}
