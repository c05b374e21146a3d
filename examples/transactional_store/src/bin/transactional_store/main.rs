//! A sharded store whose transactions are scatterings, as processes of this host.
//!
//! ```text
//! cargo run --release -p transactional_store
//! cargo run --release -p transactional_store -- --smoke
//! ```
//!
//! The store is the library `squall_transactions`. This program adds the processes. Each member is a server and a
//! client with a Squall node, whose views decide which members have failed. One more process starts the members.

mod cluster;
mod load;
mod smoke;
mod speed;
mod words;
mod worker;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use squall_transactions::Placement;

/// A sharded store whose transactions are scatterings: strictly serializable, without locks.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "transactional_store",
    after_help = "\
Members are processes of this host, which talk through shared memory. Each has copies of some shards, and a client that moves
money between random accounts of all shards and now and then reads all of them. Each such transaction is one reliable scattering
of 1Pipe: its parts are delivered to all replicas of all its shards at one logical time, so nobody takes a lock or votes.

  transactional_store                        three members for 3 seconds: transactions per second, and how long they take
  transactional_store --members 4 --window 1 four members, each with one transaction at a time: the shortest latencies
  transactional_store --smoke                the same with a check of everything, while one member is killed (-9), or, if the
                                             seed is odd, stopped

--smoke looks whether

  - each reading of all accounts, at any time and member, finds the whole sum;
  - what all clients saw is strictly serializable: their transactions, carried out again one after the other in the order of
    their time stamps, give the same replies, and none is before one that had ended when it was submitted;
  - the members that are left have the same in all copies of a shard, and each has carried out all of its part of every
    transaction, at the same moment and with the same replies.

A member that was only stopped goes on after the check, and has to learn that the others took it for failed. A transaction that
the lost member had not received is recalled: it did nothing anywhere, and its client tries again. The members' own views decide
who has failed. With --replicas R, R - 1 members may fail, and fewer than half of all: when all replicas of a shard fail, its
accounts are lost, and members that are not more than half can decide nothing. The exit code is 0, 1 if something failed, 2 if
the arguments make no sense."
)]
struct Args {
    /// The number of members
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=32))]
    members: u32,

    /// The number of shards; as many as members, if this is left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    shards: Option<u32>,

    /// The number of members that have a copy of each shard
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,

    /// The number of accounts between which money is moved
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=128))]
    accounts: u32,

    /// The number of transactions that each client has under way at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,

    /// The time for which transactions are submitted
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,

    /// Record what clients see, kill or stop a member in the middle, and check everything
    #[arg(long)]
    smoke: bool,

    /// The seed of the random choices; each run says its own
    #[arg(long)]
    seed: Option<u64>,

    /// Run as the member with this rank
    #[arg(long, hide = true, requires_all = ["cluster", "directory", "seed"])]
    rank: Option<u32>,

    /// The cluster to meet
    #[arg(long, hide = true)]
    cluster: Option<String>,

    /// The directory for what was seen
    #[arg(long, hide = true)]
    directory: Option<PathBuf>,
}

impl Args {
    fn placement(&self) -> Result<Placement, String> {
        if self.smoke && self.replicas < 2 {
            return Err("--smoke takes a member out, whose shards would be lost: give --replicas 2 or more".to_owned());
        }
        if self.smoke && self.members < 3 {
            return Err(format!(
                "--smoke takes a member out, and who is left of {} can't decide that it has failed, not being more than half: \
                 give --members 3 or more",
                self.members
            ));
        }
        let shards = self.shards.unwrap_or(self.members);
        Placement::new(self.members as usize, shards, self.replicas as usize).map_err(|error| error.to_string())
    }

    fn lasts(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Without an output there is no way to tell the user.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let placement = match args.placement() {
        Ok(placement) => placement,
        Err(error) => {
            eprintln!("transactional_store: {error}");
            return ExitCode::from(2);
        }
    };
    if let Some(rank) = args.rank {
        return worker::run(&args, rank, placement);
    }
    let done = if args.smoke { smoke::run(&args, placement) } else { speed::run(&args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transactional_store: {error}");
            ExitCode::FAILURE
        }
    }
}
