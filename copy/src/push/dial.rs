//! The calls to receivers: to all at once at the beginning, and again and again to those that were not there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, unbounded};
use squall_fabric::Waker;
use squall_services::ControlStream;

use super::{
    super::control::{Caller, dial, node_id},
    PushError,
};

/// The interval at which a receiver that is not there is called again.
const CALL_AGAIN: Duration = Duration::from_secs(1);

/// The time after which a thread that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The way to find receivers.
pub(super) enum Finder {
    /// The receivers' names, on this host.
    Names,
    /// The receivers' addresses.
    Network(Caller),
}

impl Finder {
    /// Connects to a receiver.
    fn find(&self, cluster: &str, name: &str) -> Result<ControlStream, PushError> {
        match self {
            Finder::Names => Ok(ControlStream::local(node_id(cluster, name), dial(cluster, name)?)),
            Finder::Network(caller) => {
                caller.call(name).map_err(|cause| PushError::Call { address: name.to_owned(), cause })
            }
        }
    }
}

/// A receiver that was called again, and was there.
pub(super) struct Dialed {
    pub(super) peer: usize,
    pub(super) stream: ControlStream,
}

/// The caller of a push's receivers. Its threads end soon after it is dropped.
#[derive(derive_more::Debug)]
#[debug("Dialer({to:?})")]
pub(super) struct Dialer {
    finder: Arc<Finder>,
    cluster: String,
    to: Vec<String>,
    say: Sender<Dialed>,
    said: Receiver<Dialed>,
    given_up: Arc<AtomicBool>,
}

impl Dialer {
    pub(super) fn new(finder: Finder, cluster: &str, to: &[String]) -> Dialer {
        let (say, said) = unbounded();
        Dialer {
            finder: Arc::new(finder),
            cluster: cluster.to_owned(),
            to: to.to_vec(),
            say,
            said,
            given_up: Arc::default(),
        }
    }

    /// Calls all receivers, at the same time.
    pub(super) fn call_all(&mut self) -> Vec<Result<ControlStream, PushError>> {
        let (finder, cluster) = (&self.finder, &self.cluster);
        thread::scope(|scope| {
            let call = |name: String| thread::Builder::new().spawn_scoped(scope, move || finder.find(cluster, &name));
            let calls: Vec<_> = self.to.iter().cloned().map(call).collect();
            let panicked = |_| PushError::Usage("the call of a receiver panicked".to_owned());
            let ended = |called: thread::ScopedJoinHandle<'_, _>| called.join().map_err(panicked).flatten();
            calls.into_iter().map(|call| call.map_err(PushError::Thread).and_then(ended)).collect()
        })
    }

    /// Calls a receiver until it is there.
    pub(super) fn call_again(&self, peer: usize, waker: &Waker) -> Result<(), PushError> {
        let (finder, given_up, say) = (Arc::clone(&self.finder), Arc::clone(&self.given_up), self.say.clone());
        let (cluster, name, waker) = (self.cluster.clone(), self.to[peer].clone(), waker.clone());
        let call = move || {
            loop {
                let until = Instant::now() + CALL_AGAIN;
                while Instant::now() < until {
                    if given_up.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(LOOK);
                }
                if let Ok(stream) = finder.find(&cluster, &name) {
                    // A push that is over takes no one in.
                    let _ = say.send(Dialed { peer, stream });
                    waker.wake();
                    return;
                }
            }
        };
        thread::Builder::new().name("squall-cp-call".to_owned()).spawn(call)?;
        Ok(())
    }

    /// Returns the next receiver that was called again, and was there.
    pub(super) fn dialed(&self) -> Option<Dialed> {
        self.said.try_recv().ok()
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}
