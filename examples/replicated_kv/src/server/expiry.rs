//! Keys that expire where nothing else happens.

use std::time::Duration;

use super::{GROUP, Server, replica::now_ms};
use crate::{Store, message::Command};

/// How often somebody looks whether a key has expired.
const PERIOD: Duration = Duration::from_millis(100);

/// Tells the group the time, as long as that removes keys. One member does it for all.
pub(super) async fn watch(server: &Server) {
    if server.config.members().iter().min() != Some(&server.node.id()) {
        return;
    }
    loop {
        let Ok(next) = server.group.peek(|store: &Store| store.keys().next_expiry_ms()).await else {
            tracing::debug!("the group {GROUP} has ended: no key expires any more");
            return;
        };
        let at_ms = now_ms();
        // A command removes few keys at once, so that others get their turns.
        if next.is_some_and(|next| next <= at_ms) && server.group.submit(&Command::Tick { at_ms }).await.is_ok() {
            continue;
        }
        tokio::time::sleep(PERIOD).await;
    }
}
