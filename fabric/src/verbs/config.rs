//! The settings of a verbs fabric, the choice of its device, and the errors of opening one.

use std::{fs, io, sync::Arc};

use rdma_sys::{ibv_device_cap_flags, ibv_mtu, ibv_port_attr, ibv_port_state};

use super::{
    device::{Context, Pd},
    memory,
    queue::INFINIBAND,
};
use crate::{
    INLINE_BYTES,
    net::{NetConfig, NetError},
};

/// The deepest queue that an endpoint may have.
pub const MAX_QUEUE_DEPTH: usize = 1 << 14;

/// The settings of a [`VerbsFabric`](super::VerbsFabric).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerbsConfig {
    /// The node's port, where endpoints meet.
    pub net: NetConfig,
    /// The device's name, as `rdma link` shows it. None takes the first that has an active port.
    pub device: Option<String>,
    /// The device's port, counted from 1. None takes the first that is active.
    pub port: Option<u8>,
    /// The place of the port's address in its table. None takes a RoCE v2 address, of IPv4 where there is one; on
    /// InfiniBand the first.
    pub gid_index: Option<u8>,
    /// The size of the largest packet: 256, 512, 1024, 2048 or 4096 bytes. None takes the port's. The smaller side's
    /// counts.
    pub mtu: Option<u32>,
    /// The number of writes, reads and sends, and again the number of receives, that an endpoint may have outstanding:
    /// 1 to [`MAX_QUEUE_DEPTH`].
    pub queue_depth: usize,
    /// The number of bytes that requests carry themselves, at most [`INLINE_BYTES`]; a device may grant fewer. Longer
    /// bytes are fetched from registered memory.
    pub inline_bytes: usize,
    /// The number of bytes of unused memory that stay registered for later regions.
    pub kept_bytes: usize,
}

impl VerbsConfig {
    /// The defaults, for a node with that port.
    pub fn new(net: NetConfig) -> VerbsConfig {
        VerbsConfig {
            net,
            device: None,
            port: None,
            gid_index: None,
            mtu: None,
            queue_depth: 512,
            inline_bytes: INLINE_BYTES,
            kept_bytes: 256 << 20,
        }
    }

    /// The device that a fabric with these settings would use, or the reason for which there can be none on this
    /// machine.
    pub fn probe(&self) -> Result<VerbsDevice, VerbsError> {
        self.check()?;
        let attachment = Attachment::open(self)?;
        Ok(VerbsDevice {
            device: attachment.device().to_owned(),
            port: attachment.port,
            gid_index: attachment.gid_index,
            mtu: mtu_bytes(attachment.mtu),
            max_message_bytes: attachment.max_message,
        })
    }

    pub(super) fn check(&self) -> Result<(), VerbsError> {
        if self.queue_depth == 0 || self.queue_depth > MAX_QUEUE_DEPTH {
            return Err(VerbsError::QueueDepth { depth: self.queue_depth, most: MAX_QUEUE_DEPTH });
        }
        if let Some(mtu) = self.mtu
            && mtu_code(mtu).is_none()
        {
            return Err(VerbsError::Mtu { mtu });
        }
        Ok(())
    }
}

/// A device that a verbs fabric can use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsDevice {
    /// Its name.
    pub device: String,
    /// Its port, counted from 1.
    pub port: u8,
    /// The place of the port's address in its table.
    pub gid_index: u8,
    /// The size of the largest packet, in bytes.
    pub mtu: u32,
    /// The length of the longest message, in bytes.
    pub max_message_bytes: usize,
}

