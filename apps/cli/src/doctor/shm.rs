//! Shared memory.

use squall::NodeId;
use squall_fabric::{
    Fabric, RegionKind,
    shm::{ShmConfig, ShmFabric},
};

use super::{finding::Area, limits};

/// The open files that a node needs: with some groups of some members it has some hundred regions, each with a
/// descriptor.
const FILES: u64 = 1024;

/// The mappings that a node may need: each region is mapped by its owner and by its peers.
const MAPS: u64 = 65_530;

pub(super) fn look() -> Area {
    let mut area = Area::new("shm", "nodes of this host");
    let cluster = format!("squall-doctor-{}", std::process::id());
    match ShmFabric::open(ShmConfig::new(cluster, NodeId(0))) {
        Ok(mut fabric) => {
            area.good("Unix sockets work, by which nodes meet");
            match fabric.register(RegionKind::Polled, 1 << 20) {
                Ok(_) => area.good("memory can be shared (memfd)"),
                Err(error) => {
                    area.bad(format!("no memory could be shared: {error}"), "allow memfd_create in this container");
                }
            }
        }
        Err(error) => area.bad(
            error.to_string(),
            "allow memfd_create, eventfd and Unix sockets to this process (seccomp, container profile)",
        ),
    }
    match limits::of_process("Max open files") {
        Some(files) if files < FILES => area.warn(
            format!("this process may open {files} files; each region of memory takes one"),
            format!("raise it with `ulimit -n {FILES}`, or LimitNOFILE= in the service's unit"),
        ),
        Some(files) => area.good(format!("this process may open {files} files")),
        None => {}
    }
    if let Some(maps) = limits::number("/proc/sys/vm/max_map_count").filter(|&maps| maps < MAPS) {
        area.warn(
            format!("a process may have {maps} mappings; each region of each peer takes one"),
            format!("raise it with `sysctl -w vm.max_map_count={MAPS}`"),
        );
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_works_where_the_tests_run() {
        let area = look();
        assert!(area.usable(), "{:?}", area.findings);
    }
}
