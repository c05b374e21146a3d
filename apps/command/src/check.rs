//! A check of a program's whole help, and of texts that name its commands. The programs' tests use it.

use std::{fs, io, path::Path};

use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::help;

/// Units, which no value is named after, nor its name ends with: sizes and times have one notation.
const UNITS: [&str; 14] =
    ["S", "MS", "US", "NS", "SECONDS", "MINUTES", "HOURS", "DAYS", "BYTES", "KB", "MB", "KIB", "MIB", "GIB"];

/// The notations that a value of this name must be understood in.
fn notations(value_name: &str) -> &'static [&'static str] {
    match value_name {
        "SIZE" => &["65536", "64KiB", "1.5MiB"],
        "TIME" => &["500ms", "5s", "10m", "1.5s"],
        "RATE" => &["10MiB/s", "64KiB"],
        _ => &[],
    }
}

/// Checks a program's help, and all that the README, the book, and the sources of the workspace in `root` name of it.
/// The messages of `crates` name no other program's options but `foreign`. Returns all that is wrong.
pub fn problems(command: Command, root: &Path, crates: &[&str], foreign: &'static [&'static str]) -> Vec<String> {
    let mut check = ProgramCheck::new(command, foreign);
    check.help();
    let mut read = || -> io::Result<()> {
        check.page("README.md", &fs::read_to_string(root.join("README.md"))?);
        check.pages(&root.join("docs/src"))?;
        check.sources(root)?;
        crates.iter().try_for_each(|name| check.messages(&root.join(name)))
    };
    let read = read();
    check.problems.extend(read.err().map(|error| format!("{}: {error}", root.display())));
    check.problems
}

/// A program whose help and whose mentions are checked.
#[derive(Debug)]
struct ProgramCheck {
    command: Command,
    /// Options of other programs that its texts name.
    foreign: &'static [&'static str],
    problems: Vec<String>,
}