/// The reason for which a verbs fabric could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The machine has no RDMA device.
    #[error(
        "this machine has no RDMA device: load the driver of its card; without a card, software RDMA does: \
         `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev <interface>`"
    )]
    NoDevice,
    /// The kernel has the device, but programs can't use it.
    #[error(
        "this machine has the RDMA device {device}, but programs can't use it: load `ib_uverbs`, and install the \
         device's part of libibverbs (Debian: ibverbs-providers)"
    )]
    NoProvider {
        /// The device.
        device: String,
    },
    /// The machine has other devices.
    #[error("there is no RDMA device {wanted:?}: this machine has {present}")]
    NoSuchDevice {
        /// The name that was asked for.
        wanted: String,
        /// The names of the devices that there are.
        present: String,
    },
    /// The process may not open the device.
    #[error(
        "the RDMA device {device} could not be opened: {cause}; give this user access to /dev/infiniband/uverbs*, as the \
         distribution's `rdma` group or udev rules do, and load `ib_uverbs` if there is no such file"
    )]
    Open {
        /// The device.
        device: String,
        /// The system's message.
        cause: String,
    },
    /// A device by which one peer can't be kept out of what another may reach.
    #[error(
        "the RDMA device {device} has no memory windows of type 2, which keep each peer to what was exposed to it: choose \
         another device, or TCP"
    )]
    NoWindows {
        /// The device.
        device: String,
    },
    /// A device of which no port is up.
    #[error(
        "the RDMA device {device} has no active port{of}: plug it in, and set its interface up (`ip link set <interface> up`)"
    )]
    NoPort {
        /// The device.
        device: String,
        /// The port that was asked for, as a part of a sentence.
        of: String,
    },
    /// The port has no usable address.
    #[error(
        "port {port} of the RDMA device {device} has no RoCE v2 address: give its interface an IP address, or set \
         `fabric.verbs.gid_index` to one of another kind (/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types)"
    )]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The port has no address at that index.
    #[error(
        "port {port} of the RDMA device {device} has no address at GID index {index}: {cause}; leave \
         `fabric.verbs.gid_index` out, or take one that `squall doctor` shows"
    )]
    Gid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index that was asked for.
        index: u8,
        /// The system's message.
        cause: String,
    },
    /// A packet size that there is not.
    #[error("an MTU of {mtu} bytes can't be had: take 256, 512, 1024, 2048 or 4096")]
    Mtu {
        /// The size that was asked for.
        mtu: u32,
    },
    /// The port's packets are smaller.
    #[error(
        "an MTU of {mtu} bytes can't be had on the RDMA device {device}, whose packets have {active}: raise its interface's \
         MTU (RoCE packets need some 100 bytes besides), or take a smaller one"
    )]
    MtuTooLarge {
        /// The device.
        device: String,
        /// The size that was asked for.
        mtu: u32,
        /// The size of the port's packets.
        active: u32,
    },
    /// The queue depth is zero or too large.
    #[error("a queue depth of {depth} can't be had: take 1 to {most}")]
    QueueDepth {
        /// The depth that was asked for.
        depth: usize,
        /// The greatest depth of any.
        most: usize,
    },
    /// The device's queues are shorter.
    #[error(
        "a queue depth of {depth} can't be had on the RDMA device {device}, whose queues take {most}: choose another \
         device, or set `VerbsConfig::queue_depth`"
    )]
    QueuesTooShort {
        /// The device.
        device: String,
        /// The depth that was asked for.
        depth: usize,
        /// The greatest depth there.
        most: usize,
    },
    /// The node's port could not be opened.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The system refused something that the fabric can't do without.
    #[error("the verbs fabric could not {attempt}: {cause}")]
    System {
        /// The attempt that failed.
        attempt: &'static str,
        /// The system's message, and the remedy.
        cause: String,
    },
}

impl VerbsError {
    /// Makes an error of the system's, for `map_err`.
    pub(super) fn system(attempt: &'static str) -> impl FnOnce(io::Error) -> VerbsError {
        move |error| VerbsError::System { attempt, cause: format!("{error}{}", memory::hint(&error)) }
    }
}

