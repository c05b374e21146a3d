//! The check of logs as they lie on a disk: a node's own, or copies of logs.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use indicatif::HumanBytes;
use squall::log_keys::{self, MemberKey};
use squall_command::{CommandError, say};
use squall_ordered::log::{Files, Log, Opened, Position, Signed, Verified};

use super::super::time;

/// The interval of progress messages.
const PAUSE: Duration = Duration::from_secs(1);

/// Checks each of the logs, and whether they are the same as far as they go together. `keys` has the members' public
/// keys.
pub(super) fn verify(directories: &[PathBuf], keys: Option<&Path>, quiet: bool) -> Result<(), CommandError> {
    let keys = keys.map(log_keys::members).transpose().map_err(CommandError::usage)?;
    let mut wrong = Vec::new();
    let mut logs = Vec::new();
    for directory in directories {
        let opened = look(directory).map_err(|why| CommandError::Failed(format!("{}: {why}", directory.display())))?;
        wrong.extend(check(directory, &opened, keys.as_deref(), quiet)?);
        logs.push(opened.log);
    }
    wrong.extend(difference(directories, &logs, quiet)?);
    if wrong.is_empty() {
        say("all records are good");
        return Ok(());
    }
    Err(CommandError::Failed(wrong.join("\nsquall: ")))
}

fn look(directory: &Path) -> Result<Opened<Files>, String> {
    let said = |error: &dyn Display| error.to_string();
    let (files, is_live) = Files::look(directory).map_err(|error| said(&error))?;
    Log::look(files, is_live).map_err(|error| said(&error))
}

/// Checks one log, and returns a sentence for each problem.
fn check(
    directory: &Path,
    opened: &Opened<Files>,
    keys: Option<&[MemberKey]>,
    quiet: bool,
) -> Result<Vec<String>, CommandError> {
    let (log, shown) = (&opened.log, directory.display());
    let mut said = Instant::now();
    let found = log.verify_signed(keys.unwrap_or_default(), |bytes| {
        if !quiet && said.elapsed() >= PAUSE {
            said = Instant::now();
            eprintln!("squall: {shown}: checked {}", HumanBytes(bytes));
        }
    });
    let found = found.map_err(|error| CommandError::Failed(format!("{shown}: {error}")))?;
    let Verified { records, bytes, damage, missing, chain, signed, flaws } = found;
    let (first, last) = (log.begin().version + 1, log.persisted());
    let mut lines = vec![format!("versions {first} to {}: {records} records, {}", last.version, HumanBytes(bytes))];
    lines.extend(chain.map(|chain| format!("digest of all records (SHA-256, chained): {chain}")));
    lines.extend(signed.iter().map(signature));
    if signed.is_empty() {
        lines.push("it has no signatures".to_owned());
    }
    lines.extend(opened.torn.as_ref().map(|_| "its last write was not finished, nor acknowledged".to_owned()));
    if !quiet {
        lines.iter().for_each(|line| say(format_args!("{shown}: {line}")));
    }
    let damage = damage.iter().map(|damage| damage.to_string());
    let mut wrong: Vec<String> = damage.chain(flaws.iter().map(ToString::to_string)).collect();
    wrong.extend(missing.map(|missing| missing.to_string()));
    // A log that none of the given keys has signed proves nothing.
    if keys.is_some() && !signed.iter().any(|signed| signed.is_known) {
        wrong.push(format!("{shown}: no node whose key was given has signed it"));
    }
    Ok(wrong)
}

fn signature(Signed { member, key, is_known, from, to, signatures }: &Signed) -> String {
    let whose = if *is_known { "" } else { ", which was not given: any program can have made these signatures" };
    let (first, last) = (from.version, to.version);
    format!(
        "{signatures} signatures by {member}, of versions {first} to {last}, the last of {}, with the key {key}{whose}",
        time::show(to.time)
    )
}

/// Compares the records that all logs have in common. Returns a sentence if they differ.
fn difference(directories: &[PathBuf], logs: &[Log<Files>], quiet: bool) -> Result<Option<String>, CommandError> {
    let from = logs.iter().map(|log| log.begin().position).max().unwrap_or(Position::START);
    let end = logs.iter().map(Log::persisted).min_by_key(|end| end.position);
    let Some(end) = end.filter(|end| logs.len() > 1 && from < end.position) else { return Ok(None) };
    let digests = logs.iter().zip(directories).map(|(log, directory)| {
        let digest = log.digest(from, end.position);
        digest.map_err(|error| CommandError::Failed(format!("{}: {error}", directory.display())))
    });
    let digests = digests.collect::<Result<Vec<_>, _>>()?;
    if digests.windows(2).all(|pair| pair[0] == pair[1]) {
        if !quiet {
            say(format_args!("they have the same records up to version {}", end.version));
        }
        return Ok(None);
    }
    Ok(Some(format!("the logs differ before version {}, where the shortest ends", end.version)))
}
