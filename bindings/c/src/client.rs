//! The clients that a program has opened, by their numbers.

use std::{
    collections::BTreeMap,
    os::fd::RawFd,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use squall::{
    Consistency,
    client::{Call, ClientConfig, Codec, RawClient, RawShards},
};
use squall_fabric::sync::Lock;

use crate::{
    completions::Completions,
    result::{SquallCode, SquallResult},
};

/// All open clients. A number that was closed is never given again, so a stale one is found out.
static OPEN: LazyLock<Lock<BTreeMap<u64, Arc<OpenClient>>>> = LazyLock::new(Lock::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A client that a program has opened.
pub(crate) struct OpenClient {
    shards: RawShards,
    completions: Arc<Completions>,
}

/// A call as a program asks for it.
pub(crate) struct CallRequest<'a> {
    pub(crate) shard: u32,
    /// None for a command.
    pub(crate) query: Option<Consistency>,
    pub(crate) bytes: &'a [u8],
    /// 0 for the client's own.
    pub(crate) timeout_ms: u64,
}

/// Opens a client. Returns its number.
pub(crate) fn open(config: ClientConfig, group: &str, codec: Codec, timeout_ms: u64) -> Result<u64, SquallResult> {
    let config = if timeout_ms == 0 { config } else { config.with_timeout(Duration::from_millis(timeout_ms)) };
    let completions = Completions::new();
    let completions = completions.map_err(|error| SquallResult::not_sent(SquallCode::Start, error.to_string()))?;
    let shards = RawShards::connect(&config, group, codec).map_err(|error| SquallResult::from(Err(error)))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let client = Arc::new(OpenClient { shards, completions: Arc::new(completions) });
    OPEN.lock().insert(number, client);
    Ok(number)
}

/// Returns a client that is open.
pub(crate) fn get(number: u64) -> Result<Arc<OpenClient>, SquallResult> {
    let client = OPEN.lock().get(&number).cloned();
    client.ok_or_else(|| match (1..NEXT.load(Ordering::Relaxed)).contains(&number) {
        true => SquallResult::not_sent(SquallCode::Closed, "the client was closed; nothing was applied"),
        false => SquallResult::not_sent(SquallCode::Argument, format!("no client {number} was opened")),
    })
}

/// Closes a client. Its calls end, if they have not ended.
pub(crate) fn close(number: u64) {
    let closed = OPEN.lock().remove(&number);
    // What it drops takes time, and needs no lock.
    drop(closed);
}

impl OpenClient {
    pub(crate) fn shards(&self) -> &RawShards {
        &self.shards
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.completions.descriptor()
    }

    pub(crate) fn next(&self) -> Option<SquallResult> {
        self.completions.next()
    }

    fn shard(&self, request: &CallRequest<'_>) -> Result<RawClient, SquallResult> {
        let shard = self.shards.shard(request.shard as usize).ok_or_else(|| {
            let why = format!("the group has {} shards, and no shard {}", self.shards.len(), request.shard);
            SquallResult::not_sent(SquallCode::Argument, why)
        })?;
        Ok(match request.timeout_ms {
            0 => shard.clone(),
            limit => shard.within(Duration::from_millis(limit)),
        })
    }

    /// Makes a call.
    pub(crate) fn call(&self, request: &CallRequest<'_>) -> Result<Call<Vec<u8>>, SquallResult> {
        Ok(call(&self.shard(request)?, request))
    }

    /// Starts a call, whose result has this tag.
    pub(crate) fn start(&self, request: &CallRequest<'_>, tag: u64) -> Result<(), SquallResult> {
        let shard = self.shard(request)?;
        self.completions.start(tag, || call(&shard, request)).map_err(|max| {
            SquallResult::not_sent(SquallCode::Full, format!("the results of {max} calls were not taken: take some"))
        })
    }
}

fn call(shard: &RawClient, request: &CallRequest<'_>) -> Call<Vec<u8>> {
    match request.query {
        None => shard.submit(request.bytes.to_vec()),
        Some(consistency) => shard.query(consistency, request.bytes.to_vec()),
    }
}
