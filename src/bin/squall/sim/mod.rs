//! `squall sim`: whole clusters in virtual time.

mod rdmc;

use std::{
    io::{self, BufWriter, IsTerminal, Write},
    time::Instant,
};

use clap::{Args, Subcommand};
use squall::sim::scenario;

use crate::CommandError;

/// Run simulated clusters: real protocols, virtual time, everything from one seed.
#[derive(Debug, Args)]
pub(crate) struct SimCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Check(Check),
    Replay(Replay),
    Rdmc(rdmc::Rdmc),
}

/// Run the scenarios of many seeds, and check what must hold: one order everywhere, no gap, no repetition, no stale read,
/// nothing acknowledged is lost, nothing hangs.
///
/// Each scenario is a cluster of 2 to 7 nodes on the worst network that the contract permits, with clients, pauses, cuts and
/// crashes. The first seed that fails is printed, and `squall sim replay SEED` tells what happened in it.
#[derive(Debug, Args)]
struct Check {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
}

/// Run the scenario of one seed again, and tell each operation and fault with its virtual time.
#[derive(Debug, Args)]
struct Replay {
    /// The seed, as a failed check printed it.
    seed: u64,
    /// Also tell what the network does: posts, landings, breaks. Long.
    #[arg(long)]
    network: bool,
}

impl SimCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.what {
            What::Check(check) => check.run(),
            What::Replay(replay) => replay.run(),
            What::Rdmc(rdmc) => rdmc.run(),
        }
    }
}

impl Check {
    fn run(self) -> Result<(), CommandError> {
        let began = Instant::now();
        let (mut messages, mut reads, mut faults) = (0, 0, 0);
        let progress = io::stderr().is_terminal();
        for (done, seed) in (self.from..self.from.saturating_add(self.seeds)).enumerate() {
            let report = scenario::run(seed).map_err(|violation| {
                let advice = format!("`squall sim replay {seed}` tells what happened");
                CommandError::Failed(format!("{violation}\n{advice}"))
            })?;
            messages += report.messages;
            reads += report.reads;
            faults += report.faults;
            if progress && done % 20 == 0 {
                eprint!("\r{done} of {} seeds", self.seeds);
            }
        }
        if progress {
            eprint!("\r");
        }
        let seconds = began.elapsed().as_secs_f64();
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{} seeds from {}: {messages} messages and {reads} reads through {faults} faults, all as it must be; \
             {seconds:.1} s",
            self.seeds, self.from
        )
        .map_err(output)
    }
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