impl ProgramCheck {
    /// Begins a check of the program with this whole command. Texts may also name the options `foreign` of others.
    fn new(command: Command, foreign: &'static [&'static str]) -> ProgramCheck {
        ProgramCheck { command, foreign, problems: Vec::new() }
    }

    /// Checks the help of the program and of all its subcommands.
    ///
    /// Each that does something has an example. Each example, and each option that a text names, is
    /// understood. Values are named by their kind, are understood in all notations of it, and are answered with what is
    /// wanted if they make no sense.
    fn help(&mut self) {
        self.subcommand(&mut Vec::new(), &self.command.clone());
    }

    fn subcommand(&mut self, path: &mut Vec<String>, command: &Command) {
        path.push(command.get_name().to_owned());
        let name = path.join(" ");
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        if help::is_run(command) {
            self.expect(after.contains("Example"), || format!("{name}: its help has no example"));
        }
        self.expect(command.get_about().is_some(), || format!("{name}: it has no description"));
        let about = [command.get_about(), command.get_long_about()].into_iter().flatten().map(ToString::to_string);
        for text in about.chain([after]) {
            self.text(&name, &text);
        }
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let of_arg = [arg.get_help(), arg.get_long_help()].into_iter().flatten().map(ToString::to_string);
            of_arg.for_each(|text| self.text(&name, &text));
            self.argument(path, arg);
        }
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            self.subcommand(path, subcommand);
        }
        path.pop();
    }

    /// Checks the value of an option.
    fn argument(&mut self, path: &[String], arg: &Arg) {
        let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        let Some(long) = arg.get_long().filter(|_| takes_value) else { return };
        let shown = format!("{} --{long}", path.join(" "));
        let names: Vec<String> = help::value_names(arg).map(ToString::to_string).collect();
        for name in &names {
            let last = name.rsplit(['_', '-']).next().unwrap_or(name);
            self.expect(!UNITS.contains(&last), || format!("{shown}: {name} is a unit: name SIZE or TIME"));
            for value in notations(name) {
                let refused = self.refusal(path, long, value).filter(|text| !is_out_of_range(text));
                self.expect(refused.is_none(), || format!("{shown} does not understand {value}"));
            }
        }
        if let Some(text) = self.refusal(path, long, "?!") {
            self.expect(text.contains("give ") || text.contains("may "), || {
                format!("{shown} does not say what is wanted: {text}")
            });
        }
    }

    /// The error with which a value is refused.
    fn refusal(&self, path: &[String], long: &str, value: &str) -> Option<String> {
        let option = format!("--{long}={value}");
        let error = self.command.clone().try_get_matches_from(path.iter().chain([&option])).err()?;
        (error.kind() == ErrorKind::ValueValidation && is_about(&error, long)).then(|| help::explained(&error))
    }

    /// Checks the examples of a text, and the options and commands that it names.
    fn text(&mut self, place: &str, text: &str) {
        let (examples, sentences): (Vec<&str>, Vec<&str>) = {
            let joined_lines = text.split_inclusive('\n');
            joined_lines.partition(|line| line.starts_with("  ") || line.starts_with("$ "))
        };
        self.examples(place, &examples.concat());
        let sentences = sentences.concat();
        self.mentions(place, &sentences);
        self.options(place, &sentences);
    }

    /// Checks the options that a text names.
    fn options(&mut self, place: &str, text: &str) {
        for word in text.split(|char: char| !(char.is_ascii_alphanumeric() || char == '-')) {
            let Some(option) = word.strip_prefix("--").filter(|option| !option.is_empty()) else { continue };
            let known = self.foreign.contains(&option) || has_option(&self.command, option);
            self.expect(known, || format!("{place}: no command has the option --{option}"));
        }
    }

    /// Checks the lines of a text that call the program. Two spaces begin a remark.
    fn examples(&mut self, place: &str, text: &str) {
        let mut continued = text.split("\\\n");
        let first = continued.next().unwrap_or_default().to_owned();
        let text = continued.fold(first, |text, rest| format!("{} {}", text.trim_end(), rest.trim_start()));
        for line in text.lines() {
            let line = line.trim_start();
            let call = line.split("  ").next().and_then(|call| call.split(" #").next()).unwrap_or_default();
            let name = self.command.get_name();
            let Some(calls) = calls(call, name) else {
                self.expect(!call.contains(name), || format!("{place}: {call:?}: a quotation mark is open"));
                continue;
            };
            for words in calls {
                if let Err(error) = self.command.clone().try_get_matches_from(&words)
                    && error.use_stderr()
                {
                    self.problems.push(format!("{place}: {call:?}: {}", help::explained(&error)));
                }
            }
        }
    }

    /// Checks what a text has between backticks and begins with the program's name: the subcommands and the options.
    fn mentions(&mut self, place: &str, text: &str) {
        let begin = format!("`{} ", self.command.get_name());
        for after in text.split(&begin).skip(1) {
            let Some((quoted, _)) = after.split_once('`').filter(|(quoted, _)| !quoted.contains(['"', '{'])) else {
                continue;
            };
            let words = quoted.split_whitespace().filter(|word| !["//!", "///", "//", "\\"].contains(word));
            let mut command = &self.command;
            let mut wrong = None;
            for word in words {
                let option = word.strip_prefix("--").map(|option| option.split('=').next().unwrap_or(option));
                match (option, command.find_subcommand(word)) {
                    (Some("" | "help" | "version"), _) => {}
                    (Some(option), _) if !has_own_option(command, option) => {
                        wrong = Some(format!("--{option}"));
                        break;
                    }
                    (None, Some(subcommand)) => command = subcommand,
                    (None, None) if !help::is_run(command) => {
                        wrong = Some(word.to_owned()).filter(|word| word.starts_with(char::is_lowercase));
                        break;
                    }
                    _ => {}
                }
            }
            if let Some(wrong) = wrong {
                self.problems.push(format!("{place}: {begin}{quoted}`: {wrong} is not known"));
            }
        }
    }

    /// Checks the calls in all pages of a book, and what else they name.
    fn pages(&mut self, directory: &Path) -> io::Result<()> {
        self.each_file(directory, "md", ProgramCheck::page)
    }

    /// Checks the calls in a page, and what else it names.
    fn page(&mut self, place: &str, text: &str) {
        for (number, part) in text.split("```").enumerate() {
            match number % 2 {
                0 => self.mentions(place, part),
                _ => self.examples(place, part),
            }
        }
    }

    /// Checks the commands that sources name, in messages and comments.
    fn sources(&mut self, directory: &Path) -> io::Result<()> {
        self.each_file(directory, "rs", ProgramCheck::mentions)
    }

    /// Checks the options that the messages of a crate name.
    fn messages(&mut self, sources: &Path) -> io::Result<()> {
        self.each_file(sources, "rs", |check, place, text| {
            if !place.split('/').any(|name| name.contains("tests") || name == "benches") {
                literals(text).for_each(|literal| check.options(place, literal));
            }
        })
    }

    fn each_file(
        &mut self,
        directory: &Path,
        extension: &str,
        mut check: impl FnMut(&mut ProgramCheck, &str, &str),
    ) -> io::Result<()> {
        let mut directories = vec![directory.to_owned()];
        while let Some(inner) = directories.pop() {
            for entry in fs::read_dir(inner)? {
                let path = entry?.path();
                let is_built = path.file_name().is_some_and(|name| name == "target" || name == ".git");
                if path.is_dir() && !is_built {
                    directories.push(path);
                } else if path.extension().is_some_and(|found| found == extension) {
                    let place = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
                    check(self, &place, &fs::read_to_string(&path)?);
                }
            }
        }
        Ok(())
    }

    fn expect(&mut self, is_so: bool, problem: impl FnOnce() -> String) {
        if !is_so {
            self.problems.push(problem());
        }
    }
}

