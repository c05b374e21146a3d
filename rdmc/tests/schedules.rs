//! Checks of every schedule, for all groups and messages up to 64 members and 64 blocks, and for samples beyond.

use squall_rdmc::schedule::{Algorithm, Outer, Racks, Rank, Schedule, Step, Transfer};

/// All members' schedules.
struct Group {
    name: String,
    members: Vec<Schedule>,
}

impl Group {
    fn of(algorithm: &Algorithm, n: usize) -> Group {
        let schedule = |rank| Schedule::new(algorithm, n, Rank(rank)).expect("a group of one or more");
        Group { name: format!("{algorithm:?} of {n}"), members: (0..n as u32).map(schedule).collect() }
    }

    fn steps(&self, k: u32) -> u64 {
        self.members.iter().map(|schedule| schedule.steps(k)).max().unwrap_or(0)
    }

    /// The step of each part of a member.
    fn at(&self, rank: usize, k: u32, step: u64) -> impl Iterator<Item = Step> {
        self.members[rank].parts().iter().map(move |part| part.at(k, step))
    }

    /// Checks everything that holds for any algorithm.
    fn check(&self, k: u32) {
        let n = self.members.len();
        let name = &self.name;
        // By rank and block: the step in which it was received.
        let mut held = vec![vec![None; k as usize]; n];
        held[0] = vec![Some(-1); k as usize];
        let mut got = vec![0; n];
        let steps = self.steps(k);
        let mut last_step_is_empty = steps > 0;
        for step in 0..steps {
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for (rank, schedule) in self.members.iter().enumerate() {
                let (mut sent, mut received) = (0, 0);
                for Step { send, receive } in self.at(rank, k, step) {
                    sent += usize::from(send.is_some());
                    received += usize::from(receive.is_some());
                    if let Some(Transfer { peer, block }) = send {
                        let since: i64 = held[rank][block as usize]
                            .unwrap_or_else(|| panic!("{name}, k = {k}: rank {rank} sends block {block} without it"));
                        assert!(since < step as i64, "{name}: received in the step in which it is sent");
                        sends.push((rank, peer.index(), block));
                    }
                    if let Some(Transfer { peer, block }) = receive {
                        receives.push((peer.index(), rank, block));
                    }
                }
                let parts = schedule.parts().len();
                assert!(sent <= parts && received <= 1, "{name}, k = {k}, step {step}: rank {rank} does too much");
            }
            sends.sort_unstable();
            receives.sort_unstable();
            assert_eq!(sends, receives, "{name}, k = {k}, step {step}: the ends disagree");
            for &(from, to, block) in &receives {
                assert!(self.members[from].peers().contains(&Rank(to as u32)), "{name}: {from} does not know {to}");
                assert!(self.members[to].peers().contains(&Rank(from as u32)), "{name}: {to} does not know {from}");
                assert!(held[to][block as usize].is_none(), "{name}, k = {k}: rank {to} gets block {block} twice");
                held[to][block as usize] = Some(step as i64);
                if got[to] == 0 {
                    let first = self.members[to].first_block().expect("it receives");
                    let expected = (first.from.index(), first.of(k));
                    assert_eq!((from, block), expected, "{name}, k = {k}: the first block of rank {to}");
                }
                got[to] += 1;
            }
            last_step_is_empty = receives.is_empty();
        }
        assert!(!last_step_is_empty, "{name}, k = {k}: nothing happens in the last step");
        assert!(held.iter().flatten().all(Option::is_some), "{name}, k = {k}: a member lacks a block");
        assert!(self.members[0].first_block().is_none(), "{name}: the root receives");
        for schedule in &self.members {
            let beyond = schedule.parts().iter().map(|part| part.at(k, steps)).all(|step| step == Step::default());
            assert!(beyond, "{name}, k = {k}: something happens after the end");
        }
    }
}

#[test]
fn every_flat_schedule_is_one_for_all_sizes_up_to_64() {
    for algorithm in &Algorithm::FLAT {
        for n in 1..=64 {
            let group = Group::of(algorithm, n);
            (1..=64).for_each(|k| group.check(k));
        }
    }
}

#[test]
fn every_flat_schedule_is_one_for_samples_beyond() {
    for algorithm in &Algorithm::FLAT {
        for (n, k) in [(65, 1), (100, 3), (127, 64), (128, 65), (129, 2), (255, 17), (257, 1), (300, 100), (2, 5000)] {
            Group::of(algorithm, n).check(k);
        }
    }
}

fn hybrid(rack_of: &[usize], outer: Outer) -> Algorithm {
    Algorithm::Hybrid(Racks::new(rack_of, outer).expect("there is a root"))
}

