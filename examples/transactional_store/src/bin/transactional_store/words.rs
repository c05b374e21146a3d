//! What members and the process that started them say to each other: a line each.

use std::{fmt, str::FromStr};

use squall_onepipe::{Directive, Settlement};

/// To a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Submit transactions.
    Begin,
    /// A member has failed, or was taken out.
    Directive(Directive),
    /// Write down what was seen.
    Finish,
}

/// By a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// All have met; rank 0 has also filled the accounts.
    Ready,
    Suspects {
        epoch: u64,
        rank: usize,
    },
    Reports {
        epoch: u64,
        barrier: u64,
    },
    /// All its transactions are over.
    Idle,
    /// What it has seen is in this file.
    Done(String),
    Failed(String),
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::Begin => f.write_str("begin"),
            Told::Finish => f.write_str("finish"),
            Told::Directive(Directive::Wedge { epoch }) => write!(f, "wedge {epoch}"),
            Told::Directive(Directive::Settle(Settlement { epoch, failed, failure_timestamp })) => {
                write!(f, "settle {epoch} {failure_timestamp}")?;
                failed.iter().try_for_each(|rank| write!(f, " {rank}"))
            }
        }
    }
}

impl FromStr for Told {
    type Err = String;

    fn from_str(line: &str) -> Result<Told, String> {
        let told = || {
            let mut words = line.split(' ');
            let told = match words.next()? {
                "begin" => Told::Begin,
                "finish" => Told::Finish,
                "wedge" => Told::Directive(Directive::Wedge { epoch: next(&mut words)? }),
                "settle" => {
                    let (epoch, failure_timestamp) = (next(&mut words)?, next(&mut words)?);
                    let failed = words.by_ref().map(|rank| rank.parse().ok()).collect::<Option<_>>()?;
                    Told::Directive(Directive::Settle(Settlement { epoch, failed, failure_timestamp }))
                }
                _ => return None,
            };
            words.next().is_none().then_some(told)
        };
        told().ok_or_else(|| format!("{line:?} is nothing that a member is told"))
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Ready => f.write_str("ready"),
            Said::Suspects { epoch, rank } => write!(f, "suspects {epoch} {rank}"),
            Said::Reports { epoch, barrier } => write!(f, "reports {epoch} {barrier}"),
            Said::Idle => f.write_str("idle"),
            Said::Done(file) => write!(f, "done {file}"),
            Said::Failed(why) => write!(f, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for Said {
    type Err = String;

    fn from_str(line: &str) -> Result<Said, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split(' ');
        let mut numbers = || Some((next(&mut words)?, next(&mut words)?));
        let said = match word {
            "ready" => Some(Said::Ready),
            "suspects" => numbers().map(|(epoch, rank)| Said::Suspects { epoch, rank: rank as usize }),
            "reports" => numbers().map(|(epoch, barrier)| Said::Reports { epoch, barrier }),
            "idle" => Some(Said::Idle),
            "done" => Some(Said::Done(rest.to_owned())),
            "failed" => Some(Said::Failed(rest.to_owned())),
            _ => None,
        };
        said.ok_or_else(|| format!("{line:?} is nothing that a member says"))
    }
}

fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let settle = |failed| Directive::Settle(Settlement { epoch: 7, failed, failure_timestamp: u64::MAX });
        for directive in [Directive::Wedge { epoch: 3 }, settle(vec![]), settle(vec![2]), settle(vec![0, 5])] {
            let told = Told::Directive(directive);
            assert_eq!(told.to_string().parse(), Ok(told));
        }
        for told in [Told::Begin, Told::Finish] {
            assert_eq!(told.to_string().parse(), Ok(told));
        }
        let said = [
            Said::Ready,
            Said::Suspects { epoch: 1, rank: 2 },
            Said::Reports { epoch: 1, barrier: u64::MAX },
            Said::Idle,
            Said::Done("/tmp/a file".to_owned()),
            Said::Failed("it is full".to_owned()),
        ];
        for said in said {
            assert_eq!(said.to_string().parse(), Ok(said));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for line in ["", "wedge", "wedge x", "wedge 1 2", "settle 1", "settle 1 2 x", "begin now"] {
            assert!(line.parse::<Told>().is_err(), "{line:?}");
        }
        for line in ["", "suspects 1", "reports 1 x", "else"] {
            assert!(line.parse::<Said>().is_err(), "{line:?}");
        }
    }
}
