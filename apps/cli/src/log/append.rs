//! `squall log append`.

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};
use indicatif::HumanBytes;
use squall::{
    client::{Call, Client},
    log_service::{Appended, RecordLog},
};
use squall_command::{CommandError, stop_on_signals};

use super::{input::Input, meter::Meter, reach::ReachArgs, show::contents};

/// The most records under way.
const MAX_UNDER_WAY: usize = 4096;

/// The most bytes of records under way. A longer record is under way alone.
const MAX_BYTES_UNDER_WAY: usize = 64 << 20;

/// The time for which all members may be away.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time within which Ctrl-C is noticed.
const ATTENTIVE: Duration = Duration::from_millis(50);

const HELP: &str = "\
Examples:
  journalctl -f -o cat | squall log append --config log.toml -q
  squall log append --config log.toml access.log error.log
  squall log append --config log.toml --file contract.pdf
  squall log export old/logs/log | squall log append --config log.toml --json -q

Each record's version is printed once all members have it on disk. Many are under way at a time, and get there in their
order. When the member that it talks to fails, or all of them do and are started again, it goes on by itself, and each
record is there once. That holds within one run: after an error or Ctrl-C it says how many records are acknowledged, and
of how many it does not know.";

/// Appends records: the lines of standard input or of files, or whole files.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct AppendArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Append these files' lines; `-` is standard input
    #[arg(value_name = "FILE")]
    lines_of: Vec<PathBuf>,
    /// Append these files, each as one record
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "lines_of")]
    file: Vec<PathBuf>,
    /// Take each line as a JSON object, as `read --json` and `export` write them, and append the record in it. A record
    /// that is marked as skipped is left out
    #[arg(long, conflicts_with = "file")]
    json: bool,
    /// Don't print versions
    #[arg(short, long)]
    quiet: bool,
    /// Show the progress even if standard error is no terminal: a line a second
    #[arg(long)]
    progress: bool,
}

impl AppendArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let stop = stop_on_signals()?;
        let config = self.reach.client()?;
        let mut config = config.with_timeout(self.reach.timeout_or(PATIENCE));
        // Besides the calls in the channel, the waiter waits for one and this thread is about to add one.
        config.max_waiting = MAX_UNDER_WAY + 2;
        let input = match (self.lines_of.is_empty(), self.file.is_empty()) {
            (_, false) => Input::Whole(self.file.clone()),
            (false, true) => Input::LinesOf(self.lines_of.clone()),
            (true, true) => Input::Lines,
        };
        let mut meter = Meter::new(!self.quiet, self.progress, input.bytes());
        let client = Client::<RecordLog>::connect(&config, self.reach.group());
        let client = client.map_err(CommandError::failed)?;
        let records =
            input.read().map_err(|error| CommandError::Failed(format!("no thread could be started: {error}")))?;

        let began = Instant::now();
        let (failed, room) = (AtomicBool::new(false), ByteBudget::default());
        let (to_waiter, calls) = bounded(MAX_UNDER_WAY);
        let (mut trouble, mut is_stopped, mut number) = (None, false, 0);
        let tally = thread::scope(|scope| {
            let (failed, room, quiet) = (&failed, &room, self.quiet);
            let meter = &mut meter;
            let waiter = scope.spawn(move || wait(&calls, failed, room, quiet, meter));
            loop {
                if failed.load(Ordering::Relaxed) {
                    break;
                }
                if stop.load(Ordering::Relaxed) {
                    is_stopped = true;
                    break;
                }
                match records.recv_timeout(ATTENTIVE).map(|line| self.record(line?, &mut number)) {
                    Ok(Ok(None)) => {}
                    Ok(Ok(Some(record))) => {
                        room.take(record.len());
                        let bytes = record.len();
                        if to_waiter.send((bytes, client.submit(&record))).is_err() {
                            break;
                        }
                    }
                    Ok(Err(why)) => {
                        trouble = Some(why);
                        break;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            drop(to_waiter);
            waiter.join()
        });
        meter.end();
        let tally =
            tally.map_err(|_| CommandError::Failed("the thread that waits for acknowledgements panicked".into()))?;
        let said = tally.say(began.elapsed());
        match (tally.failure.or(trouble), is_stopped) {
            (Some(why), _) => Err(CommandError::Failed(format!("{why}; {said}{}", tally.rest))),
            (None, true) => Err(CommandError::Failed(format!("stopped; {said}{}", tally.rest))),
            (None, false) => {
                eprintln!("squall: {said}");
                Ok(())
            }
        }
    }
}

impl AppendArgs {
    /// The record of a line, if it has one to append. `number` counts lines.
    fn record(&self, line: Vec<u8>, number: &mut u64) -> Result<Option<Vec<u8>>, String> {
        *number += 1;
        match self.json {
            true => contents(&line).map_err(|why| format!("line {number} can't be appended: {why}")),
            false => Ok(Some(line)),
        }
    }
}

/// The bytes of records under way, of which there is a limit.
#[derive(Default)]
struct ByteBudget {
    bytes: Mutex<usize>,
    freed: Condvar,
}

impl ByteBudget {
    /// Waits for room for `more` bytes. A record always fits alone.
    fn take(&self, more: usize) {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |bytes: &mut usize| *bytes > 0 && bytes.saturating_add(more) > MAX_BYTES_UNDER_WAY;
        *self.freed.wait_while(bytes, is_full).unwrap_or_else(PoisonError::into_inner) += more;
    }

    fn give_back(&self, bytes: usize) {
        *self.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= bytes;
        self.freed.notify_one();
    }
}

/// The outcome of the records.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: u64,
    bytes: u64,
    first: u64,
    last: u64,
    failure: Option<String>,
    /// The part of the last message about records that were not acknowledged.
    rest: String,
}

