//! The parts that the commands of Squall share: the start of a command and its exit code, the common parts of its help,
//! signals, temporary directories, and drawings.

#[cfg(feature = "check")]
pub mod check;
mod describe;
mod help;
pub mod plot;
mod signals;
mod temporary;

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Command, Parser};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

pub use self::{
    describe::DescribeCommand,
    signals::{note_hangups, stop_on_signals},
    temporary::TemporaryDirectory,
};

/// The reason for which a command did not do what was asked: one sentence, with its remedy.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The arguments make no sense together, and no other attempt could mend that. The exit code is 2.
    #[error("{0}")]
    Usage(String),
    /// The work failed. The exit code is 1.
    #[error("{0}")]
    Failed(String),
    /// A check of which nothing wrong was found, but that could not cover everything. The exit code is 3.
    #[error("{0}")]
    Unchecked(String),
    /// A finding that the command has printed already. This is its exit code.
    #[error("the exit code is {0}")]
    Found(u8),
}

impl CommandError {
    /// The arguments make no sense, for this reason.
    pub fn usage(reason: impl Display) -> CommandError {
        CommandError::Usage(reason.to_string())
    }

    /// The work failed, for this reason.
    pub fn failed(reason: impl Display) -> CommandError {
        CommandError::Failed(reason.to_string())
    }

    /// The output could not be written.
    pub fn output(error: io::Error) -> CommandError {
        CommandError::Failed(format!("the output could not be written: {error}"))
    }
}

/// Begins the log of a process, on standard error. It has the messages that `RUST_LOG` names, as in
/// `RUST_LOG=warn,squall=debug`: a level, and levels for targets that begin with a word. Without a valid `RUST_LOG` it
/// has those that `usual` names.
///
/// # Panics
///
/// If `usual` is not valid, or the process has a log already.
pub fn log(usual: &str) {
    let asked = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty()).and_then(|text| text.parse().ok());
    let targets: Targets = asked.unwrap_or_else(|| usual.parse().expect("a valid list"));
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    tracing_subscriber::registry().with(lines).with(targets).init();
}

/// Parses the arguments of the command called `name`, and runs it. Returns its exit code.
///
/// The log goes to standard error, with the messages that `RUST_LOG` names, or else those of the command's `level`. An
/// error is printed there too.
pub fn run<C: Parser>(
    name: &str,
    level: impl FnOnce(&C) -> &'static str,
    work: impl FnOnce(C) -> Result<(), CommandError>,
) -> ExitCode {
    let matches = command_of::<C>().try_get_matches();
    let command = match matches.and_then(|matches| C::from_arg_matches(&matches)) {
        Ok(command) => command,
        Err(error) => {
            // Without an output the error can't be shown.
            let _ = match error.use_stderr() {
                true => write!(io::stderr(), "{}", help::explained(&error)),
                false => error.print(),
            };
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // The view log itself reports what matters of Raft's messages.
    log(&format!("{},openraft=off", level(&command)));
    let Err(error) = work(command) else { return ExitCode::SUCCESS };
    let code = match error {
        CommandError::Found(code) => return ExitCode::from(code),
        CommandError::Usage(_) => 2,
        CommandError::Failed(_) => 1,
        CommandError::Unchecked(_) => 3,
    };
    eprintln!("{name}: {error}");
    ExitCode::from(code)
}

/// The whole command of a program, with the parts of its help that all commands share.
pub fn command_of<C: Parser>() -> Command {
    help::with_common_parts(C::command())
}

/// Prints a line for the user. Without an output it is lost.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}
