//! `squall cp push`.

use std::{io::Write, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use indicatif::{HumanBytes, HumanDuration};
use serde_json::{Value, json};
use squall_command::{CommandError, stop_on_signals};
use squall_copy::{
    CopyLosses, KeptAttributes, LinkPolicy, Patterns, PushError, PushOptions, PushProgress, PushReport, ReceiverReport,
};

use super::{
    gauge::{Gauge, PartProgress},
    owner::owner,
};
use crate::{protection::ProtectionArgs, target::name};

/// Sends files and directories to all receivers at once. Each is copied under its own name.
///
/// Only what a receiver lacks moves: files of the same size and time are left alone, and of files that changed, or that
/// an interrupted push left behind, only the parts that differ. Modes and times are kept; owners, hard links, access
/// control lists, extended attributes, holes and devices too, as far as the receivers' users may set them. What
/// could not be kept is named at the end. Symbolic links are copied as links, and never written through.
///
/// A receiver that is not there, or fails, does not stop the others. One that was not there may come as long as others
/// are served.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  squall cp push ./release --to a,b
  squall cp push /srv/www --to a:7700,b:7700 --keys keys --delete --exclude '*.tmp' --limit-rate 50MiB/s
  squall cp push /usr --to a,b --dry-run

Exit codes: 0 everything is at every receiver; 1 something is not, which is named (interrupted, a receiver failed or \
was not there, a file could not be read or put in place); 2 the arguments make no sense.")]
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
    /// The route of the contents [default: pipeline over a network; on this host, receivers copy from open files]
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(squall_copy::flat_names()))]
    algorithm: Option<String>,
    /// The receivers that stand together, so that contents cross from rack to rack once: a,b/c,d. The first rack is the
    /// source's own; it may be empty: /a,b/c,d
    #[arg(long)]
    racks: Option<String>,
    /// Copy nothing if a receiver is not there
    #[arg(long)]
    require_all: bool,
    /// Go on where an earlier push was interrupted: every push does
    #[arg(long, hide = true)]
    resume: bool,
    /// Compare the contents of files whose size and time are the same, and hash what is copied at both ends
    #[arg(long)]
    checksum: bool,
    /// Say what there would be to do, and change nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Send at most so many bytes per second: 10MiB/s. On this host, each receiver copies at most so many
    #[arg(long, value_name = "RATE", value_parser = some_rate)]
    limit_rate: Option<u64>,
    /// Don't wait for the receivers' disks: after a power failure there, the next push compares all contents
    #[arg(long)]
    no_sync: bool,
    /// Give up a receiver from which nothing was heard for so long; a number alone is in seconds
    #[arg(long, value_name = "TIME", value_parser = squall_units::seconds, default_value = "30s")]
    silence: Duration,
    /// Print a report as one JSON object
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// The size of a multicast
    #[arg(long, hide = true, value_parser = squall_units::size_in_memory)]
    segment_bytes: Option<usize>,
    /// The size of a block
    #[arg(long, hide = true, value_parser = squall_units::size_in_memory)]
    block_bytes: Option<usize>,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    kept: KeptArgs,
    #[command(flatten)]
    protection: ProtectionArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is copied")]
