//! The parts of `--help` that all commands share, and errors that say what is wanted.

use std::{
    error::Error,
    net::AddrParseError,
    num::{IntErrorKind, ParseFloatError, ParseIntError},
};

use clap::{Command, builder::Str};

/// The exit codes of a command whose help does not name its own.
const EXIT_CODES: &str =
    "Exit codes: 0 it is done; 1 it failed, for the reason that the error gives; 2 the arguments make no sense.";

/// The notations of values, by the names that values have in the help.
const NOTATIONS: [(&str, &str); 3] = [
    ("SIZE", "A SIZE is written 4096, 64KiB, 1.5MiB; a number alone is in bytes."),
    ("TIME", "A TIME is written 500ms, 5s, 10m."),
    ("RATE", "A RATE is written 10MiB/s."),
];

/// Completes the help of a program and of all its subcommands: the notations of the values that their options take, and
/// the exit codes, unless the help lists them. The program's name replaces `{program}`.
pub(crate) fn with_common_parts(program: Command) -> Command {
    let name = program.get_name().to_owned();
    completed(program, &name)
}

fn completed(command: Command, program: &str) -> Command {
    let command = command.mut_subcommands(|command| completed(command, program));
    if !is_run(&command) {
        return command;
    }
    let mut help = command.get_after_help().map(ToString::to_string).unwrap_or_default().replace("{program}", program);
    let takes = |name: &str| command.get_arguments().any(|arg| value_names(arg).any(|taken| taken == name));
    let notations: Vec<&str> =
        NOTATIONS.into_iter().filter(|(name, _)| takes(name)).map(|(_, notation)| notation).collect();
    let exit_codes = (!help.contains("Exit codes:")).then_some(EXIT_CODES);
    for part in [Some(notations.join(" ")).filter(|part| !part.is_empty()), exit_codes.map(str::to_owned)] {
        let Some(part) = part else { continue };
        let separator = if help.is_empty() { "" } else { "\n\n" };
        help = format!("{help}{separator}{part}");
    }
    command.after_help(help)
}

/// Whether the command does something without a subcommand.
pub(crate) fn is_run(command: &Command) -> bool {
    !command.has_subcommands() || !command.is_subcommand_required_set()
}

/// The names of an option's values, in its help.
pub(crate) fn value_names(arg: &clap::Arg) -> impl Iterator<Item = &Str> {
    arg.get_value_names().unwrap_or_default().iter()
}

/// The error's text. Where a value could not be read, it says what is wanted.
pub(crate) fn explained(error: &clap::Error) -> String {
    let text = error.to_string();
    let Some(source) = error.source() else { return text };
    let wanted = match source {
        source if let Some(error) = source.downcast_ref::<ParseIntError>() => match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "give a number of fewer digits",
            _ => "give a whole number such as 3",
        },
        source if source.is::<ParseFloatError>() => "give a number such as 2.5",
        source if source.is::<AddrParseError>() => "give an address such as 127.0.0.1, or 127.0.0.1:7000 with a port",
        _ => return text,
    };
    match text.rsplit_once(&source.to_string()) {
        Some((before, after)) => format!("{before}{wanted}{after}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, Subcommand};

    use super::*;

    /// Does things.
    #[derive(Debug, Parser)]
    #[command(name = "thing")]
    struct Thing {
        #[command(subcommand)]
        what: What,
    }

    #[derive(Debug, Subcommand)]
    enum What {
        /// Waits.
        #[command(after_help = "Exit codes: 7 it has waited.")]
        Wait {
            /// So long
            #[arg(long, value_name = "TIME")]
            long: Option<String>,
        },
        /// Counts.
        Count {
            /// So many
            #[arg(long)]
            many: Option<u32>,
            /// So much
            #[arg(long)]
            much: Option<f64>,
        },
    }

    fn help(subcommand: &str) -> String {
        let command = with_common_parts(<Thing as clap::CommandFactory>::command());
        command.try_get_matches_from(["thing", subcommand, "--help"]).unwrap_err().to_string()
    }

    #[test]
    fn notations_and_exit_codes_are_added_where_they_are_missing() {
        let wait = help("wait");
        assert!(wait.contains("A TIME is written 500ms") && wait.contains("7 it has waited"), "{wait}");
        assert!(!wait.contains("SIZE") && !wait.contains(EXIT_CODES), "{wait}");
        let count = help("count");
        assert!(count.contains(EXIT_CODES) && !count.contains("is written"), "{count}");
    }

    #[test]
    fn a_value_that_is_no_number_is_answered_with_what_is_wanted() {
        for (option, wanted) in [
            ("--many=x", "invalid value 'x' for '--many <MANY>': give a whole number such as 3"),
            ("--many=invalid digit found in string", "give a whole number"),
            ("--many=99999999999999999999", "give a number of fewer digits"),
            ("--many=-1", "-1 is not in 0..=4294967295"),
            ("--much=x", "give a number such as 2.5"),
        ] {
            let error = Thing::try_parse_from(["thing", "count", option]).unwrap_err();
            let text = explained(&error);
            assert!(text.contains(wanted) && text.contains("--help"), "{option}: {text}");
        }
    }
}
