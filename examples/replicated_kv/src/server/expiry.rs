//! Keys that expire where nothing else happens.

use std::time::Duration;

use squall::Served;

use super::{GROUP, Server, replica::now_ms};
use crate::{Store, message::Command};

/// How often somebody looks whether a key has expired.
const PERIOD: Duration = Duration::from_millis(100);

/// Tells the group the time, as long as that removes keys. The lowest-ranked sender does it for all.
pub(super) async fn watch(server: &Server) {
    loop {
        if !tell_if_due(server).await {
            tokio::time::sleep(PERIOD).await;
        }
    }
}

/// Returns whether there may be more to remove at once.
async fn tell_if_due(server: &Server) -> bool {
    let view = server.node.view();
    if view.shards.first().and_then(|shard| shard.senders.first()) != Some(&server.node.id()) {
        return false;
    }
    let at_ms = now_ms();
    let next = server.group.peek(|store: &Served<Store>| store.keys().next_expiry_ms()).await;
    if !next.is_ok_and(|next| next.is_some_and(|next| next <= at_ms)) {
        return false;
    }
    // A command removes few keys at once, so that others get their turns.
    let told = server.group.submit(&Command::Tick { at_ms }).await;
    if let Err(error) = &told {
        tracing::debug!(%error, "in the group {GROUP} no key expires for now");
    }
    told.is_ok()
}