/// The device and port that a fabric uses.
pub(super) struct Attachment {
    pub(super) pd: Arc<Pd>,
    pub(super) port: u8,
    pub(super) attributes: ibv_port_attr,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) mtu: ibv_mtu::Type,
    /// The limit of a queue pair's queues, in work requests.
    pub(super) max_requests: usize,
    /// The limit of a completion queue, in entries.
    pub(super) max_entries: usize,
    /// The limits of reads that are under way, from here and to here.
    pub(super) reads: u8,
    pub(super) served_reads: u8,
    /// The limit of one message, in bytes.
    pub(super) max_message: usize,
}

/// The most reads of one endpoint that are under way at a time; a card that could do more would take memory for it.
const MAX_READS: i32 = 16;

/// The longest message whatever the port says: lengths are u32, and some devices count 2^31 as 0.
const MAX_MESSAGE: usize = 1 << 30;

impl Attachment {
    /// Opens the device and port that the configuration asks for.
    pub(super) fn open(config: &VerbsConfig) -> Result<Attachment, VerbsError> {
        let (context, port, attributes) = choose(config)?;
        let device = context.name.clone();
        let (gid_index, gid) = choose_gid(config, &context, port, &attributes)?;
        let mtu = match config.mtu {
            None => attributes.active_mtu,
            Some(mtu) => {
                let code = mtu_code(mtu).ok_or(VerbsError::Mtu { mtu })?;
                if code > attributes.active_mtu {
                    let active = mtu_bytes(attributes.active_mtu);
                    return Err(VerbsError::MtuTooLarge { device, mtu, active });
                }
                code
            }
        };
        let limits = context.limits().map_err(VerbsError::system("ask the device for its limits"))?;
        let pd = Pd::new(&context).map_err(VerbsError::system("allocate a protection domain"))?;
        Ok(Attachment {
            pd,
            port,
            attributes,
            gid_index,
            gid,
            mtu,
            max_requests: usize::try_from(limits.max_qp_wr).unwrap_or(0),
            max_entries: usize::try_from(limits.max_cqe).unwrap_or(0),
            reads: limits.max_qp_init_rd_atom.clamp(1, MAX_READS) as u8,
            served_reads: limits.max_qp_rd_atom.clamp(1, MAX_READS) as u8,
            max_message: usize::try_from(attributes.max_msg_sz).unwrap_or(MAX_MESSAGE).clamp(1, MAX_MESSAGE),
        })
    }

    pub(super) fn device(&self) -> &str {
        &self.pd.context.name
    }
}

