//! The progress and the outcome of receivers, as the source tells them.

use super::{
    super::{PushProgress, ReceiverProgress, ReceiverReport},
    Peers, PushTarget, ReceiverState,
};
use crate::control::Report;

impl Peers<'_> {
    pub(in super::super) fn progress(&self) -> PushProgress {
        let progress = |peer: &PushTarget| ReceiverProgress {
            name: peer.name.clone(),
            held: peer.held,
            written: peer.written,
            over: match &peer.state {
                ReceiverState::Offered
                | ReceiverState::Comparing(_)
                | ReceiverState::Ready(_)
                | ReceiverState::Copying(_) => None,
                ReceiverState::Absent(_) => Some("is not there yet".to_owned()),
                ReceiverState::Done(_) => Some("done".to_owned()),
                ReceiverState::Gone(reason) => Some(reason.clone()),
            },
        };
        PushProgress { bytes: self.manifest.bytes(), receivers: self.peers.iter().map(progress).collect() }
    }

    pub(in super::super) fn reports(self) -> Vec<ReceiverReport> {
        let report = |peer: PushTarget| {
            let report = ReceiverReport {
                name: peer.name,
                held: peer.held,
                written: peer.written.saturating_sub(peer.held),
                lacked: peer.wanted.len() as u64,
                ..ReceiverReport::default()
            };
            let failed = |reason: String| ReceiverReport { error: Some(reason), ..report.clone() };
            match peer.state {
                ReceiverState::Done(Report { outcome, moved }) => ReceiverReport {
                    placed: outcome.placed,
                    unchanged: outcome.unchanged,
                    kept: outcome.kept,
                    deleted: outcome.deleted,
                    losses: outcome.losses.into(),
                    moved,
                    failures: outcome.failures,
                    failed: outcome.failed,
                    ..report
                },
                ReceiverState::Ready(_) if self.options.dry_run => ReceiverReport {
                    deleted: peer.doomed,
                    written: peer.lacks.bytes(),
                    failures: peer.failures,
                    failed: peer.failed,
                    ..report
                },
                ReceiverState::Gone(reason) | ReceiverState::Absent(reason) => failed(reason),
                ReceiverState::Offered
                | ReceiverState::Comparing(_)
                | ReceiverState::Ready(_)
                | ReceiverState::Copying(_) => {
                    failed("the push was stopped before it had everything: push again".to_owned())
                }
            }
        };
        self.peers.into_iter().map(report).collect()
    }
}
