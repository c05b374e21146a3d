//! Keys that expire where nothing else happens.

use std::time::Duration;

use squall::Served;

use super::{GROUP, Server, replica::now_ms};
use crate::{Store, message::Command};

/// How often who tells the time looks whether a key has expired: while some key is to, and while none is.
const PERIOD: Duration = Duration::from_millis(100);
const CALM: Duration = Duration::from_millis(300);
/// How often the others look whether it is for them to tell it.
const IDLE: Duration = Duration::from_secs(1);

/// Tells the group the time, as long as that removes keys. The lowest-ranked sender does it for all.
pub(super) async fn watch(server: &Server) {
    loop {
        if let Some(pause) = tell_if_due(server).await {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Returns after which time it should look again; none if there may be more to remove at once.
async fn tell_if_due(server: &Server) -> Option<Duration> {
    let view = server.node.view();
    if view.shards.first().and_then(|shard| shard.senders.first()) != Some(&server.node.id()) {
        return Some(IDLE);
    }
    let at_ms = now_ms();
    let next = server.group.peek(|store: &Served<Store>| store.keys().next_expiry_ms()).await;
    match next {
        Ok(Some(next)) if next <= at_ms => {}
        Ok(Some(_)) => return Some(PERIOD),
        Ok(None) | Err(_) => return Some(CALM),
    }
    // A command removes few keys at once, so that others get their turns.
    let told = server.group.submit(&Command::Tick { at_ms }).await;
    if let Err(error) = &told {
        tracing::debug!(%error, "in the group {GROUP} no key expires for now");
    }
    told.is_err().then_some(PERIOD)
}
