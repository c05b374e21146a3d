//! The source, which finds files, and sends them to all receivers at once.

mod dial;
mod peers;
mod reader;
mod transfer;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
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

use self::{
    dial::{Dialer, Finder},
    peers::Peers,
    transfer::{PushWork, Transfer},
};
use super::{
    attributes::AttributeKinds,
    control::{Caller, RendezvousError, fabric_cluster},
    dress::{Keep, Losses},
    filter::{BadPattern, Filter, Patterns},
    scan::{KeptAttributes, LinkPolicy, Scan, ScanError, ScanOptions, scan},
    sink::{SPARED, SinkOptions},
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
    /// The algorithm by which contents travel, unless racks are given. None: over a network the pipeline. On one host
    /// none travel then: receivers copy from the source's open files, as far as they are in its mount namespace.
    pub algorithm: Option<Algorithm>,
    /// The receivers of each rack, the first rack being the source's (it may be empty): contents then cross from rack
    /// to rack once. Receivers that are not named are in the first.
    pub racks: Option<Vec<Vec<String>>>,
    /// Whether to copy nothing if a receiver is not there. Otherwise it may come as long as others are served.
    pub require_all: bool,
    /// The properties of files that are copied, besides contents, modes and times.
    pub attributes: KeptAttributes,
    /// The user and group that all files get, in place of their own, by their ids. They count if owners are kept.
    pub owner: Option<(u32, u32)>,
    /// The treatment of symbolic links that lead out of what is copied.
    pub links: LinkPolicy,
    /// The names that are left out.
    pub patterns: Patterns,
    /// Whether to replace files of the same name.
    pub clobber: bool,
    /// Whether to compare the contents of files whose size and time are the same, and to hash what is copied at both
    /// ends, on one host too.
    pub checksum: bool,
    /// Whether receivers remove, in the directories that are copied, what the source does not have.
    pub delete: bool,
    /// Whether to look only what there would be to do.
    pub dry_run: bool,
    /// The most bytes to send per second; on one host, the most that each receiver copies.
    pub limit_rate: Option<u64>,
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
            algorithm: None,
            racks: None,
            require_all: false,
            attributes: KeptAttributes::default(),
            owner: None,
            links: LinkPolicy::Keep,
            patterns: Patterns::default(),
            clobber: true,
            checksum: false,
            delete: false,
            dry_run: false,
            limit_rate: None,
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
            segment_bytes: NETWORK_SEGMENT_BYTES,
            block_bytes: NETWORK_BLOCK_BYTES,
            ..PushOptions::new(paths, to, cluster)
        }
    }
}

impl PushOptions {
    fn keep(&self) -> Keep {
        let KeptAttributes { owners, lists, attributes, .. } = self.attributes;
        Keep { owners, attributes: AttributeKinds { lists, others: attributes } }
    }

    /// Tells whether receivers copy from the source's open files, if they are where they can.
    fn hands_files_out(&self) -> bool {
        self.network.is_none() && self.algorithm.is_none() && self.racks.is_none() && !self.checksum && !self.dry_run
    }

    /// Returns the algorithm by which contents travel, unless racks are given.
    fn algorithm(&self) -> Algorithm {
        self.algorithm.clone().unwrap_or_else(|| match self.network {
            Some(_) => Algorithm::BinomialPipeline,
            None => default_algorithm(&Medium::SharedMemory),
        })
    }

