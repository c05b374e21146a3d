//! RDMA devices.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
};

#[cfg(feature = "verbs")]
use squall::Config;

#[cfg(feature = "verbs")]
use super::finding::Level;
use super::{card, finding::Area, limits};

/// The memory that a node with small groups registers, in bytes. A file or a large message may need much more.
const LOCKED: u64 = 64 << 20;

/// The directories in which the system shows its devices.
struct DevicePaths {
    class: PathBuf,
    devices: PathBuf,
}

pub(super) fn look() -> Area {
    let paths = DevicePaths { class: "/sys/class/infiniband".into(), devices: "/dev/infiniband".into() };
    #[cfg_attr(not(feature = "verbs"), expect(unused_mut))]
    let mut area = look_at(&paths, cfg!(feature = "verbs"), limits::of_process("Max locked memory"));
    #[cfg(feature = "verbs")]
    if area.usable() {
        let node = Config::builder("doctor", 0).members([0]).build().expect("it is possible");
        look_at_choice(&mut area, "without a [fabric.verbs] a node", &node);
    }
    area
}

/// Opens the device that `config` chooses. `who` names its user in the finding.
#[cfg(feature = "verbs")]
pub(super) fn look_at_choice(area: &mut Area, who: &str, config: &Config) {
    match config.probe_verbs() {
        Ok(found) => area.good(format!(
            "{who} takes {}, port {}, GID index {}, in packets of {} bytes",
            found.device, found.port, found.gid_index, found.mtu
        )),
        Err(error) => area.push(Level::Bad, error.to_string(), None),
    }
}

/// Looks at the devices. `locked` is the memory that this process may lock, in bytes.
fn look_at(paths: &DevicePaths, built: bool, locked: Option<u64>) -> Area {
    let mut area = Area::new("verbs", "hosts with RDMA");
    if built {
        area.good("this program was built with it");
    } else {
        area.bad(
            "this program was built without it",
            "build it with `cargo build --release -p squall-cli --features verbs` (Debian: apt install libibverbs-dev librdmacm-dev \
             libclang-dev pkg-config)",
        );
    }
    let names = entries(&paths.class);
    if names.is_empty() {
        area.bad(
            "there is no RDMA device",
            "load the driver of the card; or use Soft-RoCE over any network: `modprobe rdma_rxe`, then `rdma link add rxe0 type \
             rxe netdev eth0` (Debian: apt install rdma-core iproute2)",
        );
        return area;
    }
    let mut active = 0;
    for name in &names {
        active += usize::from(look_at_device(&mut area, name, &paths.class.join(name)));
    }
    if active == 0 {
        area.bad(
            "no device has an active port",
            "bring its link up: `ip link set DEV up`, and check the cable and the switch",
        );
    }
    look_at_access(&mut area, &paths.devices);
    match locked {
        Some(bytes) if bytes < LOCKED => area.warn(
            format!(
                "this process may lock {} KiB of memory, and all memory that a device reaches is locked",
                bytes >> 10
            ),
            "raise it with `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the service's unit",
        ),
        Some(u64::MAX) => area.good("this process may lock all memory"),
        Some(bytes) => area.good(format!("this process may lock {} MiB of memory", bytes >> 20)),
        None => {}
    }
    area
}

/// Looks at a device's ports. Returns whether one of them can be used.
fn look_at_device(area: &mut Area, name: &str, device: &Path) -> bool {
    let mut active = false;
    for number in entries(&device.join("ports")) {
        let port = device.join("ports").join(&number);
        let state = text(&port.join("state"));
        // «4: ACTIVE»
        let is_active = state.starts_with("4:");
        let layer = text(&port.join("link_layer"));
        if !is_active {
            let state = state.split_once(": ").map_or(&*state, |(_, word)| word);
            area.warn(
                format!("{name}, port {number}: {layer}, {state}"),
                "its link is down: `ip link set DEV up`, or check the cable",
            );
            continue;
        }
        active = true;
        let rate = text(&port.join("rate"));
        let versions = gid_types(&port);
        match versions.iter().find(|(_, kind)| kind.contains("RoCE v2")) {
            Some((index, _)) => {
                area.good(format!("{name}, port {number}: {layer}, active, {rate}, RoCE v2 at GID index {index}"));
            }
            None if layer == "Ethernet" => area.warn(
                format!("{name}, port {number}: {layer}, active, {rate}, without a GID of RoCE v2"),
                "give the interface an IP address; RoCE v1 does not cross routers",
            ),
            None => area.good(format!("{name}, port {number}: {layer}, active, {rate}")),
        }
        card::look(area, name, device, &port, &card::run);
    }
    active
}

