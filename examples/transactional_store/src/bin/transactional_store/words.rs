//! The words that members and the process that started them send each other, one on each line.

use std::{fmt, str::FromStr};

/// A word to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberCommand {
    /// Submit transactions.
    Begin,
    /// Write down what was seen.
    Finish,
}

/// A word of a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemberReport {
    /// It has met all members; rank 0 has also filled the accounts.
    Ready,
    /// It goes on without the member of this rank.
    Removed {
        rank: usize,
    },
    /// All its transactions are over.
    Idle,
    /// It has written down what it has seen.
    Done,
    Failed(String),
}

/// The reason of a member that the others have removed.
pub(crate) const OUT: &str = "it was taken for failed by the others";

impl fmt::Display for MemberCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemberCommand::Begin => "begin",
            MemberCommand::Finish => "finish",
        })
    }
}

impl FromStr for MemberCommand {
    type Err = String;

    fn from_str(line: &str) -> Result<MemberCommand, String> {
        match line {
            "begin" => Ok(MemberCommand::Begin),
            "finish" => Ok(MemberCommand::Finish),
            _ => Err(format!("{line:?} is nothing that a member is told")),
        }
    }
}

impl fmt::Display for MemberReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberReport::Ready => f.write_str("ready"),
            MemberReport::Removed { rank } => write!(f, "removed {rank}"),
            MemberReport::Idle => f.write_str("idle"),
            MemberReport::Done => f.write_str("done"),
            MemberReport::Failed(why) => write!(f, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for MemberReport {
    type Err = String;

    fn from_str(line: &str) -> Result<MemberReport, String> {
        let said = match line.split_once(' ') {
            None if line == "ready" => Some(MemberReport::Ready),
            None if line == "idle" => Some(MemberReport::Idle),
            None if line == "done" => Some(MemberReport::Done),
            Some(("removed", rank)) => rank.parse().ok().map(|rank| MemberReport::Removed { rank }),
            Some(("failed", why)) => Some(MemberReport::Failed(why.to_owned())),
            _ => None,
        };
        said.ok_or_else(|| format!("{line:?} is nothing that a member says"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for told in [MemberCommand::Begin, MemberCommand::Finish] {
            assert_eq!(told.to_string().parse(), Ok(told));
        }
        let failed = MemberReport::Failed("it is full".to_owned());
        for said in
            [MemberReport::Ready, MemberReport::Removed { rank: 2 }, MemberReport::Idle, MemberReport::Done, failed]
        {
            assert_eq!(said.to_string().parse(), Ok(said));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for line in ["", "end", "begin now"] {
            assert!(line.parse::<MemberCommand>().is_err(), "{line:?}");
        }
        for line in ["", "removed", "removed x", "removed 1 2", "idle now", "else"] {
            assert!(line.parse::<MemberReport>().is_err(), "{line:?}");
        }
    }
}
