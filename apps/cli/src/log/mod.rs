//! `squall log`: a replicated log as a service, from the command line.

mod append;
mod at;
mod cut;
mod export;
mod input;
mod meter;
mod part;
mod reach;
mod read;
mod repair;
mod serve;
mod show;
mod skip;
mod stat;
mod tail;
mod time;
mod verify;

use std::{io, path::Path};

use clap::{Args, Subcommand};
use squall_command::CommandError;
use squall_ordered::log::Files;

const HELP: &str = "\
Try it on this host. This goes into log.toml:

  cluster = \"audit\"
  members = [1, 2, 3]
  storage = \"audit/{id}\"          # each node's directory, with its part of the log
  [groups.log]
  mode = \"durable\"

Then, each in a terminal of its own,

  squall log serve --config log.toml --id 1
  squall log serve --config log.toml --id 2
  squall log serve --config log.toml --id 3

and, from anywhere on this host,

  seq 1 100000 | squall log append --config log.toml -q
  squall log tail -f --config log.toml
  squall log read --from 500 --limit 10 --with-time --config log.toml
  squall log at --time 2026-11-22T12:00:00Z --config log.toml
  squall log verify --config log.toml
  squall log stat --config log.toml

A record is acknowledged once all members have it on disk. Kill any member, or all of them, and start them again: what
was acknowledged is there, once, and `append` and `tail -f` go on by themselves at whichever member serves.

Nodes on several hosts need addresses and keys in the file, as all of Squall's do (`squall keys --help`); a client that
only appends and reads may have the file too, or say `--cluster audit --address HOST:7700 --keys DIR`.

A node whose log is damaged gets what it lacks from another member by itself. Where no member has it, `squall status`
says so; end the nodes, and look at their logs:

  squall log verify audit/1/logs/log audit/2/logs/log      what is damaged, or missing
  squall log read audit/1/logs/log                         all that can be read
  squall log export audit/1/logs/log -o audit.jsonl        the same, into a file
  squall log repair audit/1/logs/log --from audit/2/logs/log
  squall log cut audit/1/logs/log --before-damage --accept-loss

A command with which the service panics ends all members, and again at each start. The group goes on without it after

  squall log skip audit/1/logs/log --version 6001 --reason \"overflows; ticket 17\"        and so at all members

A record's number is its version in the group's log: some numbers belong to clients' sessions and have no record.";

/// A replicated log that survives everything: appends records to it, reads it, follows it, checks it, and serves it.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct LogCommand {
    #[command(subcommand)]
    what: LogAction,
}

#[derive(Debug, Subcommand)]
enum LogAction {
    Append(append::AppendArgs),
    Read(read::ReadArgs),
    Export(export::ExportArgs),
    Tail(tail::TailArgs),
    At(at::AtArgs),
    Verify(verify::VerifyArgs),
    Repair(repair::RepairArgs),
    Cut(cut::CutArgs),
    Skip(skip::SkipArgs),
    Stat(stat::StatArgs),
    Serve(serve::ServeArgs),
}

impl LogCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.what {
            LogAction::Append(args) => args.run(),
            LogAction::Read(args) => args.run(),
            LogAction::Export(args) => args.run(),
            LogAction::Tail(args) => args.run(),
            LogAction::At(args) => args.run(),
            LogAction::Verify(args) => args.run(),
            LogAction::Repair(args) => args.run(),
            LogAction::Cut(args) => args.run(),
            LogAction::Skip(args) => args.run(),
            LogAction::Stat(args) => args.run(),
            LogAction::Serve(args) => args.run(),
        }
    }
}

/// Opens a log whose node does not run, to change it.
fn open(directory: &Path) -> Result<Files, CommandError> {
    if !directory.join("log").is_file() {
        let why = format!("{} holds no log: give a directory like STORAGE/logs/GROUP", directory.display());
        return Err(CommandError::Usage(why));
    }
    Files::open(directory).map_err(CommandError::failed)
}

/// The outcome of a command that shows something. A closed pipe is no error: its reader has seen enough.
fn shown(result: io::Result<()>) -> Result<(), CommandError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::output(error)),
        _ => Ok(()),
    }
}