struct NameArgs {
    /// Leave names out: '*.o', 'target/' (directories only), '/release/tmp' (from the copied name on); may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Copy names that --exclude would leave out
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Remove, in the directories that are copied, what the source does not have. Names that are left out stay
    #[arg(long)]
    delete: bool,
    /// Keep files that are there already
    #[arg(long)]
    no_clobber: bool,
    /// Symbolic links that are absolute, or lead out of what is copied. Others are always copied as links
    #[arg(long, value_enum, default_value_t = LinksArg::Keep)]
    links: LinksArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinksArg {
    /// They are copied as links
    Keep,
    /// They are left out, and named
    Skip,
    /// The file or directory that they lead to is copied
    Follow,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is kept of files")]
struct KeptArgs {
    /// Give all files this owner, in place of their own: 1000, 1000:1000, www-data:www-data
    #[arg(long, value_name = "USER[:GROUP]", value_parser = owner, conflicts_with = "no_owners")]
    owner: Option<(u32, u32)>,
    /// Don't keep owners, nor set-id bits
    #[arg(long)]
    no_owners: bool,
    /// Don't keep access control lists: groups get no more rights than they had by them
    #[arg(long)]
    no_acls: bool,
    /// Don't keep other extended attributes and capabilities
    #[arg(long)]
    no_xattrs: bool,
    /// Make separate files of hard links
    #[arg(long)]
    no_hard_links: bool,
    /// Fill holes
    #[arg(long)]
    no_holes: bool,
    /// Leave devices, pipes and sockets out
    #[arg(long)]
    no_devices: bool,
}

/// Reads a rate at which anything moves.
fn some_rate(text: &str) -> Result<u64, String> {
    match squall_units::rate(text)? {
        0 => Err("at this rate nothing would move: leave the option out for no limit".to_owned()),
        rate => Ok(rate),
    }
}

fn part(receiver: &squall_copy::ReceiverProgress) -> PartProgress<'_> {
    let squall_copy::ReceiverProgress { name, held, written, over, .. } = receiver;
    PartProgress { name, held: *held, written: *written, over: over.as_deref() }
}

impl PushArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let (json, quiet, dry_run, remedy) = (self.json, self.quiet, self.dry_run, self.protection.remedy());
        let options = match self.options() {
            Ok(options) => options,
            Err(error) => {
                if json {
                    writeln!(std::io::stdout(), "{}", error_as_json(&error)).map_err(CommandError::output)?;
                }
                return Err(error);
            }
        };
        let stop = stop_on_signals()?;
        let mut gauge: Option<Gauge> = None;
        let mut watch = |progress: &PushProgress| {
            let gauge = gauge.get_or_insert_with(|| Gauge::new(quiet || dry_run, "all", &options.to, progress.bytes));
            gauge.show(progress.bytes, progress.receivers.iter().map(part));
        };
        let pushed = squall_copy::push(&options, &stop, &mut watch);
        gauge.iter().for_each(Gauge::end);
        if json {
            let object = pushed.as_ref().map_or_else(|error| error_as_json(error), as_json);
            writeln!(std::io::stdout(), "{object}").map_err(CommandError::output)?;
        }
        let report = pushed.map_err(|error| match error.is_usage() {
            true => CommandError::Usage(error.to_string()),
            false if matches!(error, PushError::Call { .. }) => CommandError::Failed(format!("{error}{remedy}")),
            false => CommandError::Failed(error.to_string()),
        })?;
        report.skipped.iter().for_each(|skipped| eprintln!("{skipped}"));
        report.receivers.iter().for_each(tell_losses);
        if options.delete && !report.refused.is_empty() {
            eprintln!("nothing was removed, since not all that is here could be read");
        }
        if !json && !quiet {
            tell(&report, dry_run).map_err(CommandError::output)?;
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
            options.algorithm = Some(squall_copy::flat(&name).ok_or_else(unknown)?);
        }
        options.racks = self.racks.map(|racks| {
            let rack = |names: &str| names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            racks.split('/').map(rack).collect()
        });
        let NameArgs { exclude, include, delete, no_clobber, links } = self.names;
        (options.clobber, options.sync, options.delete) = (!no_clobber, !self.no_sync, delete);
        (options.require_all, options.checksum, options.dry_run) = (self.require_all, self.checksum, self.dry_run);
        options.patterns = Patterns { exclude, include };
        options.links = match links {
            LinksArg::Keep => LinkPolicy::Keep,
            LinksArg::Skip => LinkPolicy::Skip,
            LinksArg::Follow => LinkPolicy::Follow,
        };
        options.owner = self.kept.owner;
        options.attributes = KeptAttributes {
            owners: !self.kept.no_owners,
            lists: !self.kept.no_acls,
            attributes: !self.kept.no_xattrs,
            hard_links: !self.kept.no_hard_links,
            holes: !self.kept.no_holes,
            devices: !self.kept.no_devices,
        };
        options.limit_rate = self.limit_rate;
        options.silence = self.silence.max(Duration::from_secs(2));
        options.segment_bytes = self.segment_bytes.unwrap_or(options.segment_bytes);
        options.block_bytes = self.block_bytes.unwrap_or(options.block_bytes);
        Ok(options)
    }
}

