//! Keys that expire where nothing else happens.

use std::time::Duration;

use super::{GROUP, Server, replica::now_ms};
use crate::{Store, message::Command};

/// How often somebody looks whether a key has expired.
const PERIOD: Duration = Duration::from_millis(100);

/// Tells the group the time, as long as that removes keys, until the group ends. One member does it for all: the group does
/// not outlive any.
pub(super) async fn watch(server: &Server) {
    if server.config.members().iter().min() != Some(&server.node.id()) {
        return;
    }
    loop {
        let at_ms = now_ms();
        let next = server.group.peek(|store: &Store| store.keys().next_expiry_ms()).await;
        if !next.is_ok_and(|next| next.is_some_and(|next| next <= at_ms)) {
            tokio::time::sleep(PERIOD).await;
            continue;
        }
        // A command removes few keys at once, so that others get their turns.
        if let Err(error) = server.group.submit(&Command::Tick { at_ms }).await {
            tracing::debug!(%error, "in the group {GROUP} no key expires any more");
            return;
        }
    }
}
