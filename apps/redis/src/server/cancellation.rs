//! The end of waits whose clients have gone.

use std::time::Duration;

use squall::SubmitError;

use super::{Server, replica::now_ms};
use crate::message::StoreCommand;

/// The pause before waits are cancelled again that could not be.
const PAUSE: Duration = Duration::from_millis(100);

/// Cancels the waits whose clients have gone, until the group ends.
pub(super) async fn watch(server: &Server) {
    loop {
        let tickets = server.reception.hub.waits.next_left_behind().await;
        let cancel = |at_ms| StoreCommand::CancelWaits { at_ms, tickets: tickets.clone() };
        while let Err(error) = server.group.submit(&cancel(now_ms())).await {
            if matches!(error, SubmitError::Ended { .. }) {
                return server.reception.hub.waits.end_cancelling();
            }
            tracing::debug!(%error, waits = tickets.len(), "waits of clients that have gone are not cancelled for now");
            tokio::time::sleep(PAUSE).await;
        }
    }
}
