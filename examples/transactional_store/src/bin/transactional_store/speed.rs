//! The measurement of transactions per second and of their latencies.

use std::io::{self, Write};

use crate::{
    Args,
    cluster::Cluster,
    words::{MemberCommand, MemberReport},
};

pub(crate) fn run(args: &Args) -> Result<(), String> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut cluster = Cluster::start(args, seed)?;
    cluster.tell(MemberCommand::Begin);
    cluster.until_all(&MemberReport::Idle, args.lasts())?;
    let findings = cluster.finish()?;
    let mut latencies: Vec<u32> = findings.iter().flat_map(|(_, found)| &found.latencies).copied().collect();
    latencies.sort_unstable();
    let percentile = |percent: usize| match latencies.len() {
        0 => 0.0,
        count => f64::from(latencies[(count * percent / 100).min(count - 1)]) / 1000.0,
    };
    let wrong: u64 = findings.iter().map(|(_, found)| found.wrong_sums).sum();
    let line = format!(
        "{} members, {} shards of {} replicas, {} transactions under way at each: {:.0} transactions/s, p50 {:.0} µs, \
         p99 {:.0} µs",
        args.members,
        args.shards.unwrap_or(args.members),
        args.replicas,
        args.window,
        latencies.len() as f64 / args.lasts().as_secs_f64(),
        percentile(50),
        percentile(99),
    );
    // Without an output there is no way to tell the user.
    let _ = writeln!(io::stdout(), "{line}");
    match wrong {
        0 => Ok(()),
        wrong => Err(format!("{wrong} readings of all accounts found another sum: this is a bug")),
    }
}