/// Whether the error is about the option with this name.
fn is_about(error: &clap::Error, long: &str) -> bool {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return false };
    arg.split([' ', '=', '[']).next() == Some(&format!("--{long}"))
}

fn has_own_option(command: &Command, long: &str) -> bool {
    let names = |arg: &Arg| {
        arg.get_long() == Some(long) || arg.get_visible_aliases().is_some_and(|aliases| aliases.contains(&long))
    };
    command.get_arguments().any(names)
}

/// Whether the command, or one of its subcommands, has an option.
fn has_option(command: &Command, long: &str) -> bool {
    ["help", "version"].contains(&long)
        || has_own_option(command, long)
        || command.get_subcommands().any(|subcommand| has_option(subcommand, long))
}

/// The calls of a program in a line of a shell, each as its words. None if the line can't be split.
fn calls(line: &str, program: &str) -> Option<Vec<Vec<String>>> {
    let line = line.replace(';', " ; ");
    let words = shlex::split(&line)?;
    let ends = |word: &String| ["|", "&&", ";", "&", ">", ">>", "<", "2>"].contains(&word.as_str());
    let is_before =
        |word: &&String| word.ends_with('$') || word.split_once('=').is_some_and(|(name, _)| is_variable(name));
    let calls = words.split(ends).filter_map(|words| {
        let words = &words[words.iter().take_while(is_before).count()..];
        let is_call = words.first()? == program && words.get(1).is_none_or(|word| word != "=");
        let run = run_by_cargo(words, program).unwrap_or(words);
        let is_run = run.len() != words.len();
        (is_call || is_run)
            .then(|| [program.to_owned()].into_iter().chain(run[usize::from(is_call)..].iter().cloned()).collect())
    });
    Some(calls.collect())
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|char| char.is_ascii_uppercase() || char == '_')
}

/// The arguments that `cargo run -p PACKAGE -- ..` gives to the program.
fn run_by_cargo<'a>(words: &'a [String], program: &str) -> Option<&'a [String]> {
    let is_run = words.first()? == "cargo" && words.get(1)? == "run";
    let package = words.iter().skip_while(|word| *word != "-p").nth(1)?;
    let is_program = package == program || (package == "squall-cli" && program == "squall");
    let arguments = words.iter().position(|word| word == "--").map_or(&[][..], |at| &words[at + 1..]);
    (is_run && is_program).then_some(arguments)
}

