//! Killing a node again and again, from outside.

use std::time::{Duration, Instant};

use squall_fabric::Time;

use crate::{
    cluster::{RunError, Workers},
    job::{FailoverJob, Recovered, Settled, Victim, WorkerCommand, WorkerJob, WorkerReport},
    places::NodePlaces,
};

/// The measurements of one round.
#[derive(Debug)]
pub(crate) struct FailoverRound {
    /// The time at which the victim was killed, in nanoseconds of the host's boot clock.
    pub(crate) killed: u64,
    pub(crate) survivors: Vec<Recovered>,
}

/// The pause between a settled view and the next kill, so that nothing of the last round still goes on.
const CALM: Duration = Duration::from_millis(100);

pub(crate) fn run(
    jobs: &[FailoverJob],
    places: &NodePlaces,
    victim: Victim,
    rounds: u32,
    patience: Duration,
) -> Result<Vec<FailoverRound>, RunError> {
    let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Failover), places)?;
    workers.until_all(patience, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
    (0..rounds).map(|_| one(&mut workers, jobs, places, victim, patience)).collect()
}

fn one(
    workers: &mut Workers,
    jobs: &[FailoverJob],
    places: &NodePlaces,
    victim: Victim,
    patience: Duration,
) -> Result<FailoverRound, RunError> {
    let view = settle(workers, patience)?;
    std::thread::sleep(CALM);
    let victim = match victim {
        Victim::Leader => view.nodes.first(),
        Victim::Follower => view.nodes.last(),
    };
    let victim = *victim.expect("a view has members") as usize;
    let killed = Time::boot_clock().as_nanos();
    workers.kill(victim);
    workers.tell(&WorkerCommand::Recover { after: view.epoch });
    let survivors = workers.results(patience)?;
    workers.restart(victim, WorkerJob::Failover(jobs[victim].clone()), places)?;
    workers.until(victim, patience, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
    Ok(FailoverRound { killed, survivors })
}

/// Waits until all nodes are full members of the same view.
fn settle(workers: &mut Workers, patience: Duration) -> Result<Settled, RunError> {
    let until = Instant::now() + patience;
    loop {
        workers.tell(&WorkerCommand::Settle);
        let views: Vec<Settled> = workers.results(patience)?;
        if views.windows(2).all(|pair| pair[0].epoch == pair[1].epoch) {
            return Ok(views.into_iter().next().expect("there are workers"));
        }
        if Instant::now() > until {
            return Err(workers.silent(patience));
        }
    }
}
