//! The common parts of the papers' experiments: their options, and the output of their results.

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use clap::{Args, ValueEnum};
use squall_command::{CommandError, plot};

use super::outcome::ExperimentOutcome;
use crate::job::spelt;

/// Options for the run of experiments, and for their results.
#[derive(Debug, Args)]
pub(super) struct ExperimentOptions {
    /// The seed of all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the figures into this file; with `all`, into one for each experiment, named after it
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object per line: the rows of the table, then the findings
    #[arg(long)]
    json: bool,
    /// Do less of everything, in a few seconds
    #[arg(long)]
    quick: bool,
}

/// The seed and the size of an experiment's run.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExperimentRun {
    pub(super) seed: u64,
    pub(super) quick: bool,
}

impl ExperimentRun {
    /// One of two sizes.
    pub(super) fn size<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

impl ExperimentOptions {
    /// Runs an experiment by its name on the command line, or one after the other if it is `all`.
    pub(super) fn run<N: ValueEnum + PartialEq, E: Display>(
        &self,
        name: N,
        all: N,
        experiment: impl Fn(&N, ExperimentRun) -> Result<ExperimentOutcome, E>,
    ) -> Result<(), CommandError> {
        let run = ExperimentRun { seed: self.seed, quick: self.quick };
        let asks_all = name == all;
        let is_asked = |each: &&N| **each != all && (asks_all || **each == name);
        for name in N::value_variants().iter().filter(is_asked) {
            let spelt = spelt(name);
            let began = Instant::now();
            let outcome = experiment(name, run).map_err(|error| CommandError::Failed(format!("{spelt}: {error}")))?;
            let text = if self.json {
                outcome.json(&spelt)
            } else {
                format!("{}{:.1} s\n\n", outcome.text(&spelt), began.elapsed().as_secs_f64())
            };
            let mut out = io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            written.map_err(CommandError::output)?;
            if let Some(path) = &self.svg {
                let path = if asks_all { beside(path, &spelt) } else { path.clone() };
                plot::write(&path, &plot::draw(&outcome.title, &outcome.charts))?;
            }
        }
        Ok(())
    }
}

/// The results of `work` on each item, in the items' order. Runs on all cores.
pub(super) fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let each = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(each))));
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The name of one of several files: out.svg becomes out-fig4.svg.
fn beside(path: &Path, name: &str) -> PathBuf {
    let mut file = path.file_stem().map(OsString::from).unwrap_or_default();
    file.push(format!("-{name}."));
    file.push(path.extension().unwrap_or("svg".as_ref()));
    path.with_file_name(file)
}
