//! The source: finds files, and sends them to all receivers at once.

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
use crate::{bulk::Bulk, config::Spin};

/// The size of a segment, in bytes: one multicast. Nodes have three or four of them in memory, and on a shared-memory fabric
/// map those of their neighbours, so this bounds what they take.
const SEGMENT_BYTES: usize = 8 << 20;

/// The size of a block, in bytes.
const BLOCK_BYTES: usize = 1 << 20;

/// Over a network: a pipeline fills and drains with each segment, so it should have many blocks.
const NETWORK_SEGMENT_BYTES: usize = 16 << 20;
const NETWORK_BLOCK_BYTES: usize = 256 << 10;

/// What to copy, to whom and how.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Files and directories. Each is copied under its own name.
    pub paths: Vec<PathBuf>,
    /// The receivers' names; over a network their addresses, as `host:port`.
    pub to: Vec<String>,
    /// The cluster that they are in.
    pub cluster: String,
    /// Over a network: what protects it. None: the receivers are on this host.
    pub network: Option<Security>,
    /// How contents travel, unless racks are given.
    pub algorithm: Algorithm,
    /// Which receivers stand together, the first rack being the source's (it may be empty): contents then cross from rack
    /// to rack once. Receivers that are not named are in the first.
    pub racks: Option<Vec<Vec<String>>>,
    /// Go on where an earlier push of the same files was interrupted.
    pub resume: bool,
    /// Replace files of the same name.
    pub clobber: bool,
    /// Receivers write files to their disks before they put them in place.
    pub sync: bool,
    /// A receiver from which nothing was heard for so long is given up.
    pub silence: Duration,
    /// The size of a segment in bytes. Small ones are for tests.
    #[doc(hidden)]
    pub segment_bytes: usize,
    /// The size of a block in bytes.
    #[doc(hidden)]
    pub block_bytes: usize,
}

impl PushOptions {
    /// The defaults.
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

    /// The defaults for receivers at addresses, `host:port`.
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

/// Why nothing was copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// What was named can't be copied.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A receiver can't be reached.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Receivers and racks make no sense together.
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
        /// Why.
        cause: DialError,
    },
    /// Memory for the contents can't be had.
    #[error(transparent)]
    Memory(#[from] RegisterError),
    /// The system refused a thread.
    #[error("the system gives no thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl PushError {
    /// Whether what was asked for makes no sense, so that no further attempt could succeed.
    pub fn is_usage(&self) -> bool {
        match self {
            PushError::Usage(_) | PushError::Rendezvous(RendezvousError::Name { .. }) => true,
            PushError::Scan(error) => matches!(error, ScanError::SameName { .. } | ScanError::NoName { .. }),
            _ => false,
        }
    }
}

/// How far a push is.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PushProgress {
    /// How many bytes there are to copy, to each receiver.
    pub bytes: u64,
    /// Each receiver, in the order in which they were named.
    pub receivers: Vec<ReceiverProgress>,
}

/// How far a receiver is.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReceiverProgress {
    /// Its name.
    pub name: String,
    /// How many bytes it held before.
    pub held: u64,
    /// How many bytes it has written, those among them.
    pub written: u64,
    /// What became of it, if its part is over.
    pub over: Option<String>,
}

/// How a push went.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PushReport {
    /// The transfer's id: the same for the same files.
    pub transfer: String,
    /// How many files there were.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// How many multicasts that took.
    pub multicasts: u64,
    /// How many groups: one, if nothing failed and nobody was behind.
    pub groups: u64,
    /// How long it took.
    pub took: Duration,
    /// What has no contents to copy: pipes, sockets, devices.
    pub skipped: Vec<String>,
    /// What could not be read, and links that lead out.
    pub refused: Vec<String>,
    /// Each receiver, in the order in which they were named.
    pub receivers: Vec<ReceiverReport>,
    /// Whether the caller stopped it.
    pub interrupted: bool,
}

impl PushReport {
    /// Whether every receiver has everything that was named.
    pub fn is_complete(&self) -> bool {
        let complete = |receiver: &ReceiverReport| receiver.error.is_none() && receiver.failures == 0;
        !self.interrupted && self.refused.is_empty() && self.receivers.iter().all(complete)
    }
}

/// How it went at a receiver.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReceiverReport {
    /// Its name.
    pub name: String,
    /// Files and links that are in place there, and verified.
    pub placed: u64,
    /// Names that were there, and were kept.
    pub kept: u64,
    /// Bytes that it held before.
    pub held: u64,
    /// Bytes that it fetched, as its fabric counted them; 0 if it did not finish.
    pub moved: u64,
    /// How many files failed.
    pub failures: u64,
    /// The first of them, each with a reason.
    pub failed: Vec<String>,
    /// Why it did not finish.
    pub error: Option<String>,
}

/// Copies files to all receivers. Returns when all are done or given up, or soon after `stop` is set.
///
/// `watch` is called some ten times a second. What became of each receiver is in the report; an error means that nothing
/// was copied to anybody.
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
    let peers = Peers::dial(options, &finder, fabric.node(), fabric.waker())?;
    for (node, address) in peers.addresses() {
        fabric.learn(node, &[address.to_owned()]);
    }
    let bulk = Bulk::new(fabric, Spin::Auto, options.to.len() + 1);
    let files = manifest.files();
    let bytes = manifest.bytes();
    let transfer = manifest.id(options.segment_bytes).to_string();
    let mut work = Transfer::new(options, bulk, peers, manifest, sources)?;
    let interrupted = work.run(stop, watch)?;
    let (receivers, multicasts, groups) = work.end();
    let took = began.elapsed();
    Ok(PushReport { transfer, files, bytes, multicasts, groups, took, skipped, refused, receivers, interrupted })
}

/// How a source finds receivers.
enum Finder {
    /// By name, on this host.
    Names,
    /// By address.
    Network(Caller),
}

/// A source has any id that nobody uses.
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
