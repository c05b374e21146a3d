//! `squall cp push`.

use std::{io::Write, path::PathBuf, time::Duration};

use clap::Args;
use indicatif::{HumanBytes, HumanDuration};
use serde_json::json;
use squall_command::{CommandError, stop_on_signals};
use squall_copy::{PushError, PushOptions, PushProgress, PushReport, ReceiverReport};

use super::gauge::{Gauge, PartProgress};
use crate::{protection::ProtectionArgs, target::name};

/// Sends files and directories to all receivers at once. Each is copied under its own name.
///
/// Keeps permissions and modification times. Symbolic links are copied as links if they stay inside the receivers'
/// directories; hard links become files of their own; pipes, sockets and devices are skipped. Receivers that fail do
/// not stop the others; they are named at the end, and the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct PushArgs {
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The receivers' names on this host: a,b,c; or their addresses: host:port,host:port
    #[arg(long, required = true, value_delimiter = ',')]
    to: Vec<String>,
    /// The receivers' cluster
    #[arg(long, value_parser = name, default_value = "cp")]
    cluster: String,
    /// The route of the contents [default: interleaved on this host, pipeline over a network]
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(squall_copy::flat_names()))]
    algorithm: Option<String>,
    /// The receivers that stand together, so that contents cross from rack to rack once: a,b/c,d. The first rack is the
    /// source's own; it may be empty: /a,b/c,d
    #[arg(long)]
    racks: Option<String>,
    /// Go on where an earlier push of the same files was interrupted
    #[arg(long)]
    resume: bool,
    /// Keep files that are there already
    #[arg(long)]
    no_clobber: bool,
    /// Don't wait for the receivers' disks: after a power failure there, files may be damaged
    #[arg(long)]
    no_sync: bool,
    /// Give up a receiver from which nothing was heard for so many seconds
    #[arg(long, default_value_t = 30)]
    silence: u64,
    /// Print a report as one JSON object
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// The size of a multicast, in bytes
    #[arg(long, hide = true)]
    segment_bytes: Option<usize>,
    /// The size of a block, in bytes
    #[arg(long, hide = true)]
    block_bytes: Option<usize>,
    #[command(flatten)]
    protection: ProtectionArgs,
}

fn part(receiver: &squall_copy::ReceiverProgress) -> PartProgress<'_> {
    let squall_copy::ReceiverProgress { name, held, written, over, .. } = receiver;
    PartProgress { name, held: *held, written: *written, over: over.as_deref() }
}

impl PushArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let (json, quiet, remedy) = (self.json, self.quiet, self.protection.remedy());
        let options = self.options()?;
        let stop = stop_on_signals()?;
        let mut gauge: Option<Gauge> = None;
        let mut watch = |progress: &PushProgress| {
            let gauge = gauge.get_or_insert_with(|| Gauge::new(quiet, "all", &options.to, progress.bytes));
            gauge.show(progress.bytes, progress.receivers.iter().map(part));
        };
        let pushed = squall_copy::push(&options, &stop, &mut watch);
        gauge.iter().for_each(Gauge::end);
        let report = pushed.map_err(|error| match error.is_usage() {
            true => CommandError::Usage(error.to_string()),
            false if matches!(error, PushError::Call { .. }) => CommandError::Failed(format!("{error}{remedy}")),
            false => CommandError::Failed(error.to_string()),
        })?;
        if json {
            writeln!(std::io::stdout(), "{}", as_json(&report)).map_err(CommandError::output)?;
        } else {
            tell(&report, quiet).map_err(CommandError::output)?;
        }
        verdict(&report)
    }

    fn options(self) -> Result<PushOptions, CommandError> {
        let mut options = match self.to.iter().filter(|name| name.contains(':')).count() {
            0 => {
                self.protection.check_unused()?;
                PushOptions::new(self.paths, self.to, self.cluster)
            }
            all if all == self.to.len() => {
                let security = self.protection.security("--node")?;
                PushOptions::over_network(self.paths, self.to, self.cluster, security)
            }
            _ => {
                let text = "--to has names of this host and addresses: give an address for all, or for none";
                return Err(CommandError::Usage(text.to_owned()));
            }
        };
        if let Some(name) = self.algorithm {
            let unknown = || CommandError::Usage(format!("there is no algorithm {name:?}"));
            options.algorithm = squall_copy::flat(&name).ok_or_else(unknown)?;
        }
        options.racks = self.racks.map(|racks| {
            let rack = |names: &str| names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            racks.split('/').map(rack).collect()
        });
        (options.resume, options.clobber, options.sync) = (self.resume, !self.no_clobber, !self.no_sync);
        options.silence = Duration::from_secs(self.silence.max(2));
        options.segment_bytes = self.segment_bytes.unwrap_or(options.segment_bytes);
        options.block_bytes = self.block_bytes.unwrap_or(options.block_bytes);
        Ok(options)
    }
}

/// The report for scripts.
fn as_json(report: &PushReport) -> serde_json::Value {
    let receiver = |receiver: &ReceiverReport| {
        json!({
            "name": receiver.name,
            "placed": receiver.placed,
            "kept": receiver.kept,
            "bytes_held": receiver.held,
            "bytes_moved": receiver.moved,
            "failures": receiver.failures,
            "failed": receiver.failed,
            "error": receiver.error,
        })
    };
    json!({
        "transfer": report.transfer,
        "complete": report.is_complete(),
        "interrupted": report.interrupted,
        "files": report.files,
        "bytes": report.bytes,
        "multicasts": report.multicasts,
        "groups": report.groups,
        "seconds": report.took.as_secs_f64(),
        "skipped": report.skipped,
        "refused": report.refused,
        "receivers": report.receivers.iter().map(receiver).collect::<Vec<_>>(),
    })
}

/// Prints the report for people. Failures are reported by [`verdict`].
fn tell(report: &PushReport, quiet: bool) -> std::io::Result<()> {
    report.skipped.iter().for_each(|skipped| eprintln!("{skipped}"));
    if quiet {
        return Ok(());
    }
    let seconds = report.took.as_secs_f64();
    let mut out = std::io::stdout().lock();
    for ReceiverReport { name, placed, kept, held, error, .. } in &report.receivers {
        if error.is_none() {
            let held = if *held > 0 { format!(", {} were there before", HumanBytes(*held)) } else { String::new() };
            let kept = if *kept > 0 { format!(", {kept} kept as they were") } else { String::new() };
            writeln!(out, "{name}: {placed} in place and verified{kept}{held}")?;
        }
    }
    writeln!(
        out,
        "{} files, {} in {}, {}/s to each; transfer {}",
        report.files,
        HumanBytes(report.bytes),
        HumanDuration(report.took),
        HumanBytes((report.bytes as f64 / seconds.max(1e-9)) as u64),
        report.transfer,
    )
}

fn verdict(report: &PushReport) -> Result<(), CommandError> {
    if report.is_complete() {
        return Ok(());
    }
    let mut lines = Vec::new();
    if report.interrupted {
        lines.push("interrupted: push again with --resume".to_owned());
    }
    lines.extend(report.refused.iter().cloned());
    for ReceiverReport { name, failures, failed, error, .. } in &report.receivers {
        lines.extend(error.iter().filter(|_| !report.interrupted).map(|error| format!("{name}: {error}")));
        lines.extend(failed.iter().map(|failed| format!("{name}: {failed}")));
        let untold = failures.saturating_sub(failed.len() as u64);
        lines.extend((untold > 0).then(|| format!("{name}: and {untold} more")));
    }
    Err(CommandError::Failed(lines.join("\nsquall: ")))
}
