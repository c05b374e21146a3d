//! The formation of a scenario's group, and the faults of its witness.

use std::time::Duration;

use super::{Scenario, WITNESS, faults::Fault};
use crate::sim::{cluster::random, options::ViewLogKind};

/// The time that a first view takes, roughly.
const FORMATION: Duration = Duration::from_millis(120);

impl Scenario<'_> {
    /// Lets the group form. In some scenarios a node dies meanwhile, and is started again.
    pub(super) fn form(&mut self) -> Result<(), String> {
        let failed = |error| format!("the cluster did not start: {error}");
        self.cluster.launch_all().map_err(failed)?;
        if self.may_lose_a_voter() && self.forming.u8(0..4) == 0 {
            let after = self.moment(FORMATION);
            self.cluster.run_for(after);
            let has_witness = self.cluster.is_witness_up(WITNESS);
            if has_witness && self.forming.u8(0..4) == 0 {
                self.tell(|| "the witness dies while the group forms".to_owned());
                self.cluster.raft.crash(WITNESS);
                let pause = self.moment(FORMATION);
                self.cluster.run_for(pause);
                self.cluster.launch_witness(WITNESS);
            } else {
                // The founder of the log most often.
                let any = if self.forming.bool() { 0 } else { self.forming.usize(0..self.peers.len()) };
                let node = self.peers[any].node;
                self.tell(|| format!("{node} dies while the group forms"));
                self.crash(node);
                let pause = self.moment(FORMATION * 2);
                self.cluster.run_for(pause);
                self.start_again(node)?;
            }
        }
        self.cluster.wait_formed().map_err(failed)
    }

    /// Whether a group can form though one of its nodes forgets its vote: the others are a majority, or nothing is
    /// forgotten.
    fn may_lose_a_voter(&self) -> bool {
        let count = self.cluster.count_of_voters();
        match self.cluster.options.view_log {
            _ if self.calm => false,
            ViewLogKind::Scripted => false,
            ViewLogKind::Raft => count >= 3,
            ViewLogKind::RaftOnDisks => true,
        }
    }

    /// Plans that the witness dies, and sometimes starts again.
    pub(super) fn plan_faults_of_the_witness(&mut self, within: Duration) {
        if self.calm || !self.cluster.is_witness_up(WITNESS) || self.forming.u8(0..3) > 0 {
            return;
        }
        let at = self.cluster.now() + self.moment(within);
        self.faults.plan(at, Fault::CrashWitness);
        if self.forming.u8(0..4) > 0 {
            let again = at + self.moment(Duration::from_millis(100));
            self.faults.plan(again, Fault::LaunchWitness);
        }
    }

    fn moment(&mut self, most: Duration) -> Duration {
        random(&mut self.forming, most)
    }
}
