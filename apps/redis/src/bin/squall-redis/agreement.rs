//! The check that all replicas hold the same.

use std::{net::SocketAddr, time::Duration};

use crate::client::{RespClient, field, until};

/// Waits until all replicas serve, have applied the same commands, and hold the same. They soon do once there are no
/// more writes and keys that expire are gone. Returns a text of what they hold.
pub(crate) async fn agreement(addresses: &[SocketAddr], patience: Duration) -> Result<String, String> {
    let mut clients = RespClient::connect_to_all(addresses).await?;
    until(patience, async || {
        let mut states = Vec::new();
        for client in &mut clients {
            let info = client.text(&["INFO"]).await?;
            let field = |name| field(&info, name).ok_or_else(|| format!("INFO says nothing of {name}: {info:?}"));
            let (state, seq) = (field("state")?, field("applied_seq")?);
            let (keys, digest) = (client.text(&["DBSIZE"]).await?, client.text(&["DEBUG", "DIGEST"]).await?);
            if state != "ok" || digest.len() != 40 {
                return Err(format!("{} has the state {state:?} and the digest {digest:?}", client.address));
            }
            states.push(format!("{keys} keys with digest {digest} at applied_seq {seq}"));
        }
        if states.iter().all(|state| *state == states[0]) {
            return Ok(states.swap_remove(0));
        }
        Err(format!("the replicas differ: {}", states.join("; ")))
    })
    .await
}
