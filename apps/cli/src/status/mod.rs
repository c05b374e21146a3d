//! `squall status`: a cluster as one of its nodes, or all of them, see it.

mod fleet;
mod layout;
mod log;
mod security;
mod table;
mod text;

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;
use squall::admin::{AdminClient, Fleet, FleetReport, Health, HealthReport, StatusReport, Target};
use squall_command::{CommandError, stop_on_signals};
use squall_units::TimeUnit;

use crate::target::{PATIENCE, TargetArgs};

/// The time within which Ctrl-C is noticed.
const ATTENTIVE: Duration = Duration::from_millis(50);

/// The shortest time between two questions.
const SHORTEST: Duration = Duration::from_millis(10);

const HELP: &str = "\
Examples:
  squall status --config squall.toml            the node of this configuration
  squall status --config squall.toml --id 2     node 2 of a file that all nodes share
  squall status --all --config squall.toml      all nodes, a line for each
  squall status --cluster bank --node 1         of a cluster in shared memory
  squall status --cluster bank --address 10.0.0.1:7700 --keys keys
  squall status --watch --config squall.toml    again every second; --watch=500ms twice as often

It shows the node's health and the reasons for it, the view and its members, of each shard the messages per second and
how far each member is (its lag: places of the order that some member has received and this one has not delivered; how
much of its state has come, while this node gets it), what the node waits for, the view log, and the nodes that ask to
join. Where not all members hold all shards, a table draws which holds which, and what moves.

With --all, members and witnesses of the configuration are asked at once, and the members that they name; with --cluster
the node that is given, and those that it names. Each may take 5s to be reached, and as long to answer.

Exit codes:
  0  serving: all works
  1  no answer: the node does not run, can't be reached or refuses; with --all, none answers
  2  the arguments make no sense
  4  degraded: something is to be looked at, or is under way; with --all, also if a node does not answer, or if nodes
     contradict each other
  5  can't go on: the node has ended or reaches no majority, or a shard refuses work or is suspended
With --all it is the worst of the nodes. With --watch it is asked again until Ctrl-C, which ends it with 0.

--json prints the fields of squall::admin::StatusReport with `health` and `reasons`, and with --all those of
squall::admin::FleetReport. The book has a schema of it (operate/status.schema.json). Later versions may have more
fields, and none of these is taken away.";

/// Shows how a node, or all, see their cluster: health, view, each member's progress, messages per second, view log.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct StatusArgs {
    /// Ask all nodes, and show a line for each
    #[arg(long)]
    all: bool,
    /// Show it again every second, or at this interval, such as 500ms
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", require_equals = true)]
    #[arg(value_parser = squall_units::time_in(SHORTEST..=Duration::from_secs(86_400), TimeUnit::Seconds))]
    watch: Option<Duration>,
    /// Print a JSON object; with --watch one for each time
    #[arg(long)]
    json: bool,
    // Last, since the options behind it would stand under its heading.
    #[command(flatten)]
    target: TargetArgs,
}

/// An answer, to be shown.
enum Answer {
    Node(Box<StatusReport>),
    Fleet(FleetReport),
}

/// The JSON of a node's report.
#[derive(Serialize)]
struct NodeObject<'a> {
    #[serde(flatten)]
    health: HealthReport,
    #[serde(flatten)]
    report: &'a StatusReport,
}

impl Answer {
    fn text(&self, json: bool) -> String {
        let object = match self {
            Answer::Node(report) if json => {
                serde_json::to_string(&NodeObject { health: report.health(), report: report.as_ref() })
            }
            Answer::Fleet(fleet) if json => serde_json::to_string(fleet),
            Answer::Node(report) => return text::of(report),
            Answer::Fleet(fleet) => return fleet::of(fleet),
        };
        object.expect("plain data") + "\n"
    }

    fn exit(&self) -> Result<(), CommandError> {
        let health = match self {
            Answer::Node(report) => report.health().health,
            Answer::Fleet(fleet) => fleet.health,
        };
        match health {
            Health::Serving => Ok(()),
            Health::Unreachable => Err(CommandError::Found(1)),
            Health::Degraded => Err(CommandError::Found(4)),
            Health::CannotGoOn => Err(CommandError::Found(5)),
        }
    }
}

/// The way in which the nodes are asked. A conversation with one node goes on from question to question.
enum Asker {
    Node { target: Target, client: Option<AdminClient> },
    Fleet(Fleet),
}

impl Asker {
    fn ask(&mut self) -> Result<Answer, CommandError> {
        match self {
            Asker::Fleet(fleet) => Ok(Answer::Fleet(fleet.status(PATIENCE))),
            Asker::Node { target, client } => {
                let connected = client.take().map_or_else(|| AdminClient::connect(target, PATIENCE), Ok);
                let mut connected = connected.map_err(CommandError::failed)?;
                let report = connected.status().map_err(CommandError::failed)?;
                *client = Some(connected);
                Ok(Answer::Node(Box::new(report)))
            }
        }
    }
}

impl StatusArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        // An error that waiting can't mend ends the command.
        let mut asker = match self.all {
            true => Asker::Fleet(self.target.fleet()?),
            false => Asker::Node { target: self.target.target()?, client: None },
        };
        let Some(pause) = self.watch else {
            let answer = asker.ask()?;
            self.show(&answer).map_err(CommandError::output)?;
            return answer.exit();
        };
        let stop = stop_on_signals()?;
        while !stop.load(Ordering::Relaxed) {
            let shown = match asker.ask() {
                Ok(answer) => self.clear().and_then(|()| self.show(&answer)),
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

    fn show(&self, answer: &Answer) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(answer.text(self.json).as_bytes())?;
        out.flush()
    }
}

/// Waits for `pause`, or until `stop` is set.
fn rest(pause: Duration, stop: &AtomicBool) {
    // A pause that is too long for the clock has no end.
    let until = Instant::now().checked_add(pause);
    while !stop.load(Ordering::Relaxed) {
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return,
            rest => thread::sleep(rest.unwrap_or(ATTENTIVE).min(ATTENTIVE)),
        }
    }
}
