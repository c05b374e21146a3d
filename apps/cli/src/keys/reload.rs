//! `squall keys reload`: a running node reads its keys again.

use clap::Args;
use squall_command::{CommandError, say};

use crate::target::TargetArgs;

/// Makes a running node read its keys again. Nodes notice changed files by themselves; this says at once whether the
/// new ones can be used.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  squall keys reload --config /etc/squall/squall.toml")]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    target: TargetArgs,
}

impl ReloadArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let mut node = self.target.connect()?;
        node.reload_keys().map_err(CommandError::failed)?;
        let report = node.status().map_err(CommandError::failed)?;
        say(format_args!("{} has read its keys again", node.node()));
        for certificate in report.keys.iter().flat_map(|keys| &keys.certificates) {
            let days = certificate.left_s / 86_400;
            say(format_args!("  {} is good for {days} days more", certificate.certificate));
        }
        Ok(())
    }
}
