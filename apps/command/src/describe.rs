//! The subcommands that describe the whole program: completions for shells, and manual pages.

use std::{fs, io, path::PathBuf};

use clap::{Command, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::{CommandError, say};

const COMPLETIONS: &str = "\
Example:
  {program} completions bash > /etc/bash_completion.d/{program}";

const MANUAL: &str = "\
Example:
  {program} manual --dir /usr/local/share/man/man1";

/// The subcommands that describe the whole program.
#[derive(Clone, Debug, Subcommand)]
pub enum DescribeCommand {
    /// Prints a script with which a shell completes subcommands, options and their values
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Writes the manual pages, one for each subcommand
    #[command(after_help = MANUAL)]
    Manual {
        /// The directory of the pages; made if it is not there
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

impl DescribeCommand {
    /// Describes the program whose whole command is `command`.
    pub fn run(&self, command: Command) -> Result<(), CommandError> {
        match self {
            DescribeCommand::Completions { shell } => {
                let name = command.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut without_hidden(&command), name, &mut script);
                io::Write::write_all(&mut io::stdout().lock(), &script).map_err(CommandError::output)
            }
            DescribeCommand::Manual { dir } => {
                let failed = |error| CommandError::Failed(format!("{} can't be written: {error}", dir.display()));
                fs::create_dir_all(dir).map_err(failed)?;
                clap_mangen::generate_to(command, dir).map_err(failed)?;
                say(format_args!("the pages are in {}", dir.display()));
                Ok(())
            }
        }
    }
}

/// The command's subcommands and options, without those that the help hides.
fn without_hidden(command: &Command) -> Command {
    let shown = Command::new(command.get_name().to_owned());
    let shown = shown.about(command.get_about().cloned().unwrap_or_default());
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).map(without_hidden);
    shown.args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned()).subcommands(subcommands)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn completions_and_pages_have_what_the_help_shows() {
        let hidden = Command::new("secret").hide(true);
        let shown =
            Command::new("count").arg(Arg::new("many").long("many")).arg(Arg::new("few").long("few").hide(true));
        let command = Command::new("thing").subcommands([hidden, shown]);
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut without_hidden(&command), "thing", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("--many") && !script.contains("--few") && !script.contains("secret"), "{script}");
        let place = crate::TemporaryDirectory::new("test-manual").unwrap();
        DescribeCommand::Manual { dir: place.path().join("man1") }.run(command).unwrap();
        let pages = fs::read_dir(place.path().join("man1")).unwrap().map(|page| page.unwrap().file_name());
        let mut pages: Vec<_> = pages.map(|name| name.into_string().unwrap()).collect();
        pages.sort();
        assert_eq!(pages, ["thing-count.1", "thing.1"]);
    }
}
