//! `squall doctor`: the fabrics that this machine can use, and the obstacles to the others.

mod card;
mod configuration;
mod finding;
mod limits;
mod members;
mod shm;
mod storage;
mod tcp;
mod verbs;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use squall_command::{CommandError, say};

use self::finding::Area;
use crate::target::load;

const HELP: &str = "\
Examples:
  squall doctor                               what this machine can use
  squall doctor --config squall.toml          and whether the node that the file describes can run here
  squall doctor --config squall.toml --id 2   as node 2 of a file that all nodes share

With a configuration it also checks the node's keys, whether the address that it listens at can be had, and which of the
other members can be reached now. Of its storage it checks whether it is there or can be made, can be written and synced
and how fast; the kind of file system, and the room; whether a process or another node has it; and, as far as members
that run can tell, whether it is an old copy. Nothing is changed but for a file that is written there and removed; no
cluster is disturbed.

The exit code is 1 if what the configuration asks for can't be used, or, without one, if no fabric can.";

/// Says which fabrics this machine can use, and what keeps it from using the others.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArgs {
    /// Check this configuration too; the environment (SQUALL_ID ..) overrides it, as for a node
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node to check, of a configuration that all nodes share
    #[arg(long, value_name = "N", requires = "config")]
    id: Option<u32>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// All that was found.
#[derive(Debug, Serialize)]
struct DoctorReport {
    fabrics: Vec<Area>,
    /// The findings about the configuration; None if none was given.
    configuration: Option<Area>,
    /// The findings about the node's storage; None if it has none.
    storage: Option<Area>,
    /// The carrier that the configuration chooses, if the configuration can be read.
    carrier: Option<String>,
}

impl DoctorArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let fabrics = vec![shm::look(), tcp::look(), verbs::look()];
        let mut report = DoctorReport { fabrics, configuration: None, storage: None, carrier: None };
        if let Some(path) = &self.config {
            let config = load(path, self.id);
            report.carrier = config.as_ref().ok().map(|config| config.carrier().to_string());
            report.storage = config.as_ref().ok().and_then(|config| {
                let others = config.members().iter().filter(|&&member| member != config.id());
                let others = others.filter_map(|&member| {
                    let other = load(path, Some(member.0)).ok()?;
                    Some((member, other.storage()?.to_owned()))
                });
                storage::look(config, &others.collect::<Vec<_>>(), &members::ask(config))
            });
            report.configuration = Some(configuration::look(config));
        }
        if self.json {
            say(serde_json::to_string(&report).expect("plain data"));
        } else {
            let areas = report.fabrics.iter().chain(&report.configuration).chain(&report.storage);
            areas.for_each(|area| area.lines().iter().for_each(say));
        }
        report.problem().map_or(Ok(()), |problem| Err(CommandError::Failed(problem)))
    }
}

impl DoctorReport {
    /// The reason for a failing exit code, if any.
    fn problem(&self) -> Option<String> {
        let usable = |name: &str| self.fabrics.iter().any(|fabric| fabric.name == name && fabric.usable());
        match (&self.configuration, &self.carrier) {
            (None, _) if self.fabrics.iter().any(Area::usable) => None,
            (None, _) => Some("no fabric can be used here: see above".into()),
            (Some(_), Some(carrier)) if !parts(carrier).iter().all(|name| usable(name)) => {
                Some(format!("the configuration comes to {carrier}, which can't be used here: see above"))
            }
            (Some(area), _) if !area.usable() => Some("the node can't run as it is configured: see above".into()),
            _ if self.storage.as_ref().is_some_and(|area| !area.usable()) => {
                Some("the node can't run with its storage as it is: see above".into())
            }
            (Some(_), _) => None,
        }
    }
}

/// The fabrics that a carrier needs. (In a mixed one, RDMA is used where it is.)
fn parts(carrier: &str) -> &'static [&'static str] {
    match carrier {
        "mixed" => &["shm", "tcp"],
        "shm" => &["shm"],
        "tcp" => &["tcp"],
        _ => &["verbs"],
    }
}

#[cfg(test)]
mod tests {
    use squall::Carrier;

    use super::{finding::Level, *};

    fn area(name: &'static str, level: Level) -> Area {
        let mut area = Area::new(name, "");
        area.push(level, "something", None);
        area
    }

    #[test]
    fn it_fails_if_what_is_asked_for_can_t_be_used() {
        let fabrics = || vec![area("shm", Level::Good), area("tcp", Level::Bad)];
        let found = |carrier: Option<Carrier>, configuration| {
            let carrier = carrier.map(|carrier| carrier.to_string());
            DoctorReport { fabrics: fabrics(), configuration, storage: None, carrier }.problem()
        };
        assert_eq!(found(None, None), None, "one that can be used is enough");
        let good = || Some(area("configuration", Level::Good));
        assert_eq!(found(Some(Carrier::Shm), good()), None);
        assert!(found(Some(Carrier::Tcp), good()).is_some_and(|problem| problem.contains("tcp")));
        assert!(found(Some(Carrier::Shm), Some(area("configuration", Level::Bad))).is_some());
        assert_eq!(found(Some(Carrier::Shm), Some(area("configuration", Level::Warning))), None);
        assert!(found(None, Some(area("configuration", Level::Bad))).is_some(), "it could not be read");
        let (carrier, storage) = (Some(Carrier::Shm.to_string()), Some(area("storage", Level::Bad)));
        let report = DoctorReport { fabrics: fabrics(), configuration: good(), storage, carrier };
        assert!(report.problem().is_some_and(|problem| problem.contains("its storage")));
    }
}
