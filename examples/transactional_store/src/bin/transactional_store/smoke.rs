//! `--smoke`: a run in which a member is killed or stopped, and after which everything is checked.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::{Duration, Instant},
};

use squall_transactions::{
    Digest, Placement, ShardId,
    history::{Checked, History, KnownOutcome},
};

use crate::{
    Args,
    cluster::Cluster,
    load::Findings,
    words::{MemberCommand, MemberReport},
};

pub(crate) fn run(args: &Args, placement: Placement) -> Result<(), String> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    checked(args, placement, seed).map_err(|error| format!("{error} (--seed {seed} makes the same random choices)"))
}

fn checked(args: &Args, placement: Placement, seed: u64) -> Result<(), String> {
    let victim = (seed % u64::from(args.members)) as usize;
    let mut cluster = Cluster::start(args, seed)?;
    cluster.tell(MemberCommand::Begin);
    cluster.serve(args.lasts() / 2)?;
    let taken_out = Instant::now();
    let stops = seed % 2 == 1;
    if stops {
        cluster.stop(victim)?;
    } else {
        cluster.kill(victim);
    }
    cluster.until_all(&MemberReport::Idle, args.lasts())?;
    let settled = cluster.settled.ok_or("the others did not notice that a member is gone")?;
    let findings = cluster.finish()?;
    compare(&findings)?;
    let (mut read_all, mut wrong) = (0, 0);
    for (_, found) in &findings {
        read_all += found.read_all;
        wrong += found.wrong_sums;
    }
    if wrong > 0 {
        return Err(format!("{wrong} of {read_all} readings of all accounts found another sum"));
    }
    let clients = findings.len();
    let Checked { committed, untold, aborted } = check(placement, findings)?;
    if stops {
        cluster.awaken(victim)?;
    }
    let fate = if stops { "was stopped, and has learnt that it is out" } else { "was killed (-9)" };
    let line = format!(
        "{committed} transactions of {} clients committed, strictly serializable; member {victim} {fate}; {untold} of its \
         transactions count, {aborted} of the others' were recalled; settled after {:.1} ms; {read_all} readings of all \
         accounts found the whole sum; all copies of each shard are the same; seed {seed}",
        clients,
        millis(settled - taken_out),
    );
    // Without an output there is no way to tell the user.
    let _ = writeln!(io::stdout(), "{line}");
    Ok(())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Checks that all copies of a shard are the same.
fn compare(findings: &[(usize, Findings)]) -> Result<(), String> {
    let mut known: BTreeMap<ShardId, (usize, Digest)> = BTreeMap::new();
    for (rank, found) in findings {
        for digest in &found.digests {
            let (other, first) = known.entry(digest.shard).or_insert((*rank, *digest));
            if first != digest {
                return Err(format!("members {other} and {rank} differ: {first:?}, {digest:?}"));
            }
        }
    }
    Ok(())
}

/// Checks that what all clients saw is strictly serializable.
fn check(placement: Placement, findings: Vec<(usize, Findings)>) -> Result<Checked, String> {
    let mut history = History::new(placement);
    for (rank, found) in findings {
        history.learn(rank, found.executions).map_err(|violation| format!("member {rank}: {violation}"))?;
        for record in found.records {
            if record.seen == KnownOutcome::Unknown {
                return Err(format!("member {rank} does not know what became of a transaction"));
            }
            history.record(record);
        }
    }
    history.check().map_err(|violation| violation.to_string())
}
