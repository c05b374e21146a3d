//! The words that members and the process that started them send each other, one on each line.

use std::{fmt, str::FromStr};

/// A word to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Submit transactions.
    Begin,
    /// Write down what was seen.
    Finish,
}

/// A word of a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
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

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Told::Begin => "begin",
            Told::Finish => "finish",
        })
    }
}

impl FromStr for Told {
    type Err = String;

    fn from_str(line: &str) -> Result<Told, String> {
        match line {
            "begin" => Ok(Told::Begin),
            "finish" => Ok(Told::Finish),
            _ => Err(format!("{line:?} is nothing that a member is told")),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Ready => f.write_str("ready"),
            Said::Removed { rank } => write!(f, "removed {rank}"),
            Said::Idle => f.write_str("idle"),
            Said::Done => f.write_str("done"),
            Said::Failed(why) => write!(f, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for Said {
    type Err = String;

    fn from_str(line: &str) -> Result<Said, String> {
        let said = match line.split_once(' ') {
            None if line == "ready" => Some(Said::Ready),
            None if line == "idle" => Some(Said::Idle),
            None if line == "done" => Some(Said::Done),
            Some(("removed", rank)) => rank.parse().ok().map(|rank| Said::Removed { rank }),
            Some(("failed", why)) => Some(Said::Failed(why.to_owned())),
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
        for told in [Told::Begin, Told::Finish] {
            assert_eq!(told.to_string().parse(), Ok(told));
        }
        let failed = Said::Failed("it is full".to_owned());
        for said in [Said::Ready, Said::Removed { rank: 2 }, Said::Idle, Said::Done, failed] {
            assert_eq!(said.to_string().parse(), Ok(said));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for line in ["", "end", "begin now"] {
            assert!(line.parse::<Told>().is_err(), "{line:?}");
        }
        for line in ["", "removed", "removed x", "removed 1 2", "idle now", "else"] {
            assert!(line.parse::<Said>().is_err(), "{line:?}");
        }
    }
}
