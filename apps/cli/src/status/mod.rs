//! `squall status`: a cluster as one of its nodes sees it.

mod text;

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use squall::admin::{AdminClient, StatusReport};
use squall_command::{CommandError, stop_on_signals};
use squall_units::TimeUnit;

use crate::target::TargetArgs;

/// The time within which Ctrl-C is noticed.
const ATTENTIVE: Duration = Duration::from_millis(50);

const HELP: &str = "\
Examples:
  squall status --config squall.toml            the node of this configuration
  squall status --config squall.toml --id 2     node 2 of a file that all nodes share
  squall status --cluster bank --node 1         of a cluster in shared memory
  squall status --cluster bank --address 10.0.0.1:7700 --keys keys
  squall status --watch --config squall.toml    again every second

It shows the view and its members, of each shard how far each member is (its lag: places of the order that some member
has received and this one has not delivered; how much of its state has come, while this node gets it), the view log, and
the nodes that ask to join. The exit code is 1 if the node does not answer; with --watch it is asked again until Ctrl-C,
which ends it with 0.

--json prints the fields of squall::admin::StatusReport, of which later versions may have more.";

/// Shows how a node sees its cluster: the view, each member's progress, the view log.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Show it again every second, or at this interval
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", require_equals = true)]
    #[arg(value_parser = squall_units::time_in(Duration::from_millis(10)..=Duration::from_secs(86_400), TimeUnit::Seconds))]
    watch: Option<Duration>,
    /// Print a JSON object; with --watch one for each time
    #[arg(long)]
    json: bool,
}

impl StatusArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let Some(pause) = self.watch else {
            let report = self.target.connect()?.status().map_err(CommandError::failed)?;
            return self.show(&report).map_err(CommandError::output);
        };
        let mut client: Option<AdminClient> = None;
        let stop = stop_on_signals()?;
        // An error that waiting can't mend ends the command.
        self.target.target()?;
        while !stop.load(Ordering::Relaxed) {
            let connected = client.take().map_or_else(|| self.target.connect(), Ok);
            let asked = connected.and_then(|mut connected| {
                let report = connected.status().map_err(CommandError::failed)?;
                client = Some(connected);
                Ok(report)
            });
            let shown = match asked {
                Ok(report) => self.clear().and_then(|()| self.show(&report)),
                // The node may come back.
                Err(error) => self.clear().and_then(|()| writeln!(io::stderr(), "squall: {error}")),
            };
            match shown {
                Ok(()) => rest(pause, &stop),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(CommandError::output(error)),
            }
        }
        Ok(())
    }

    /// Begins a new page, where there are pages.
    fn clear(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if !self.json && out.is_terminal() { write!(out, "\x1b[H\x1b[J") } else { Ok(()) }
    }

    fn show(&self, report: &StatusReport) -> io::Result<()> {
        let text = match self.json {
            true => serde_json::to_string(report).expect("plain data") + "\n",
            false => text::of(report),
        };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// Waits for `pause`, or until `stop` is set.
fn rest(pause: Duration, stop: &AtomicBool) {
    let until = Instant::now() + pause;
    while !stop.load(Ordering::Relaxed) {
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            rest => thread::sleep(rest.min(ATTENTIVE)),
        }
    }
}
