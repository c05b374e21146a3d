//! `squall cp serve`.

use std::{io::Write, path::PathBuf, sync::atomic::Ordering};

use clap::Args;
use squall_command::{CommandError, stop_on_signals};
use squall_copy::{Receiver, ReceiverNetwork, ServeError, ServeEvent, ServeOptions};
use squall_fabric::{net::NetError, tcp::TcpError};

use super::gauge::{Gauge, PartProgress};
use crate::{protection::ProtectionArgs, target::name};

/// Receives: waits for sources, and puts what they send into a directory. Nothing outside it is ever written.
///
/// Takes one transfer after the other, until Ctrl-C. As root it keeps the owners of files; as another user, what that
/// user may set.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  squall cp serve --dir /srv/a --name a
  squall cp serve --dir /srv --listen 0.0.0.0:7700 --keys keys

Exit codes: 0 it was stopped, or took its one transfer; 1 it can't serve, or something of its one transfer failed; \
2 the arguments make no sense.")]
pub(super) struct ServeArgs {
    /// The directory that copies go into
    #[arg(long)]
    dir: PathBuf,
    /// This receiver's name, for `--to` on this host
    #[arg(long, value_parser = name, required_unless_present = "listen")]
    name: Option<String>,
    /// The cluster; sources and receivers of different clusters never meet
    #[arg(long, value_parser = name, default_value = "cp")]
    cluster: String,
    /// End after one transfer; the exit code is 1 if something of it failed
    #[arg(long)]
    once: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// Take copies from other hosts at this address, as host:port; several may be given
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = "Over a network")]
    listen: Vec<String>,
    #[command(flatten)]
    protection: ProtectionArgs,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let ServeArgs { dir, name, cluster, once, quiet, listen, protection } = self;
        let stop = stop_on_signals()?;
        if listen.is_empty() {
            protection.check_unused()?;
        }
        let security = protection.security("--node")?;
        let name = name.unwrap_or_else(|| listen.join(","));
        let network = (!listen.is_empty()).then_some(ReceiverNetwork { listen, security });
        let options = ServeOptions { directory: dir, name: name.clone(), cluster, network };
        let mut receiver = Receiver::open(&options).map_err(|error| {
            let is_open = matches!(error, ServeError::Network(TcpError::Net(NetError::NotLoopback { .. })));
            let remedy = if is_open { protection.remedy() } else { "" };
            CommandError::Failed(format!("{error}{remedy}"))
        })?;
        for address in receiver.addresses() {
            eprintln!("{name}: listens on {address}");
        }
        for transfer in receiver.partial() {
            eprintln!("{name}: transfer {transfer} is not complete; the next push of the same names goes on with it");
        }
        // Scripts wait for this line.
        writeln!(std::io::stdout(), "{name}: ready, copies go into {}", options.directory.display())
            .map_err(CommandError::output)?;
        loop {
            let mut failures = 0;
            let (mut gauge, mut total, mut before) = (Gauge::Nothing, 0, 0);
            let mut tell = |event: ServeEvent| match event {
                ServeEvent::Began { transfer, files, bytes, held } => {
                    (total, before) = (bytes, held);
                    eprintln!("{name}: transfer {transfer}: {files} files, {bytes} bytes, {held} of them here already");
                    gauge = Gauge::new(quiet, &name, std::slice::from_ref(&name), bytes);
                }
                ServeEvent::Progress { written } => {
                    let part = PartProgress { name: &name, held: before, written, over: None };
                    gauge.show(total, [part].into_iter());
                }
                ServeEvent::Finished { placed, unchanged, kept, deleted, failed, failures: count, .. } => {
                    gauge.end();
                    failures = count;
                    failed.iter().for_each(|failed| eprintln!("{name}: {failed}"));
                    eprintln!(
                        "{name}: done: {placed} in place, {unchanged} unchanged, {kept} kept, {deleted} removed, {failures} \
                         failed"
                    );
                }
                ServeEvent::Interrupted { reason } => {
                    gauge.end();
                    failures = 1;
                    eprintln!("{name}: {reason}");
                }
                _ => {}
            };
            let took_one = receiver.receive(&stop, &mut tell);
            if once && failures > 0 {
                return Err(CommandError::Failed(format!("{name}: the transfer is not complete")));
            }
            if once && took_one {
                return Ok(());
            }
            if !took_one || stop.load(Ordering::Relaxed) {
                eprintln!("{name}: stopped");
                return Ok(());
            }
        }
    }
}