fn choose(config: &VerbsConfig) -> Result<(Arc<Context>, u8, ibv_port_attr), VerbsError> {
    let wanted = |name: &str| config.device.as_deref().is_none_or(|device| device == name);
    let devices = Context::open_all(wanted).map_err(|error| match error.raw_os_error() {
        // libibverbs returns ENOSYS where the kernel's part is not loaded.
        Some(38) => no_device(config),
        _ => VerbsError::system("list the RDMA devices")(error),
    })?;
    // The first device's refusal is reported if none will do.
    let mut refusal = None;
    for (device, context) in devices {
        let tried = context
            .map_err(|error| VerbsError::Open { device: device.clone(), cause: error.to_string() })
            .and_then(|context| choose_port(config, &context).map(|(port, attributes)| (context, port, attributes)));
        match tried {
            Ok(found) => return Ok(found),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.unwrap_or_else(|| no_device(config)))
}

/// The error for a machine on which programs can use no device, or none of the name that is asked for.
fn no_device(config: &VerbsConfig) -> VerbsError {
    let names: Vec<String> = fs::read_dir(CLASS)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let Some(first) = names.first() else { return VerbsError::NoDevice };
    let device = config.device.as_ref().unwrap_or(first).clone();
    match names.contains(&device) {
        true => VerbsError::NoProvider { device },
        false => VerbsError::NoSuchDevice { wanted: device, present: names.join(", ") },
    }
}

fn choose_port(config: &VerbsConfig, context: &Context) -> Result<(u8, ibv_port_attr), VerbsError> {
    let limits = context.limits().map_err(VerbsError::system("ask the device for its limits"))?;
    let ports = config.port.map_or(1..=limits.phys_port_cnt, |port| port..=port);
    let mut found = ports.filter_map(|port| Some((port, context.port(port).ok()?)));
    let windows =
        ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    if limits.device_cap_flags & windows.0 == 0 {
        return Err(VerbsError::NoWindows { device: context.name.clone() });
    }
    found.find(|(_, attributes)| attributes.state == ibv_port_state::IBV_PORT_ACTIVE).ok_or_else(|| {
        let of = config.port.map(|port| format!(" {port}")).unwrap_or_default();
        VerbsError::NoPort { device: context.name.clone(), of }
    })
}

/// The directory in which the kernel describes RDMA devices.
const CLASS: &str = "/sys/class/infiniband";

fn choose_gid(
    config: &VerbsConfig,
    context: &Context,
    port: u8,
    attributes: &ibv_port_attr,
) -> Result<(u8, [u8; 16]), VerbsError> {
    let device = || context.name.clone();
    let refused = |index, error: io::Error| VerbsError::Gid { device: device(), port, index, cause: error.to_string() };
    let given = config.gid_index.or((attributes.link_layer == INFINIBAND).then_some(0));
    if let Some(index) = given {
        return match context.gid(port, index) {
            Ok(gid) if gid != [0; 16] => Ok((index, gid)),
            Ok(_) => Err(refused(index, io::Error::other("the entry is empty"))),
            Err(error) => Err(refused(index, error)),
        };
    }
    let mut best: Option<(u8, u8, [u8; 16])> = None;
    for index in 0..u8::try_from(attributes.gid_tbl_len).unwrap_or(u8::MAX) {
        // Entries that are not in use can't be read.
        let kind = fs::read_to_string(format!("{CLASS}/{}/ports/{port}/gid_attrs/types/{index}", context.name));
        if !kind.is_ok_and(|kind| kind.trim() == "RoCE v2") {
            continue;
        }
        let Ok(gid) = context.gid(port, index) else { continue };
        let rank = gid_rank(&gid);
        if rank > 0 && best.is_none_or(|(least, ..)| rank > least) {
            best = Some((rank, index, gid));
        }
    }
    let (_, index, gid) = best.ok_or_else(|| VerbsError::NoGid { device: device(), port })?;
    Ok((index, gid))
}

/// The rank of a RoCE v2 address: routed IPv4 is best, then routed IPv6, then one of the local link; zeros are no
/// address.
fn gid_rank(gid: &[u8; 16]) -> u8 {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 3,
        [0xfe, 0x80, ..] => 1,
        gid if *gid == [0; 16] => 0,
        _ => 2,
    }
}

/// The code by which verbs name a packet size.
fn mtu_code(mtu: u32) -> Option<ibv_mtu::Type> {
    (1..=5).find(|code| mtu_bytes(*code) == mtu)
}

/// The packet size of a code of verbs.
fn mtu_bytes(code: ibv_mtu::Type) -> u32 {
    128 << code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_have_the_numbers_of_verbs() {
        assert_eq!(mtu_code(256), Some(ibv_mtu::IBV_MTU_256));
        assert_eq!(mtu_code(4096), Some(ibv_mtu::IBV_MTU_4096));
        assert_eq!([0, 128, 1500, 8192].map(mtu_code), [None; 4]);
    }

    #[test]
    fn routed_addresses_come_before_those_of_the_local_link() {
        let mut v4 = [0; 16];
        v4[10..].copy_from_slice(&[0xff, 0xff, 10, 1, 0, 1]);
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        let ranks = [v4, [0x20; 16], link_local, [0; 16]].map(|gid| gid_rank(&gid));
        assert_eq!(ranks, [3, 2, 1, 0]);
    }
}
