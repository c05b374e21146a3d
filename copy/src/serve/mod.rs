//! A receiver, which waits for sources, and takes one transfer after the other.

mod abort;
mod transfer;
mod turn;
mod writer;

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam::channel::{self, RecvTimeoutError, Sender};
use squall_fabric::{
    NodeId,
    mixed::{MixedFabric, Transport},
    net::ServiceStream,
    shm::{ShmConfig, ShmError, ShmFabric},
    tcp::TcpError,
};

use self::{transfer::Transfer, turn::TransferLock};
use super::{
    control::{self, ReceiverNetwork, RendezvousError, ToSource, node_id},
    push::CopyLosses,
    root::{Root, RootError},
};
use squall_rdmc::bulk::Bulk;
use squall_runtime::Spin;
use squall_services::{ControlStream, local::LocalListener};

/// The interval at which a waiting receiver checks whether it must stop.
const LOOK: Duration = Duration::from_millis(100);

/// The directory into which a receiver puts files, and the way for sources to find it.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The directory to write into, which exists. Nothing outside it is ever written.
    pub directory: PathBuf,
    /// The receiver's name, unique in its cluster on this host.
    pub name: String,
    /// The cluster's name.
    pub cluster: String,
    /// The addresses at which sources on other hosts find it. None: it is found by its name, on this host.
    pub network: Option<ReceiverNetwork>,
}

/// A reason for which a receiver can't work.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directory can't be used.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The name can't be used.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The fabric can't be opened.
    #[error(transparent)]
    Fabric(#[from] ShmError),
    /// The port can't be used.
    #[error(transparent)]
    Network(#[from] TcpError),
    /// The system refused a thread.
    #[error("the system gives no thread: {0}")]
    Thread(#[from] io::Error),
}

/// An event in a receiver's work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServeEvent {
    /// The begin of a transfer.
    Began {
        /// Its id: the name of its directory in `.squall-cp`.
        transfer: String,
        /// The number of its files.
        files: usize,
        /// The number of their bytes, in total.
        bytes: u64,
        /// The number of bytes that are here already.
        held: u64,
    },
    /// A growth of the number of written bytes.
    Progress {
        /// The number of bytes that are here, those that were before included.
        written: u64,
    },
    /// The end of the transfer: everything that could be put in place is.
    Finished {
        /// Files, links and devices that were put in place, and verified.
        placed: u64,
        /// Files, links and devices that were the same before.
        unchanged: u64,
        /// Names that existed, and were kept.
        kept: u64,
        /// Names that were removed.
        deleted: u64,
        /// The properties that could not be kept of files that are in place.
        losses: CopyLosses,
        /// The failures, each with its name and a reason; at most 100 of them.
        failed: Vec<String>,
        /// The number of failures.
        failures: u64,
    },
    /// An earlier end of the transfer. The received contents are kept, for the next push of the same names.
    Interrupted {
        /// The reason.
        reason: String,
    },
}

/// A receiver, waiting under its name.
#[derive(derive_more::Debug)]
#[debug("Receiver({})", root.path().display())]
pub struct Receiver {
    root: Arc<Root>,
    bulk: Bulk<MixedFabric>,
    calls: channel::Receiver<ControlStream>,
    turn: Arc<TransferLock>,
    doorway: Doorway,
}

impl Receiver {
    /// Opens a receiver: takes the name, or the port, and the directory. Fails if another process has the name or the
    /// port, if the directory can't be used, or if the system gives no thread.
    pub fn open(options: &ServeOptions) -> Result<Receiver, ServeError> {
        let ServeOptions { directory, name, cluster, network } = options;
        let (fabric, doorway) = match network {
            Some(network) => {
                let (fabric, calls) = control::open_receiver(cluster, network)?;
                (fabric, Doorway::Port(calls))
            }
            None => {
                let listener = Arc::new(control::listen(cluster, name)?);
                let me = node_id(cluster, name);
                let fabric = ShmFabric::open(ShmConfig::new(control::fabric_cluster(cluster), me))?;
                (MixedFabric::new(me, Transport::Shm).with_shm(fabric), Doorway::Name(listener))
            }
        };
        let root = Arc::new(Root::open(directory)?);
        // A group has at least the source and this receiver.
        let bulk = Bulk::new(fabric, Spin::Auto, 2);
        let (call, calls) = channel::unbounded();
        let turn = Arc::new(TransferLock::default());
        let accept = {
            let (doorway, turn, name) = (doorway.clone(), Arc::clone(&turn), name.clone());
            move || accept(&doorway, &turn, &name, &call)
        };
        thread::Builder::new().name("squall-cp-accept".to_owned()).spawn(accept)?;
        Ok(Receiver { root, bulk, calls, turn, doorway })
    }

    /// Returns the addresses at which it listens, if it is found over a network.
    pub fn addresses(&mut self) -> Vec<SocketAddr> {
        self.bulk.fabric().tcp().map(|tcp| tcp.local_addrs().to_vec()).unwrap_or_default()
    }

    /// Returns interrupted transfers, by their ids: the names of their directories in `.squall-cp`. The next push of
    /// the same names continues one; if there will be none, its directory may be removed.
    pub fn partial(&self) -> Vec<String> {
        self.root.partial()
    }

    /// Waits for a source, and takes its transfer until that is over. Returns false if `stop` was set.
    ///
    /// One transfer is taken at a time: another source waits a moment, and is then told that this receiver is busy.
    pub fn receive(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(ServeEvent)) -> bool {
        while !stop.load(Ordering::Relaxed) {
            let call = match self.calls.recv_timeout(LOOK) {
                Ok(call) => call,
                Err(RecvTimeoutError::Timeout) => {
                    // Other members may still have to hear from here that a group has ended.
                    self.bulk.turn(&mut Vec::new());
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return false,
            };
            let mut transfer = Transfer::new(&mut self.bulk, &self.turn, Arc::clone(&self.root));
            let ended = transfer.run(call, stop, tell);
            drop(transfer);
            self.turn.end();
            if ended {
                return true;
            }
        }
        false
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // A port closes with the fabric.
        if let Doorway::Name(listener) = &self.doorway {
            listener.close();
        }
    }
}

/// The entrance of calls: a name's listener, or a port.
#[derive(Clone)]
enum Doorway {
    Name(Arc<LocalListener>),
    Port(channel::Receiver<ServiceStream>),
}

impl Doorway {
    /// Waits for the next call; None when no further call can come.
    fn next(&self) -> Option<ControlStream> {
        match self {
            Doorway::Port(calls) => calls.recv().ok().map(ControlStream::port),
            // On one host, sources have no ids.
            Doorway::Name(listener) => Some(ControlStream::local(NodeId(0), listener.accept()?)),
        }
    }
}

/// Accepts calls, one at a time, and refuses others.
fn accept(doorway: &Doorway, turn: &TransferLock, name: &str, calls: &Sender<ControlStream>) {
    while let Some(stream) = doorway.next() {
        if !turn.take() {
            let text = format!("{name} is busy with another transfer: push again when that is over");
            control::refuse(stream, &ToSource::Refused(text));
        } else if calls.send(stream).is_err() {
            return;
        }
    }
}