/// Whether an error is about a value that was understood, and is too small, too large, or no whole number of units.
fn is_out_of_range(error: &str) -> bool {
    ["from ", "whole multiple of "].iter().any(|text| error.contains(text))
}

/// The text literals of a source, without those of its tests.
fn literals(source: &str) -> impl Iterator<Item = &str> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = source.split_inclusive('\n').filter(|line| !line.trim_start().starts_with("//"));
    let mut is_inside = false;
    lines.flat_map(move |line| {
        let mut rest = line;
        let mut found = Vec::new();
        while let Some(quote) = rest.find('"') {
            let is_escaped = rest[..quote].ends_with(if is_inside { '\\' } else { '\'' });
            if is_inside {
                found.push(&rest[..quote]);
            }
            is_inside ^= !is_escaped;
            rest = &rest[quote + 1..];
        }
        found.extend(Some(rest).filter(|_| is_inside));
        found
    })
}

#[cfg(test)]
mod tests {
    use clap::{Parser, Subcommand};

    use super::*;
    use crate::command_of;

    /// A program with all faults.
    #[derive(Debug, Parser)]
    #[command(name = "faulty")]
    struct Faulty {
        #[command(subcommand)]
        what: What,
    }

    #[derive(Debug, Subcommand)]
    enum What {
        /// Is right, as `faulty good --size` shows
        #[command(
            after_help = "Example:\n  faulty good --size 64KiB | tail    of this size\n\n--foreign is another's."
        )]
        Good {
            /// As large as this
            #[arg(long, value_name = "SIZE", value_parser = squall_units::size)]
            size: u64,
        },
        /// Has faults, of which `faulty good --wrong` is one, and `faulty worse` another
        #[command(after_help = "  faulty bad --unknown 3\n\nSee --nothing.")]
        Bad {
            /// In a unit
            #[arg(long, value_name = "SECONDS")]
            wait: Option<u64>,
            /// Without notation
            #[arg(long, value_name = "TIME", value_parser = wrong)]
            time: Option<u64>,
        },
    }

    fn wrong(text: &str) -> Result<u64, String> {
        text.parse().map_err(|_| "no such as that".to_owned())
    }

    #[test]
    fn literals_are_the_texts_between_quotes() {
        let source = "let a = \"one --two\"; // \n// \"no --three\"\nsay(\"four \\\"five\\\" \\\n   six\", '\"', \"seven\");\n\
                      #[cfg(test)]\nmod tests {\n \"eight\"";
        let all: Vec<&str> = literals(source).map(str::trim).collect();
        assert_eq!(all, ["one --two", "four \\", "five\\", "\\", "six", "seven"]);
    }

    #[test]
    fn each_fault_is_found_and_nothing_else() {
        let mut check = ProgramCheck::new(command_of::<Faulty>(), &["foreign"]);
        check.help();
        check.examples("a page", "$ X=1 faulty good --size 5; cargo run -p faulty -- good --other\nfaulty good 'open\n$ faulty good --size \\\n  many\n$ other --x\n");
        let problems = check.problems;
        let expected = [
            "faulty bad: its help has no example",
            "faulty bad: `faulty good --wrong`: --wrong is not known",
            "faulty bad: `faulty worse`: worse is not known",
            "faulty bad: no command has the option --wrong",
            "\"faulty bad --unknown 3\"",
            "faulty bad: no command has the option --nothing",
            "faulty bad --wait: SECONDS is a unit",
            "faulty bad --time does not understand 500ms",
            "faulty bad --time does not say what is wanted",
            "a page: \"$ faulty good --size many\"",
            "a page: \"$ X=1 faulty good",
            "a page: \"faulty good 'open\": a quotation mark is open",
        ];
        for expected in expected {
            assert!(problems.iter().any(|problem| problem.contains(expected)), "{expected}: {problems:#?}");
        }
        let is_expected = |problem: &String| {
            problem.contains("--time does not understand") || expected.iter().any(|expected| problem.contains(expected))
        };
        assert!(problems.iter().all(is_expected), "{problems:#?}");
    }
}