    /// Returns the options for receivers, which spare some names.
    fn sink(&self, spared: Vec<Vec<u8>>) -> SinkOptions {
        let PushOptions { sync, clobber, checksum, delete, dry_run, limit_rate, .. } = *self;
        let (keep, patterns) = (self.keep(), self.patterns.clone());
        SinkOptions { sync, clobber, checksum, delete, dry_run, limit_rate, keep, patterns, spared }
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
    /// A pattern is none.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
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
            PushError::Usage(_) | PushError::Pattern(_) | PushError::Rendezvous(RendezvousError::Name { .. }) => true,
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
    /// The transfer's id: the same for the same names.
    pub transfer: String,
    /// The number of files.
    pub files: usize,
    /// The number of their bytes, holes included.
    pub bytes: u64,
    /// The number of multicasts that it took.
    pub multicasts: u64,
    /// The number of those that receivers sent in the source's place, to receivers that came late or fell behind.
    pub relayed: u64,
    /// The number of groups: one, if all receivers lacked the same, and none failed or was missing; none, if all copied
    /// from the source's open files.
    pub groups: u64,
    /// The time that it took.
    pub took: Duration,
    /// Names that were left out as asked: devices, pipes and sockets, and links that lead out.
    pub skipped: Vec<String>,
    /// Files that could not be read.
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
    /// Files, links and devices that were put in place there.
    pub placed: u64,
    /// Files, links and devices that were the same before.
    pub unchanged: u64,
    /// Names that existed, and were kept.
    pub kept: u64,
    /// Names that were removed; in a dry run, that would be.
    pub deleted: u64,
    /// The properties that could not be kept of files that are in place.
    pub losses: CopyLosses,
    /// Bytes that it held before.
    pub held: u64,
    /// Bytes that it lacked, and that were written; in a dry run, that would be.
    pub written: u64,
    /// Files that it lacked, wholly or in part.
    pub lacked: u64,
    /// Bytes that it copied, or fetched, as its fabric counted them; 0 if it did not finish.
    pub moved: u64,
    /// The number of files that failed.
    pub failures: u64,
    /// The first failures, each with a reason.
    pub failed: Vec<String>,
    /// The reason for which it did not finish.
    pub error: Option<String>,
}

/// The properties that a receiver could not keep of files that are in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyLosses {
    /// Files of which the user or group could not be kept.
    pub owners: u64,
    /// Files whose set-id bits are gone, since their owner could not be kept.
    pub set_ids: u64,
    /// Access control lists. The files' groups have no more rights than by the list.
    pub lists: u64,
    /// Other extended attributes.
    pub attributes: u64,
    /// The first of them, each with its file and the reason.
    pub told: Vec<String>,
}

impl From<Losses> for CopyLosses {
    fn from(Losses { owners, set_ids, lists, attributes, told }: Losses) -> CopyLosses {
        CopyLosses { owners, set_ids, lists, attributes, told }
    }
}

/// Copies files to all receivers. Returns when all are done or given up, or soon after `stop` is set.
///
/// `watch` is called some ten times a second. The outcome of each receiver is in the report. An error means that
/// nothing was copied, or that this process could not go on, without memory or threads; what has come is kept then.
pub fn push(
    options: &PushOptions,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&PushProgress),
) -> Result<PushReport, PushError> {
    let began = Instant::now();
    if options.segment_bytes == 0 || options.block_bytes == 0 {
        return Err(PushError::Usage("segments and blocks have at least one byte".to_owned()));
    }
    let filter = Filter::new(&options.patterns)?;
    let how = ScanOptions { keep: options.attributes, owner: options.owner, links: options.links, filter: &filter };
    let Scan { manifest, sources, skipped, spared, mut refused } = scan(&options.paths, &how)?;
    if options.delete && spared.len() > SPARED {
        refused.push(format!("nothing is removed: {} names are left out, and at most {SPARED} can be", spared.len()));
    }
    // What could not be read looks like what is not there.
    let careful = (options.delete && !refused.is_empty()).then(|| PushOptions { delete: false, ..options.clone() });
    let options = careful.as_ref().unwrap_or(options);
    let sink = options.sink(if options.delete { spared } else { Vec::new() });
    let (fabric, finder) = open_fabric(options)?;
    let dialer = Dialer::new(finder, &options.cluster, &options.to);
    let peers = Peers::dial(options, Arc::clone(&manifest), dialer, fabric.node(), fabric.waker())?;
    let bulk = Bulk::new(fabric, Spin::Auto, options.to.len() + 1);
    let (files, bytes, transfer) = (manifest.files(), manifest.bytes(), manifest.id().to_string());
    let mut work = Transfer::new(options, sink, bulk, peers, manifest, sources)?;
    let interrupted = work.run(stop, watch)?;
    let (receivers, PushWork { multicasts, relayed, groups }) = work.end();
    let took = began.elapsed();
    Ok(PushReport {
        transfer,
        files,
        bytes,
        multicasts,
        relayed,
        groups,
        took,
        skipped,
        refused,
        receivers,
        interrupted,
    })
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
