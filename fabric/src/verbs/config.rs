//! The settings of a verbs fabric, and the errors of opening one.

use std::io;

use rdma_sys::ibv_mtu;

use super::memory;
use crate::{
    INLINE_BYTES,
    net::{NetConfig, NetError},
};

/// The deepest queue that an endpoint may have.
pub const MAX_QUEUE_DEPTH: usize = 1 << 14;

/// The highest service level: verbs count it in 4 bits.
const MAX_SERVICE_LEVEL: u8 = 15;

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
    /// The place of the port's address in its table. None takes the RoCE v2 address that the node's port listens at; if
    /// that listens at loopback or unspecified addresses only, any, of IPv4 where there is one. On InfiniBand it takes
    /// the first.
    pub gid_index: Option<u8>,
    /// The traffic class of all packets with a GID: on RoCE the byte of the IP header that holds DSCP and ECN.
    pub traffic_class: u8,
    /// The service level of all packets, 0 to 15: of InfiniBand's virtual lanes, or the priority of VLANs on RoCE.
    pub service_level: u8,
    /// The partition by its key (P_Key). None takes the first of the port's table.
    pub partition_key: Option<u16>,
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
            traffic_class: 0,
            service_level: 0,
            partition_key: None,
            mtu: None,
            queue_depth: 512,
            inline_bytes: INLINE_BYTES,
            kept_bytes: 256 << 20,
        }
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
        if self.service_level > MAX_SERVICE_LEVEL {
            return Err(VerbsError::ServiceLevel { level: self.service_level });
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
    /// The port has no address that the node listens at.
    #[error(
        "port {port} of the RDMA device {device} has no RoCE v2 address that the node listens at ({listens}), but {present}: \
         let the node listen at one of these, or choose by `fabric.verbs.gid_index`"
    )]
    NoGidOf {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The node's addresses.
        listens: String,
        /// The port's addresses, with their indices.
        present: String,
    },
    /// The port is not in the partition.
    #[error(
        "port {port} of the RDMA device {device} is not in the partition {wanted:#06x}, but in {present}: correct \
         `fabric.verbs.partition_key`, or let the subnet manager add the port"
    )]
    NoPartition {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The key that was asked for.
        wanted: u16,
        /// The keys of the port's table.
        present: String,
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
    /// A service level that there is not.
    #[error("a service level of {level} can't be had: take 0 to {MAX_SERVICE_LEVEL}")]
    ServiceLevel {
        /// The level that was asked for.
        level: u8,
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

/// The code by which verbs name a packet size.
pub(super) fn mtu_code(mtu: u32) -> Option<ibv_mtu::Type> {
    (1..=5).find(|code| mtu_bytes(*code) == mtu)
}

/// The packet size of a code of verbs.
pub(super) fn mtu_bytes(code: ibv_mtu::Type) -> u32 {
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
}
