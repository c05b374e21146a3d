//! `squall cp`: files and directories, to many nodes at once.

mod gauge;
mod owner;
mod push;
mod serve;

use clap::{Args, Subcommand};
use squall_command::CommandError;

/// Copies files and directories to many nodes at once, by RDMC.
#[derive(Debug, Args)]
#[command(after_help = "Example, with two receivers on this host:

  squall cp serve --dir /srv/a --name a &
  squall cp serve --dir /srv/b --name b &
  squall cp push ./release --to a,b

From host to host, each side with keys of its own (`squall keys init --cluster cp`; for those of another, give
--cluster):

  a$ squall cp serve --dir /srv --listen 0.0.0.0:7700 --keys keys
  b$ squall cp serve --dir /srv --listen 0.0.0.0:7700 --keys keys
   $ squall cp push ./release --to a:7700,b:7700 --keys keys

A file gets its name only when it is whole. Contents that went over a network, or are copied with --checksum, are \
verified by their hashes. After an interruption, push again: \
only what is missing moves.")]
pub(crate) struct CpCommand {
    #[command(subcommand)]
    what: CpAction,
}

#[derive(Debug, Subcommand)]
enum CpAction {
    Serve(serve::ServeArgs),
    Push(push::PushArgs),
}

impl CpCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.what {
            CpAction::Serve(args) => args.run(),
            CpAction::Push(args) => args.run(),
        }
    }
}
