//! `squall log stat`.

use std::io::{self, Write};

use bytesize::ByteSize;
use clap::Args;
use serde_json::json;
use squall::{Hlc, LogStatus, NodeId, log_service::LogError};
use squall_command::CommandError;

use super::{
    reach::{MEMBER_PATIENCE, ReachArgs},
    shown, time,
};

const HELP: &str = "\
Examples:
  squall log stat --config log.toml
  squall log stat --config log.toml --json | jq '.members[].log.bytes'

The exit code is 1 if a member does not answer.";

/// Shows the log at each member: where it begins and ends, what all members have, and what it takes of the disk.
///
/// If one member is named, only its log is shown.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct StatArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Print a JSON object, with an object for each member
    #[arg(long)]
    json: bool,
}

impl StatArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let mut log = self.reach.log()?;
        let members = log.members().map_err(|error| self.reach.failed(error))?;
        let members = log.member().filter(|_| self.reach.names_one()).map_or(members, |node| vec![node]);
        let ask = |node: NodeId| {
            let mut log = log.at_member(node);
            log.set_timeout(self.reach.timeout_or(MEMBER_PATIENCE));
            (node, log.status())
        };
        let found: Vec<(NodeId, Result<LogStatus, LogError>)> = std::thread::scope(|scope| {
            let asked: Vec<_> = members.iter().map(|&node| scope.spawn(move || ask(node))).collect();
            asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
        });
        shown(if self.json { self.print_json(&found) } else { self.print(&found) })?;
        let silent = found.iter().filter(|(_, status)| status.is_err()).count();
        if silent > 0 {
            return Err(CommandError::Failed(format!("{silent} of {} members did not answer", members.len())));
        }
        Ok(())
    }

    fn print_json(&self, found: &[(NodeId, Result<LogStatus, LogError>)]) -> io::Result<()> {
        let member = |(node, status): &(NodeId, Result<LogStatus, LogError>)| match status {
            Ok(status) => json!({ "node": node.0, "log": status }),
            Err(error) => json!({ "node": node.0, "error": error.to_string() }),
        };
        let members: Vec<_> = found.iter().map(member).collect();
        writeln!(io::stdout().lock(), "{}", json!({ "group": self.reach.group(), "members": members }))
    }

    fn print(&self, found: &[(NodeId, Result<LogStatus, LogError>)]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "the log of group {:?}", self.reach.group())?;
        for (node, status) in found {
            let log = match status {
                Ok(log) => log,
                Err(error) => {
                    writeln!(out, "{node}: {error}")?;
                    continue;
                }
            };
            let LogStatus {
                first,
                last,
                globally_persisted,
                bytes,
                snapshots_bytes,
                records,
                written_bytes,
                syncs,
                ..
            } = log;
            let versions = match first.cmp(last) {
                std::cmp::Ordering::Greater => format!("empty, behind version {last}"),
                _ => format!("versions {first} to {last}, the last of {}", time::show(Hlc(log.ends_at_ns))),
            };
            let snapshot = match log.snapshot {
                Some(version) => format!("; snapshot of the state at {version}, {}", ByteSize(*snapshots_bytes)),
                None => String::new(),
            };
            writeln!(out, "{node}: {versions}")?;
            writeln!(out, "    all members have {globally_persisted} on disk; here {}{snapshot}", ByteSize(*bytes))?;
            let batch = *records as f64 / (*syncs).max(1) as f64;
            let written = ByteSize(*written_bytes);
            writeln!(
                out,
                "    since its start: {records} records, {written}, {syncs} syncs ({batch:.1} records each)"
            )?;
            for (what, why) in [("FAILED", &log.failure), ("NO ROOM", &log.no_room)] {
                why.iter().try_for_each(|why| writeln!(out, "    {what}: {why}"))?;
            }
        }
        out.flush()
    }
}
