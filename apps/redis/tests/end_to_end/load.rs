//! Clients that count, each with its own key, at one replica after the other.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use crate::{
    machine::until,
    wire::{Client, show},
};

/// The state that clients share with the test that watches them.
#[derive(Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    /// The acknowledged increments of each client.
    acknowledged: Vec<AtomicU64>,
}

/// The results of a client.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) acknowledged: u64,
    /// Increments whose outcome it does not know.
    pub(crate) unknown: u64,
    /// Increments that were refused.
    pub(crate) refused: u64,
    /// The longest time until a request was answered, or its connection ended.
    pub(crate) slowest: Duration,
}

impl Load {
    pub(crate) fn new(clients: usize) -> Load {
        Load { acknowledged: (0..clients).map(|_| AtomicU64::new(0)).collect(), ..Load::default() }
    }

    /// Starts the clients. Each begins at another address. It goes on at the next when its connection ends or it is
    /// refused.
    pub(crate) fn start<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        addresses: &'env [SocketAddr],
    ) -> Vec<ScopedJoinHandle<'scope, Seen>> {
        (0..self.acknowledged.len()).map(|id| scope.spawn(move || self.client(id, addresses))).collect()
    }

    /// Waits until each client got `more` acknowledgements more.
    pub(crate) fn until_more(&self, what: &str, more: u64) {
        let before: Vec<u64> = self.acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        until(what, || {
            self.acknowledged.iter().zip(&before).all(|(count, before)| count.load(Ordering::Relaxed) >= before + more)
        });
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn client(&self, id: usize, addresses: &[SocketAddr]) -> Seen {
        let mut seen = Seen { key: format!("count{id}"), ..Seen::default() };
        let mut turn = id;
        while !self.stop.load(Ordering::Relaxed) {
            // A replica that is being started again refuses connections.
            let Ok(mut client) = Client::connect(addresses[turn % addresses.len()]) else {
                turn += 1;
                thread::yield_now();
                continue;
            };
            while !self.stop.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let answer = client.call(&["INCR", &seen.key]).map(|answer| show(&answer));
                seen.slowest = seen.slowest.max(asked.elapsed());
                match answer.as_deref() {
                    Ok(refused) if refused.starts_with("-CLUSTERDOWN") => seen.refused += 1,
                    Ok(unknown) if unknown.starts_with('-') => {
                        assert!(unknown.starts_with("-UNKNOWN"), "{unknown}");
                        seen.unknown += 1;
                    }
                    Err(_) => seen.unknown += 1,
                    Ok(count) => {
                        let count: u64 = count.parse().expect("INCR answers a number");
                        seen.acknowledged += 1;
                        let possible = seen.acknowledged..=seen.acknowledged + seen.unknown;
                        assert!(possible.contains(&count), "{count} is not within {possible:?}");
                        self.acknowledged[id].store(seen.acknowledged, Ordering::Relaxed);
                        continue;
                    }
                }
                break;
            }
            turn += 1;
        }
        seen
    }
}
