//! `squall rdmc plan`: a schedule, as a table or a drawing.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use squall_command::{CommandError, plot};
use squall_rdmc::schedule::{Algorithm, Outer, Racks};

use super::{drawing, moves::Moves, table};

const MOST_NODES: u32 = 512;
const MOST_BLOCKS: u32 = 65_536;
/// A larger drawing is of no use, and slows browsers down.
const MOST_MOVES: u64 = 20_000;

/// Prints the transfers of a schedule: the sender, the receiver and the block of each, by step.
///
/// Steps order the transfers of one message; they are no clock: a node sends a block as soon as it has it, and the
/// receiver has made room.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  squall rdmc plan --nodes 8 --blocks 4
  squall rdmc plan --algorithm chain --nodes 5 --blocks 3
  squall rdmc plan --algorithm hybrid --racks 4x8 --blocks 6 --svg hybrid.svg")]
pub(super) struct PlanArgs {
    /// The algorithm by which the message gets from the root, rank 0, to all others
    #[arg(long, value_enum, default_value_t = Name::Pipeline)]
    algorithm: Name,
    /// Members of the group, the root included [default: 8, or as many as --racks says]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_NODES)))]
    nodes: Option<u32>,
    /// Blocks of the message
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_BLOCKS)))]
    blocks: u32,
    /// For hybrid, the racks of the members: racks x nodes, as 4x8, or each rank's rack, as 0,0,1,1
    #[arg(long)]
    racks: Option<String>,
    /// For hybrid, the algorithm by which the leaders of the racks get the message [default: pipeline]
    #[arg(long, value_enum)]
    outer: Option<OuterName>,
    /// Draw it into this file instead
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    Sequential,
    Interleaved,
    Chain,
    Tree,
    Pipeline,
    Hybrid,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OuterName {
    Pipeline,
    Chain,
}

/// The rack of each rank, from `4x8` or `0,0,1,1`.
fn rack_of_each(text: &str) -> Result<Vec<String>, CommandError> {
    let wrong = |why: &str| {
        CommandError::usage(format!(
            "--racks {text}: {why}; give racks x nodes, as 4x8, or the rack of each rank, as 0,0,1,1"
        ))
    };
    if let Some((racks, nodes)) = text.split_once('x') {
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| (1..=MOST_NODES as usize).contains(n));
        let (Some(racks), Some(nodes)) = (number(racks), number(nodes)) else {
            return Err(wrong(&format!("these are no two numbers from 1 to {MOST_NODES}")));
        };
        if racks * nodes > MOST_NODES as usize {
            return Err(wrong(&format!("that is {} nodes, of at most {MOST_NODES}", racks * nodes)));
        }
        return Ok((0..racks * nodes).map(|rank| (rank / nodes).to_string()).collect());
    }
    let each: Vec<String> = text.split(',').map(|rack| rack.trim().to_owned()).collect();
    match each.len() {
        _ if each.iter().any(String::is_empty) => Err(wrong("a rank has no rack")),
        n if n > MOST_NODES as usize => Err(wrong(&format!("that is {n} nodes, of at most {MOST_NODES}"))),
        _ => Ok(each),
    }
}

impl PlanArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let (algorithm, nodes) = self.algorithm()?;
        let steps = Moves::steps(&algorithm, nodes, self.blocks).map_err(CommandError::usage)?;
        let moves = (nodes as u64 - 1) * u64::from(self.blocks);
        let title = self.title(&algorithm, nodes, steps);
        if moves > MOST_MOVES {
            return Err(CommandError::usage(format!(
                "{title}: {moves} transfers are too many to look at (at most {MOST_MOVES}): give fewer --nodes or --blocks"
            )));
        }
        let moves = Moves::of(&algorithm, nodes, self.blocks).map_err(CommandError::usage)?;
        let body = match &self.svg {
            Some(path) => {
                plot::write(path, &drawing::draw(&title, &algorithm, &moves))?;
                format!("drawn into {}", path.display())
            }
            None => {
                let table = table::table(&moves).ok_or_else(|| {
                    CommandError::usage(format!(
                        "{title}: too wide for a table; --svg FILE draws it, or give fewer --nodes or --blocks"
                    ))
                })?;
                format!("{table}\nb2→5: sends block 2 to rank 5   b2←5: receives block 2 from rank 5   ·: nothing")
            }
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{title}\n\n{body}").map_err(CommandError::output)
    }

    fn title(&self, algorithm: &Algorithm, nodes: usize, steps: u64) -> String {
        let name = match algorithm {
            Algorithm::Sequential => "sequential send",
            Algorithm::Interleaved => "sequential send, block by block",
            Algorithm::Chain => "chain",
            Algorithm::BinomialTree => "binomial tree",
            Algorithm::BinomialPipeline => "binomial pipeline",
            Algorithm::Hybrid(racks) => match racks.outer() {
                Outer::BinomialPipeline => "hybrid, a pipeline across and within racks",
                Outer::Chain => "hybrid, a chain across racks and a pipeline within",
            },
        };
        let many = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        format!(
            "{name}: {}, {}, {}",
            many(nodes as u64, "node"),
            many(self.blocks.into(), "block"),
            many(steps, "step")
        )
    }

    /// The algorithm, and the number of nodes.
    fn algorithm(&self) -> Result<(Algorithm, usize), CommandError> {
        let flat = match self.algorithm {
            Name::Sequential => Algorithm::Sequential,
            Name::Interleaved => Algorithm::Interleaved,
            Name::Chain => Algorithm::Chain,
            Name::Tree => Algorithm::BinomialTree,
            Name::Pipeline => Algorithm::BinomialPipeline,
            Name::Hybrid => return self.hybrid(),
        };
        if self.racks.is_some() || self.outer.is_some() {
            return Err(CommandError::usage(
                "--racks and --outer are for --algorithm hybrid: the others know of no racks",
            ));
        }
        Ok((flat, self.nodes.unwrap_or(8) as usize))
    }

    fn hybrid(&self) -> Result<(Algorithm, usize), CommandError> {
        let Some(racks) = &self.racks else {
            return Err(CommandError::usage(
                "--algorithm hybrid needs --racks: racks x nodes, as 4x8, or the rack of each rank, as 0,0,1,1",
            ));
        };
        let each = rack_of_each(racks)?;
        if let Some(nodes) = self.nodes.filter(|&nodes| nodes as usize != each.len()) {
            let given = each.len();
            return Err(CommandError::usage(format!(
                "--racks {racks} places {given} nodes, but --nodes says {nodes}: leave out --nodes"
            )));
        }
        let outer = match self.outer {
            None | Some(OuterName::Pipeline) => Outer::BinomialPipeline,
            Some(OuterName::Chain) => Outer::Chain,
        };
        let racks = Racks::new(&each, outer).map_err(CommandError::usage)?;
        Ok((Algorithm::Hybrid(racks), each.len()))
    }
}