impl Tally {
    fn say(&self, took: Duration) -> String {
        let Tally { acknowledged, bytes, first, last, .. } = *self;
        if acknowledged == 0 {
            return "no record was acknowledged".to_owned();
        }
        let rate = acknowledged as f64 / took.as_secs_f64().max(1e-9);
        format!(
            "{acknowledged} records ({}) were appended as versions {first} to {last}, in {:.1} s, {rate:.0}/s",
            HumanBytes(bytes),
            took.as_secs_f64()
        )
    }
}

/// Waits for acknowledgements, in order, and prints versions.
fn wait(
    calls: &Receiver<(usize, Call<Appended>)>,
    failed: &AtomicBool,
    room: &ByteBudget,
    quiet: bool,
    meter: &mut Meter,
) -> Tally {
    let mut tally = Tally::default();
    let (mut unknown, mut refused) = (0_u64, 0_u64);
    let mut out = BufWriter::new(io::stdout().lock());
    let mut is_heard = !quiet;
    for (number, (bytes, call)) in (1_u64..).zip(calls) {
        let result = call.wait();
        room.give_back(bytes);
        match result {
            Ok(Appended { version, .. }) => {
                tally.acknowledged += 1;
                tally.bytes += bytes as u64;
                tally.first = if tally.first == 0 { version } else { tally.first };
                tally.last = version;
                meter.show(tally.acknowledged, tally.bytes);
                // A reader that is gone does not stop the command: the records are still to be appended.
                is_heard = is_heard && writeln!(out, "{version}").is_ok();
                if is_heard && calls.is_empty() {
                    is_heard = out.flush().is_ok();
                }
            }
            Err(error) => {
                failed.store(true, Ordering::Relaxed);
                *(if error.is_not_applied() { &mut refused } else { &mut unknown }) += 1;
                tally.failure.get_or_insert_with(|| format!("record {number}: {error}"));
            }
        }
    }
    let _ = out.flush();
    if refused > 0 {
        tally.rest += &format!("; {refused} {} not appended", if refused == 1 { "was" } else { "were" });
    }
    if unknown > 0 {
        let they = if unknown == 1 { "it was" } else { "they were" };
        tally.rest += &format!("; of {unknown} it is unknown whether {they} appended");
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_record_longer_than_all_that_may_be_under_way_goes_alone() {
        let room = ByteBudget::default();
        room.take(2 * MAX_BYTES_UNDER_WAY);
        thread::scope(|scope| {
            let next = scope.spawn(|| room.take(1));
            room.give_back(2 * MAX_BYTES_UNDER_WAY);
            next.join().unwrap();
        });
        assert_eq!(*room.bytes.lock().unwrap(), 1);
    }
}
