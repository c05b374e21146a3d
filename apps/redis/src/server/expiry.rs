//! Ticks, by which keys expire where nothing else happens.

use std::time::{Duration, Instant};

use squall::Served;

use super::{GROUP, Server, replica::now_ms};
use crate::{Store, message::StoreCommand};

/// The pause between two looks for expired keys at the replica that sends ticks: while some key has an expiry, and
/// while none has.
const PERIOD: Duration = Duration::from_millis(100);
const CALM: Duration = Duration::from_millis(300);
/// The pause of the other replicas before they check whether they are to send ticks.
const IDLE: Duration = Duration::from_secs(1);

/// Sends ticks as long as they remove keys. The lowest-ranked sender does it for the whole group.
pub(super) async fn watch(server: &Server) {
    loop {
        if let Some(pause) = tell_if_due(server).await {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Sends a tick if a key has expired. Returns the pause before the next look, or `None` if more keys may be due at
/// once.
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
    // A command removes few keys at once, so that other commands get their turns.
    let begun = Instant::now();
    let told = server.group.submit(&StoreCommand::Tick { at_ms }).await;
    let latency = &server.reception.operations.latency;
    latency.note("expire-cycle", Duration::from_millis(at_ms), begun.elapsed());
    if let Err(error) = &told {
        tracing::debug!(%error, "in the group {GROUP} no key expires for now");
    }
    told.is_err().then_some(PERIOD)
}
