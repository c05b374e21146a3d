//! View changes, as events of `LATENCY`.

use std::time::Duration;

use squall::Time;

use super::{Server, replica::now_ms};

/// The pause between two looks for a new view.
const PERIOD: Duration = Duration::from_secs(1);

/// Notes how long each view change took from the suspicion of a member on, for ever. Of several within a second, only
/// the last is seen.
pub(super) async fn watch(server: &Server) {
    let mut last = Time::ZERO;
    loop {
        let change = server.node.last_change();
        if change.installed > last && change.suspected > Time::ZERO {
            let took = change.installed.since(change.suspected);
            server.reception.operations.latency.note("view-change", Duration::from_millis(now_ms()), took);
        }
        last = change.installed;
        tokio::time::sleep(PERIOD).await;
    }
}
