//! The source, which finds files, and sends them to all receivers at once.

mod peers;
mod reader;
mod transfer;

use std::{
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use squall_fabric::{
    Fabric, NodeId, RegisterError, Wait,
    mixed::{MixedFabric, Transport},
    net::{DialError, Security},
    shm::{ShmConfig, ShmError, ShmFabric},
    tcp::TcpError,
};
use squall_rdmc::{
    block::{Medium, default_algorithm},
    schedule::Algorithm,
};

use self::{peers::Peers, transfer::Transfer};
use super::{
    control::{Caller, RendezvousError, fabric_cluster},
    scan::{Scan, ScanError, scan},
};
use squall_rdmc::bulk::Bulk;
use squall_runtime::Spin;

/// The size of a segment, in bytes: one multicast. Nodes have three or four segments in memory, and map those of their
/// neighbours on a shared-memory fabric, so this bounds their memory.
const SEGMENT_BYTES: usize = 8 << 20;

/// The size of a block, in bytes.
const BLOCK_BYTES: usize = 1 << 20;

/// The size of a segment over a network, in bytes. A pipeline fills and drains with each segment, so a segment should
/// have many blocks.
const NETWORK_SEGMENT_BYTES: usize = 16 << 20;
const NETWORK_BLOCK_BYTES: usize = 256 << 10;

/// The files to copy, the receivers, and the options.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Files and directories. Each is copied under its own name.
    pub paths: Vec<PathBuf>,
    /// The receivers' names; over a network their addresses, as `host:port`.
    pub to: Vec<String>,
    /// The receivers' cluster.
    pub cluster: String,
    /// The protection of the network. None: the receivers are on this host.
    pub network: Option<Security>,
    /// The algorithm by which contents travel, unless racks are given.
    pub algorithm: Algorithm,
    /// The receivers of each rack, the first rack being the source's (it may be empty): contents then cross from rack
    /// to rack once. Receivers that are not named are in the first.
    pub racks: Option<Vec<Vec<String>>>,
    /// Whether to continue an interrupted push of the same files.
    pub resume: bool,
    /// Whether to replace files of the same name.
    pub clobber: bool,
    /// Whether receivers write files to their disks before they put them in place.
    pub sync: bool,
    /// The time of silence after which a receiver is given up.
    pub silence: Duration,
    /// The size of a segment in bytes. Small ones are for tests.
    #[doc(hidden)]
    pub segment_bytes: usize,
    /// The size of a block in bytes.
    #[doc(hidden)]
    pub block_bytes: usize,
}

impl PushOptions {
    /// Returns the defaults.
    pub fn new(paths: Vec<PathBuf>, to: Vec<String>, cluster: impl Into<String>) -> PushOptions {
        PushOptions {
            paths,
            to,
            cluster: cluster.into(),
            network: None,
            algorithm: default_algorithm(&Medium::SharedMemory),
            racks: None,
            resume: false,
            clobber: true,
            sync: true,
            silence: Duration::from_secs(30),
            segment_bytes: SEGMENT_BYTES,
            block_bytes: BLOCK_BYTES,
        }
    }

    /// Returns the defaults for receivers at addresses, `host:port`.
    pub fn over_network(
        paths: Vec<PathBuf>,
        to: Vec<String>,
        cluster: impl Into<String>,
        security: Security,
    ) -> PushOptions {
        PushOptions {
            network: Some(security),
            algorithm: Algorithm::BinomialPipeline,
            segment_bytes: NETWORK_SEGMENT_BYTES,
            block_bytes: NETWORK_BLOCK_BYTES,
            ..PushOptions::new(paths, to, cluster)
        }
    }
}

/// A reason for which nothing was copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// A named path can't be copied.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A receiver can't be reached.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The receivers and racks do not fit together.
    #[error("{0}")]
    Usage(String),
    /// Source and receivers can't be a group.
    #[error("no group can be made: {0}")]
    Group(String),
    /// The fabric can't be opened.
    #[error(transparent)]
    Fabric(#[from] ShmError),
    /// The network can't be used.
    #[error(transparent)]
    Network(#[from] TcpError),
    /// A receiver does not answer as one.
    #[error(
        "the receiver {address:?} can't be called: {cause}; look whether `squall cp serve --listen` runs there, and whether \
         both sides have keys of the same CA, or neither has"
    )]
    Call {
        /// Its address.
        address: String,
        /// The cause.
        cause: DialError,
    },
    /// Memory for the contents can't be allocated.
    #[error(transparent)]
    Memory(#[from] RegisterError),
    /// The system refused a thread.
    #[error("the system gives no thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl PushError {
    /// Tells whether the options are wrong, so that no further attempt could succeed.
    pub fn is_usage(&self) -> bool {
        match self {
            PushError::Usage(_) | PushError::Rendezvous(RendezvousError::Name { .. }) => true,
            PushError::Scan(error) => matches!(error, ScanError::SameName { .. } | ScanError::NoName { .. }),
            _ => false,
        }
    }
}

