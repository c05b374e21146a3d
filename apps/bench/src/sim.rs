//! `squall-bench sim`: whole clusters in virtual time.

use std::{
    io::{self, BufWriter, IsTerminal, Write},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use clap::{Args, Subcommand};
use squall::sim::scenario;
use squall_command::CommandError;

const CHECK_HELP: &str = "\
Examples:
  squall-bench sim check
  squall-bench sim check --seeds 100000 --from 600000 --threads 2

The exit code is 1 if a seed fails.";

const REPLAY_HELP: &str = "\
Example:
  squall-bench sim replay 600017

The exit code is 1 if the seed fails.";

/// Runs simulated clusters: real protocols, virtual time, everything from one seed.
#[derive(Debug, Args)]
pub(crate) struct SimCommand {
    #[command(subcommand)]
    what: SimAction,
}

#[derive(Debug, Subcommand)]
enum SimAction {
    Check(Check),
    Replay(Replay),
}

/// Runs the scenarios of many seeds, and checks what must hold: one view of each epoch, one order everywhere, no gap,
/// no repetition, no stale read, nothing acknowledged is lost, nothing hangs. Nodes that can serve do so when the
/// faults are over.
///
/// Each scenario is a cluster of 2 to 9 nodes with its view log and with clients, on the worst network that the
/// contract permits. It meets pauses, cuts, crashes, joins and leaves. About half of the groups with one order are
/// durable: then all nodes also lose power at once, and disks tear, fill up, fail and rot. The first seed that fails is
/// printed, and `squall-bench sim replay SEED` tells what happened in it.
#[derive(Debug, Args)]
#[command(after_help = CHECK_HELP)]
struct Check {
    /// The number of seeds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// The number of seeds that run at the same time [default: one on each core]
    #[arg(long)]
    threads: Option<usize>,
}

/// Runs the scenario of one seed again, and tells each operation and fault with its virtual time.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_HELP)]
struct Replay {
    /// The seed, as a failed check printed it
    seed: u64,
    /// Also tell what the network does: posts, landings, breaks. Long
    #[arg(long)]
    network: bool,
}

impl SimCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.what {
            SimAction::Check(check) => check.run(),
            SimAction::Replay(replay) => replay.run(),
        }
    }
}

/// The sums over all scenarios.
#[derive(Default)]
struct Sum {
    done: u64,
    messages: usize,
    reads: usize,
    views: usize,
    faults: usize,
    /// The failed scenario with the lowest seed.
    failed: Option<scenario::Violation>,
}

impl Sum {
    fn take(&mut self, result: Result<scenario::Report, scenario::Violation>) {
        self.done += 1;
        match result {
            Ok(report) => {
                self.messages += report.messages;
                self.reads += report.reads;
                self.views += report.views;
                self.faults += report.faults;
            }
            Err(violation) if self.failed.as_ref().is_none_or(|first| violation.seed < first.seed) => {
                self.failed = Some(violation);
            }
            Err(_) => {}
        }
    }
}

impl Check {
    fn run(self) -> Result<(), CommandError> {
        let began = Instant::now();
        let end = self.from.saturating_add(self.seeds);
        let (next, sum) = (AtomicU64::new(self.from), Mutex::new(Sum::default()));
        let progress = io::stderr().is_terminal();
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                // After a failure no higher seed begins. Those under way still end, since one of them may fail at a
                // lower seed.
                if seed >= end || lock(&sum).failed.is_some() {
                    break;
                }
                let result = scenario::run(seed);
                let mut sum = lock(&sum);
                sum.take(result);
                if progress && sum.done.is_multiple_of(20) {
                    eprint!("\r{} of {} seeds", sum.done, self.seeds);
                }
            }
        };
        let threads = self.threads.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        if progress {
            eprint!("\r");
        }
        let Sum { messages, reads, views, faults, failed, .. } =
            sum.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(violation) = failed {
            let (seed, count) = (violation.seed, violation.seed - self.from + 1);
            let advice =
                format!("it is number {count} of {}; `squall-bench sim replay {seed}` tells what happened", self.seeds);
            return Err(CommandError::Failed(format!("{violation}\n{advice}")));
        }
        let seconds = began.elapsed().as_secs_f64();
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{} seeds from {}: {messages} messages and {reads} reads through {faults} faults and {views} changes of the \
             view, all as it must be; {seconds:.1} s",
            self.seeds, self.from
        )
        .map_err(output)
    }
}

fn lock(sum: &Mutex<Sum>) -> MutexGuard<'_, Sum> {
    sum.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replay {
    fn run(self) -> Result<(), CommandError> {
        let mut out = BufWriter::new(io::stdout().lock());
        let mut failed = None;
        let mut tell = |at: squall::Time, line: &str| {
            if let Err(error) = writeln!(out, "{at}  {line}") {
                failed.get_or_insert(error);
            }
        };
        let result = scenario::replay(self.seed, self.network, &mut tell);
        if let Some(error) = failed {
            return Err(output(error));
        }
        match result {
            Ok(report) => writeln!(out, "{report:#?}").and_then(|()| out.flush()).map_err(output),
            Err(violation) => {
                out.flush().map_err(output)?;
                Err(CommandError::Failed(violation.to_string()))
            }
        }
    }
}

fn output(error: io::Error) -> CommandError {
    CommandError::Failed(format!("the output could not be written: {error}"))
}