#[test]
fn every_hybrid_schedule_is_one_for_racks_of_any_sizes() {
    for outer in [Outer::BinomialPipeline, Outer::Chain] {
        for n in 1..=40 {
            for racks in 1..=n.min(9) {
                // Racks of neighbours, racks dealt out in turn, and one big rack with small ones.
                let layouts = [
                    (0..n).map(|rank| rank * racks / n).collect::<Vec<_>>(),
                    (0..n).map(|rank| rank % racks).collect(),
                    (0..n).map(|rank| rank.min(racks - 1)).collect(),
                ];
                for rack_of in layouts {
                    let group = Group::of(&hybrid(&rack_of, outer), n);
                    [1, 2, 3, 7, 16, 33].into_iter().for_each(|k| group.check(k));
                }
            }
        }
    }
}

#[test]
fn a_hybrid_crosses_between_racks_once_for_each_block_and_other_rack() {
    let rack_of: Vec<usize> = (0..24).map(|rank| rank % 4).collect();
    for outer in [Outer::BinomialPipeline, Outer::Chain] {
        let group = Group::of(&hybrid(&rack_of, outer), 24);
        let k = 16;
        let crossings = (0..group.steps(k))
            .flat_map(|step| (0..24).map(move |rank| (rank, step)))
            .flat_map(|(rank, step)| group.at(rank, k, step).filter_map(move |at| Some((rank, at.send?.peer.index()))))
            .filter(|&(from, to)| rack_of[from] != rack_of[to])
            .count();
        assert_eq!(crossings, 16 * 3);
    }
}

#[test]
fn a_binomial_pipeline_takes_log_n_and_k_less_one_steps() {
    for n in 2..=300_usize {
        let log = n.next_power_of_two().trailing_zeros();
        for k in [1, 2, 5, 64, 1000] {
            assert_eq!(Group::of(&Algorithm::BinomialPipeline, n).steps(k), u64::from(log + k - 1), "n = {n}, k = {k}");
        }
    }
}

#[test]
fn with_one_block_a_binomial_pipeline_is_a_binomial_tree() {
    for n in 2..=130_usize {
        let group = Group::of(&Algorithm::BinomialPipeline, n);
        let mut holders = 1;
        for step in 0..group.steps(1) {
            let sends = (0..n).flat_map(|rank| group.at(rank, 1, step)).filter(|at| at.send.is_some()).count();
            assert_eq!(sends, holders.min(n - holders), "n = {n}, step {step}: all members that have it send it");
            holders += sends;
        }
        assert_eq!(holders, n);
    }
    for n in [2, 4, 8, 64] {
        let [pipeline, tree] = [Algorithm::BinomialPipeline, Algorithm::BinomialTree].map(|a| Group::of(&a, n));
        for (rank, step) in (0..n).flat_map(|rank| (0..tree.steps(1)).map(move |step| (rank, step))) {
            assert!(pipeline.at(rank, 1, step).eq(tree.at(rank, 1, step)), "the same edges where n is a power of two");
        }
    }
}

/// RDMC, DSN 2018, §4.5: the slack of a send is the number of steps since its block was received.
#[test]
fn the_average_slack_of_a_binomial_pipeline_is_the_papers() {
    for l in 2..=8_u32 {
        let (n, k) = (1_usize << l, 40);
        let group = Group::of(&Algorithm::BinomialPipeline, n);
        let mut received = vec![vec![0; k as usize]; n];
        for step in 0..group.steps(k) {
            let steady = (u64::from(l)..=u64::from(l + k) - 2).contains(&step);
            let slacks: Vec<u64> = (1..n)
                .flat_map(|rank| group.at(rank, k, step).filter_map(move |at| Some((rank, at.send?.block))))
                .map(|(rank, block)| step - received[rank][block as usize])
                .collect();
            if steady {
                // All but the root and the rank whose neighbour is the root.
                assert_eq!(slacks.len(), n - 2, "n = {n}, step {step}");
                let total: u64 = slacks.iter().sum();
                // 2 (1 - (l - 1) / (n - 2)) on average, so 2 (n - 2 - (l - 1)) in total.
                assert_eq!(total, 2 * (n as u64 - 2 - u64::from(l - 1)), "n = {n}, step {step}");
            }
            for (rank, received) in received.iter_mut().enumerate().skip(1) {
                for Transfer { block, .. } in group.at(rank, k, step).filter_map(|at| at.receive) {
                    received[block as usize] = step;
                }
            }
        }
    }
}

#[test]
fn impossible_groups_are_refused_with_a_reason() {
    let error = |algorithm: &Algorithm, n, rank| Schedule::new(algorithm, n, Rank(rank)).unwrap_err().to_string();
    let said = error(&Algorithm::Chain, 0, 0);
    assert_eq!(said, "a group of 0 members is not possible: give 1 to 2^31 members, the root first");
    assert_eq!(error(&Algorithm::Chain, 3, 3), "rank 3 is none of a group of 3 members");
    let racks = hybrid(&[0, 0, 1], Outer::Chain);
    assert_eq!(error(&racks, 4, 0), "racks are given for 3 members, but the group has 4");
    assert!(Racks::new::<u32>(&[], Outer::Chain).is_err());
}