/// The progress of a push.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PushProgress {
    /// The number of bytes to copy, to each receiver.
    pub bytes: u64,
    /// Each receiver, in the order in which they were named.
    pub receivers: Vec<ReceiverProgress>,
}

/// The progress of a receiver.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReceiverProgress {
    /// Its name.
    pub name: String,
    /// The number of bytes that it held before.
    pub held: u64,
    /// The number of bytes that it has written, including the bytes that it held before.
    pub written: u64,
    /// The outcome, if its part is over.
    pub over: Option<String>,
}

/// The outcome of a push.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PushReport {
    /// The transfer's id: the same for the same files.
    pub transfer: String,
    /// The number of files.
    pub files: usize,
    /// The number of their bytes.
    pub bytes: u64,
    /// The number of multicasts that it took.
    pub multicasts: u64,
    /// The number of groups: one, if nothing failed and no receiver was behind.
    pub groups: u64,
    /// The time that it took.
    pub took: Duration,
    /// Pipes, sockets and devices, which have no contents to copy.
    pub skipped: Vec<String>,
    /// Files that could not be read, and links that lead out.
    pub refused: Vec<String>,
    /// Each receiver, in the order in which they were named.
    pub receivers: Vec<ReceiverReport>,
    /// Whether the caller stopped it.
    pub interrupted: bool,
}

impl PushReport {
    /// Tells whether every receiver has everything that was named.
    pub fn is_complete(&self) -> bool {
        let complete = |receiver: &ReceiverReport| receiver.error.is_none() && receiver.failures == 0;
        !self.interrupted && self.refused.is_empty() && self.receivers.iter().all(complete)
    }
}

/// The outcome at a receiver.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReceiverReport {
    /// Its name.
    pub name: String,
    /// Files and links that are in place there, and verified.
    pub placed: u64,
    /// Names that existed, and were kept.
    pub kept: u64,
    /// Bytes that it held before.
    pub held: u64,
    /// Bytes that it fetched, as its fabric counted them; 0 if it did not finish.
    pub moved: u64,
    /// The number of files that failed.
    pub failures: u64,
    /// The first failures, each with a reason.
    pub failed: Vec<String>,
    /// The reason for which it did not finish.
    pub error: Option<String>,
}

/// Copies files to all receivers. Returns when all are done or given up, or soon after `stop` is set.
///
/// `watch` is called some ten times a second. The outcome of each receiver is in the report; an error means that
/// nothing was copied to any receiver.
pub fn push(
    options: &PushOptions,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&PushProgress),
) -> Result<PushReport, PushError> {
    let began = Instant::now();
    if options.segment_bytes == 0 || options.block_bytes == 0 {
        return Err(PushError::Usage("segments and blocks have at least one byte".to_owned()));
    }
    let Scan { manifest, sources, skipped, refused } = scan(&options.paths)?;
    let (mut fabric, finder) = open_fabric(options)?;
    let peers = Peers::dial(options, manifest.bytes(), &finder, fabric.node(), fabric.waker())?;
    for (node, address) in peers.addresses() {
        fabric.learn(node, &[address.to_owned()]);
    }
    let bulk = Bulk::new(fabric, Spin::Auto, options.to.len() + 1);
    let files = manifest.files();
    let bytes = manifest.bytes();
    let transfer = manifest.id(options.segment_bytes).to_string();
    let mut work = Transfer::new(options, bulk, peers, manifest, sources);
    let interrupted = work.run(stop, watch)?;
    let (receivers, multicasts, groups) = work.end();
    let took = began.elapsed();
    Ok(PushReport { transfer, files, bytes, multicasts, groups, took, skipped, refused, receivers, interrupted })
}

/// The way to find receivers.
enum Finder {
    /// The receivers' names, on this host.
    Names,
    /// The receivers' addresses.
    Network(Caller),
}

/// Opens the fabric of a source, whose node id is any that no node uses.
fn open_fabric(options: &PushOptions) -> Result<(MixedFabric, Finder), PushError> {
    if let Some(security) = &options.network {
        let (fabric, caller) = Caller::open(&options.cluster, security)?;
        return Ok((fabric, Finder::Network(caller)));
    }
    let mut attempts = 0;
    loop {
        let node = NodeId(fastrand::u32(..));
        match ShmFabric::open(ShmConfig::new(fabric_cluster(&options.cluster), node)) {
            Err(ShmError::NodeRuns { .. }) if attempts < 8 => attempts += 1,
            opened => return Ok((MixedFabric::new(node, Transport::Shm).with_shm(opened?), Finder::Names)),
        }
    }
}