/// The report for scripts.
fn as_json(report: &PushReport) -> Value {
    let receiver = |receiver: &ReceiverReport| {
        let CopyLosses { owners, set_ids, lists, attributes, told, .. } = &receiver.losses;
        json!({
            "name": receiver.name,
            "placed": receiver.placed,
            "unchanged": receiver.unchanged,
            "kept": receiver.kept,
            "deleted": receiver.deleted,
            "lacked": receiver.lacked,
            "bytes_held": receiver.held,
            "bytes_written": receiver.written,
            "bytes_moved": receiver.moved,
            "not_kept": {
                "owners": owners,
                "set_ids": set_ids,
                "acls": lists,
                "xattrs": attributes,
                "names": told,
            },
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
        "relayed": report.relayed,
        "groups": report.groups,
        "seconds": report.took.as_secs_f64(),
        "skipped": report.skipped,
        "refused": report.refused,
        "receivers": report.receivers.iter().map(receiver).collect::<Vec<_>>(),
        "error": null,
    })
}

/// The report of a push that copied nothing.
fn error_as_json(error: &dyn std::fmt::Display) -> Value {
    json!({ "complete": false, "receivers": [], "error": error.to_string() })
}

/// Names what a receiver could not keep.
fn tell_losses(ReceiverReport { name, losses, .. }: &ReceiverReport) {
    let CopyLosses { owners, set_ids, lists, attributes, told, .. } = losses;
    let kinds =
        [(owners, "owners"), (set_ids, "set-id bits"), (lists, "access control lists"), (attributes, "attributes")];
    let lost: Vec<String> =
        kinds.iter().filter(|(count, _)| **count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if lost.is_empty() {
        return;
    }
    let remedy = if *owners > 0 { ": serve as root, or push with --no-owners" } else { "" };
    eprintln!("{name}: could not keep {}{remedy}", lost.join(", "));
    told.iter().take(LOSSES_TOLD).for_each(|loss| eprintln!("{name}: {loss}"));
    let untold = (owners + set_ids + lists + attributes).saturating_sub(told.len().min(LOSSES_TOLD) as u64);
    if untold > 0 {
        eprintln!("{name}: and {untold} more");
    }
}

/// The most losses that are named, for each receiver.
const LOSSES_TOLD: usize = 10;

/// Prints the report for people. Failures are reported by [`verdict`].
fn tell(report: &PushReport, dry_run: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for at in report.receivers.iter().filter(|at| at.error.is_none()) {
        let ReceiverReport { name, placed, unchanged, kept, deleted, held, written, lacked, .. } = at;
        let some = |count: u64, what: &str| if count > 0 { format!(", {count} {what}") } else { String::new() };
        if dry_run {
            let (files, deleted) =
                (report.files as u64 - (*lacked).min(report.files as u64), some(*deleted, "to be removed"));
            writeln!(out, "{name}: {lacked} files to be copied, {}; {files} are there{deleted}", HumanBytes(*written))?;
            continue;
        }
        let (unchanged, kept) = (some(*unchanged, "unchanged"), some(*kept, "kept as they were"));
        let deleted = some(*deleted, "removed");
        let held = if *held > 0 { format!(", {} were there before", HumanBytes(*held)) } else { String::new() };
        writeln!(out, "{name}: {placed} in place{unchanged}{kept}{deleted}; {} written{held}", HumanBytes(*written))?;
    }
    if dry_run {
        return writeln!(out, "{} files, {}; nothing was changed", report.files, HumanBytes(report.bytes));
    }
    let most = report.receivers.iter().map(|receiver| receiver.written).max().unwrap_or(0);
    writeln!(
        out,
        "{} files, {}; {} in {}, {}/s to each; transfer {}",
        report.files,
        HumanBytes(report.bytes),
        HumanBytes(most),
        HumanDuration(report.took),
        HumanBytes((most as f64 / report.took.as_secs_f64().max(1e-9)) as u64),
        report.transfer,
    )
}

fn verdict(report: &PushReport) -> Result<(), CommandError> {
    if report.is_complete() {
        return Ok(());
    }
    let mut lines = Vec::new();
    if report.interrupted {
        lines.push("interrupted: push again, and only what is missing moves".to_owned());
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