/// The indices and types of a port's GIDs.
fn gid_types(port: &Path) -> Vec<(u32, String)> {
    let mut types: Vec<(u32, String)> = entries(&port.join("gid_attrs/types"))
        .into_iter()
        .filter_map(|index| Some((index.parse().ok()?, text(&port.join("gid_attrs/types").join(&index)))))
        .filter(|(_, kind)| !kind.is_empty())
        .collect();
    types.sort_unstable();
    types
}

/// Whether this user may open the devices.
fn look_at_access(area: &mut Area, devices: &Path) {
    let names: Vec<String> = entries(devices).into_iter().filter(|name| name.starts_with("uverbs")).collect();
    if names.is_empty() {
        area.bad(
            format!("there is no {}/uverbs0", devices.display()),
            "load the module: `modprobe ib_uverbs`; in a container, pass /dev/infiniband in",
        );
    }
    for name in names {
        let path = devices.join(name);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(_) => area.good(format!("{} can be opened", path.display())),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => area.bad(
                format!("{} may not be opened by this user", path.display()),
                "add the user to the group that owns it (often `rdma`), or correct the udev rule",
            ),
            Err(error) => {
                area.bad(format!("{} can't be opened: {error}", path.display()), "see `dmesg` for its driver");
            }
        }
    }
}

fn entries(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// A file's only line; empty if it can't be read. A GID that is not set reads as an error.
fn text(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A system's devices, as far as the tests need them.
    struct System(TempDir);

    impl System {
        fn new() -> System {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("class")).unwrap();
            System(root)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn with_port(state: &str) -> System {
            let system = System::new();
            let port = "class/rxe0/ports/1";
            system.file(&format!("{port}/state"), state);
            system.file(&format!("{port}/link_layer"), "Ethernet\n");
            system.file(&format!("{port}/rate"), "2.5 Gb/sec (1X SDR)\n");
            system.file(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1\n");
            system.file(&format!("{port}/gid_attrs/types/1"), "RoCE v2\n");
            system.file("dev/uverbs0", "");
            system
        }

        fn look(&self, locked: u64) -> Area {
            look_at(
                &DevicePaths { class: self.0.path().join("class"), devices: self.0.path().join("dev") },
                true,
                Some(locked),
            )
        }
    }

    #[test]
    fn without_a_device_it_says_how_to_get_one() {
        let area = System::new().look(u64::MAX);
        assert!(!area.usable() && area.lines().join("\n").contains("rdma_rxe"));
    }

    #[test]
    fn an_active_port_with_a_gid_of_roce_v2_can_be_used() {
        let system = System::with_port("4: ACTIVE\n");
        let area = system.look(u64::MAX);
        assert!(area.usable(), "{:?}", area.findings);
        assert!(
            area.lines()
                .join("\n")
                .contains("rxe0, port 1: Ethernet, active, 2.5 Gb/sec (1X SDR), RoCE v2 at GID index 1")
        );
        let said = system.look(8 << 20).lines().join("\n");
        assert!(said.contains("may lock 8192 KiB") && said.contains("ulimit -l"), "{said}");
    }

    #[test]
    fn a_port_that_is_down_can_t_be_used() {
        let area = System::with_port("1: DOWN\n").look(u64::MAX);
        assert!(!area.usable());
        let said = area.lines().join("\n");
        assert!(said.contains("Ethernet, DOWN") && said.contains("no device has an active port"), "{said}");
    }

    #[test]
    fn a_program_without_it_says_how_to_build_one_that_has_it() {
        let system = System::with_port("4: ACTIVE\n");
        let area = look_at(
            &DevicePaths { class: system.0.path().join("class"), devices: system.0.path().join("dev") },
            false,
            None,
        );
        assert!(!area.usable() && area.lines().join("\n").contains("--features verbs"));
    }
}
