//! The figures of a run, from what its nodes saw of each round.

use crate::{
    job::{BulkJob, BulkRound, Senders},
    report::{BulkRow, RowHead},
};

/// The figures of one iteration, in seconds from the first send.
struct Iteration {
    seconds: f64,
    /// The same, from the time when the message was sealed, if it was.
    after_seal: Option<f64>,
    skew: f64,
    /// The least and the greatest of the groups' speeds, where 1 is their mean.
    shares: (f64, f64),
    /// The longest time that a node needed to use its messages, and the most page faults of a node.
    touched: Option<(f64, f64)>,
}

impl Iteration {
    /// Combines what the nodes saw of one iteration.
    fn of(groups: usize, seen: &[&BulkRound]) -> Iteration {
        let began = seen.iter().filter_map(|round| round.sent).min().expect("there is a root");
        let spans: Vec<(f64, f64)> = (0..groups)
            .map(|group| {
                let receipts = || seen.iter().filter_map(|round| round.received[group]);
                let after = |nanos: u64| nanos.saturating_sub(began) as f64 * 1e-9;
                let (first, last) = (receipts().min(), receipts().max());
                (after(first.expect("there are receivers")), after(last.expect("there are receivers")))
            })
            .collect();
        let greatest = |of: &dyn Fn(&(f64, f64)) -> f64| spans.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
        let speeds = spans.iter().map(|(_, last)| 1.0 / last.max(1e-9));
        let mean = speeds.clone().sum::<f64>() / groups as f64;
        let seconds = greatest(&|(_, last)| *last);
        let sealed = seen.iter().find_map(|round| round.sealed);
        let touched = || seen.iter().filter_map(|round| round.touched);
        let longest = touched().map(|touched| touched.nanos).max();
        let most = touched().map(|touched| touched.page_faults).max();
        Iteration {
            seconds,
            after_seal: sealed.map(|sealed| seconds - sealed.saturating_sub(began) as f64 * 1e-9),
            skew: greatest(&|(first, last)| last - first),
            shares: (
                speeds.clone().fold(f64::INFINITY, f64::min) / mean,
                speeds.fold(f64::NEG_INFINITY, f64::max) / mean,
            ),
            touched: longest.zip(most).map(|(nanos, faults)| (nanos as f64 * 1e-9, faults as f64)),
        }
    }
}

/// Combines what the nodes, by index, saw of each iteration.
pub(super) fn row(job: &BulkJob, senders: Senders, rounds: &[Vec<BulkRound>]) -> BulkRow {
    let groups = job.groups as usize;
    let iterations: Vec<Iteration> = (0..job.iterations as usize)
        .map(|number| Iteration::of(groups, &rounds.iter().map(|of_node| &of_node[number]).collect::<Vec<_>>()))
        .collect();
    let sorted = |of: fn(&Iteration) -> Option<f64>| {
        let mut values: Vec<f64> = iterations.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |of| {
        let values = sorted(of);
        Some((values.get(values.len().checked_sub(1)? / 2)? + values[values.len() / 2]) / 2.0)
    };
    let seconds = sorted(|iteration| Some(iteration.seconds));
    let seconds_median = median(|iteration| Some(iteration.seconds)).expect("there are iterations");
    let several = groups > 1;
    BulkRow {
        head: RowHead::of("bulk", job),
        shared: job.share,
        algorithm: (!job.share).then_some(job.way),
        groups: job.groups,
        senders,
        size_bytes: job.size_bytes,
        block_bytes: (!job.share).then_some(job.block_bytes),
        spin: job.spin,
        iterations: job.iterations,
        seconds_median,
        seconds_least: seconds[0],
        seconds_most: seconds[seconds.len() - 1],
        bytes_per_second: groups as f64 * job.size_bytes as f64 / seconds_median,
        after_seal_seconds_median: median(|iteration| iteration.after_seal),
        skew_ms: median(|iteration| Some(iteration.skew)).expect("there are iterations") * 1e3,
        cpu_seconds: rounds.iter().flatten().map(|round| round.cpu_seconds).sum::<f64>() / f64::from(job.iterations),
        share_least: median(|iteration| Some(iteration.shares.0)).filter(|_| several),
        share_most: median(|iteration| Some(iteration.shares.1)).filter(|_| several),
        touch: job.touch,
        touch_seconds_median: median(|iteration| Some(iteration.touched?.0)),
        page_faults: median(|iteration| Some(iteration.touched?.1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Touched;

    fn saw(sent: Option<u64>, received: &[Option<u64>]) -> BulkRound {
        BulkRound { sent, received: received.to_vec(), ..BulkRound::default() }
    }

    #[test]
    fn a_message_takes_until_its_last_receiver_has_it() {
        let rounds = [saw(Some(1_000), &[None]), saw(None, &[Some(3_000)]), saw(None, &[Some(6_000)])];
        let iteration = Iteration::of(1, &rounds.iter().collect::<Vec<_>>());
        assert!((iteration.seconds - 5e-6).abs() < 1e-12);
        assert!((iteration.skew - 3e-6).abs() < 1e-12);
        assert_eq!(iteration.shares, (1.0, 1.0));
    }

    #[test]
    fn what_is_shared_is_timed_from_its_sealing_too() {
        let root = BulkRound { sealed: Some(4_000), ..saw(Some(1_000), &[None]) };
        let iteration = Iteration::of(1, &[&root, &saw(None, &[Some(6_000)])]);
        assert!((iteration.seconds - 5e-6).abs() < 1e-12);
        assert!((iteration.after_seal.expect("it was sealed") - 2e-6).abs() < 1e-12);
    }

    #[test]
    fn the_slowest_receiver_counts() {
        let used = |nanos, page_faults| BulkRound {
            touched: Some(Touched { nanos, page_faults }),
            ..saw(None, &[Some(2_000)])
        };
        let iteration = Iteration::of(1, &[&saw(Some(1_000), &[None]), &used(3_000, 16), &used(5_000, 15)]);
        assert_eq!(iteration.touched, Some((5_000.0 * 1e-9, 16.0)));
    }

    #[test]
    fn a_group_that_is_served_first_has_the_greater_share() {
        let rounds = [saw(Some(0), &[None, Some(2_000)]), saw(Some(500), &[Some(1_000), None])];
        let iteration = Iteration::of(2, &rounds.iter().collect::<Vec<_>>());
        assert!((iteration.seconds - 2e-6).abs() < 1e-12, "all groups count, from the first send");
        let (least, most) = iteration.shares;
        assert!((most / least - 2.0).abs() < 1e-9 && (least + most - 2.0).abs() < 1e-9, "{least} {most}");
    }
}
