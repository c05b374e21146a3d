//! `squall-bench transactions --check`: a run in which a node is killed or stopped, and after which everything is
//! checked.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use squall_command::TemporaryDirectory;
use squall_fabric::Time;
use squall_transactions::{
    Execution, Keyspace, ShardId,
    history::{Checked, History, KnownOutcome, Record},
};

use super::{start, sums, transacted};
use crate::{
    cluster::{PATIENCE, RunError, WARM_UP},
    job::{StoreCommand, Transacted, TransactionsJob, WorkerReport},
};

/// One node's part of the history: the transactions that its client saw, those that its copies carried out, and these
/// copies.
pub(super) type Findings = (Vec<Record>, Vec<Execution>, BTreeMap<ShardId, Keyspace>);

/// The reason of a node that the others have removed.
pub(super) const OUT: &str = "it was taken for failed by the others";

/// The file for the findings of a node.
pub(super) fn findings_file(directory: &Path, rank: usize) -> PathBuf {
    directory.join(format!("rank-{rank}"))
}

/// Runs the nodes, and returns what was found: a sentence.
pub(super) fn run(jobs: &[TransactionsJob], lasts: Duration) -> Result<String, String> {
    let seed = jobs[0].seed;
    let victim = (seed % jobs.len() as u64) as usize;
    let text = |error: RunError| error.to_string();
    let mut workers = start(jobs, lasts).map_err(text)?;
    thread::sleep(WARM_UP + lasts / 2);
    let taken_out = Time::boot_clock().as_nanos();
    let stops = seed % 2 == 1;
    if stops {
        workers.stop(victim);
    } else {
        workers.kill(victim);
    }
    let transacted = transacted(&mut workers, lasts).map_err(text)?;
    let settled = settled(&transacted, victim)?;
    let read_all = sums(&transacted)?;
    let directory = TemporaryDirectory::new("bench-transactions")
        .map_err(|error| format!("no directory for what nodes have seen: {error}"))?;
    workers.tell(&StoreCommand::Record(directory.path().to_owned()));
    workers.until_all(PATIENCE, |said| matches!(said, WorkerReport::Recorded).then_some(())).map_err(text)?;
    let survivors = (0..jobs.len()).filter(|&rank| rank != victim);
    let findings: Vec<_> = survivors.map(|rank| read(directory.path(), rank)).collect::<Result<_, _>>()?;
    compare(&findings)?;
    let clients = findings.len();
    let Checked { committed, untold, aborted } = check(&jobs[0], findings)?;
    if stops {
        workers.resume(victim);
        match workers.until(victim, PATIENCE, |_| None::<()>) {
            Err(RunError::Failed { node, why }) if node == victim && why == OUT => {}
            Err(RunError::Silent { .. }) => {
                return Err(format!("rank {victim} went on, and did not learn that it was removed"));
            }
            ended => ended.map_err(text)?,
        }
    }
    let fate = if stops { "was stopped, and has learnt that it is out" } else { "was killed (-9)" };
    Ok(format!(
        "{committed} transactions of {clients} clients committed, strictly serializable; node {victim} {fate}; {untold} of its \
         transactions count, {aborted} of the others' were recalled; settled after {:.1} ms; {read_all} readings of all \
         accounts found the whole sum; all copies of each shard are the same; seed {seed}",
        settled.saturating_sub(taken_out) as f64 / 1e6,
    ))
}

/// The time at which the last survivor went on without the victim, in nanoseconds of the host's boot clock.
fn settled(transacted: &[Transacted], victim: usize) -> Result<u64, String> {
    let removed = || transacted.iter().flat_map(|of_node| &of_node.removed);
    if let Some((gone, _)) = removed().find(|(gone, _)| *gone != victim) {
        return Err(format!("rank {gone} was taken for failed, and was not killed"));
    }
    if removed().count() < transacted.len() {
        return Err("the others did not notice that a node is gone".to_owned());
    }
    Ok(removed().map(|(_, at)| *at).max().unwrap_or(0))
}

/// Reads what a node has written down, with its rank.
fn read(directory: &Path, rank: usize) -> Result<(usize, Findings), String> {
    let file = findings_file(directory, rank);
    let bytes = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let findings = postcard::from_bytes(&bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((rank, findings))
}

/// Checks that all copies of a shard are the same.
fn compare(findings: &[(usize, Findings)]) -> Result<(), String> {
    let mut known = BTreeMap::new();
    for (rank, (_, _, copies)) in findings {
        for (shard, copy) in copies {
            let (other, first) = known.entry(shard).or_insert((rank, copy));
            if *first != copy {
                return Err(format!("nodes {other} and {rank} differ in {shard}: {first:?}, {copy:?}"));
            }
        }
    }
    Ok(())
}

/// Checks that what all clients saw is strictly serializable.
fn check(job: &TransactionsJob, findings: Vec<(usize, Findings)>) -> Result<Checked, String> {
    let mut history = History::new(job.shape.placement()?);
    for (rank, (records, executions, _)) in findings {
        history.learn(rank, executions).map_err(|violation| format!("node {rank}: {violation}"))?;
        for record in records {
            if record.seen == KnownOutcome::Unknown {
                return Err(format!("node {rank} does not know what became of a transaction"));
            }
            history.record(record);
        }
    }
    history.check().map_err(|violation| violation.to_string())
}
