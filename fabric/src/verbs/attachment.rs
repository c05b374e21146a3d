//! The device and port that a fabric uses, and their choice.

use std::{fs, sync::Arc};

use rdma_sys::{ibv_device_cap_flags, ibv_mtu, ibv_port_attr, ibv_port_state};

use super::{
    address::{AddressChoice, CLASS, PortAddress},
    config::{VerbsConfig, VerbsDevice, VerbsError, mtu_bytes, mtu_code},
    device::{Context, Pd},
};

impl VerbsConfig {
    /// The device that a fabric with these settings would use, or the reason for which there can be none on this
    /// machine.
    pub fn probe(&self) -> Result<VerbsDevice, VerbsError> {
        self.check()?;
        let attachment = Attachment::open(self)?;
        Ok(VerbsDevice {
            device: attachment.device().to_owned(),
            port: attachment.port,
            gid_index: attachment.address.gid_index,
            mtu: mtu_bytes(attachment.mtu),
            max_message_bytes: attachment.max_message,
        })
    }
}

/// The device and port that a fabric uses.
pub(super) struct Attachment {
    pub(super) pd: Arc<Pd>,
    pub(super) port: u8,
    pub(super) link_layer: u8,
    /// The address of new endpoints.
    pub(super) address: PortAddress,
    choice: AddressChoice,
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
        let choice = AddressChoice::new(config);
        let Found { context, port, attributes, address } = choose(config, &choice)?;
        let device = context.name.clone();
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
        context.do_not_block().map_err(VerbsError::system("watch the device's reports"))?;
        let pd = Pd::new(&context).map_err(VerbsError::system("allocate a protection domain"))?;
        Ok(Attachment {
            pd,
            port,
            link_layer: attributes.link_layer,
            address,
            choice,
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

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.pd.context
    }

    /// Takes the port's present address for new endpoints. If there is none that fits, the earlier one stays.
    pub(super) fn refresh(&mut self) -> Result<(), VerbsError> {
        let attributes = self.context().port(self.port).map_err(VerbsError::system("ask the device for its port"))?;
        self.address = self.choice.choose(self.context(), self.port, &attributes)?;
        Ok(())
    }

    /// Whether the port is up.
    pub(super) fn is_up(&self) -> bool {
        self.context().port(self.port).is_ok_and(|attributes| is_active(&attributes))
    }

    /// Whether the port still has an address that an endpoint uses.
    pub(super) fn has(&self, address: &PortAddress) -> bool {
        let has_gid = self.context().gid(self.port, address.gid_index).is_ok_and(|gid| gid == address.gid);
        has_gid && self.context().port(self.port).is_ok_and(|attributes| attributes.lid == address.lid)
    }
}

/// A port that can be used.
struct Found {
    context: Arc<Context>,
    port: u8,
    attributes: ibv_port_attr,
    address: PortAddress,
}

fn choose(config: &VerbsConfig, choice: &AddressChoice) -> Result<Found, VerbsError> {
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
            .and_then(|context| choose_port(config, choice, &context));
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

/// The first port of a device that is up and has an address that fits.
fn choose_port(config: &VerbsConfig, choice: &AddressChoice, context: &Arc<Context>) -> Result<Found, VerbsError> {
    let limits = context.limits().map_err(VerbsError::system("ask the device for its limits"))?;
    let windows =
        ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0 | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    if limits.device_cap_flags & windows == 0 {
        return Err(VerbsError::NoWindows { device: context.name.clone() });
    }
    // The first port's refusal is reported if none will do.
    let mut refusal = None;
    for port in config.port.map_or(1..=limits.phys_port_cnt, |port| port..=port) {
        let Ok(attributes) = context.port(port) else { continue };
        if !is_active(&attributes) {
            continue;
        }
        match choice.choose(context, port, &attributes) {
            Ok(address) => return Ok(Found { context: Arc::clone(context), port, attributes, address }),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.unwrap_or_else(|| {
        let of = config.port.map(|port| format!(" {port}")).unwrap_or_default();
        VerbsError::NoPort { device: context.name.clone(), of }
    }))
}

fn is_active(attributes: &ibv_port_attr) -> bool {
    attributes.state == ibv_port_state::IBV_PORT_ACTIVE
}
