//! Two nodes of this process, each on a device of its own where there are several.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Region, RemoteRegion, Time,
    net::NetConfig,
    verbs::{VerbsConfig, VerbsError, VerbsFabric},
};

/// The longest time of any wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const TAG: GroupTag = GroupTag { layer: 9, group: 1, epoch: 1 };

/// The names of this machine's devices, in order.
pub(crate) fn devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether there is a device to run on.
pub(crate) fn is_there() -> bool {
    let there = !devices().is_empty();
    let demanded = std::env::var("SQUALL_VERBS").is_ok_and(|value| value == "1");
    assert!(there || !demanded, "SQUALL_VERBS=1, but: {}", VerbsError::NoDevice);
    if !there {
        eprintln!("skipped: {}", VerbsError::NoDevice);
    }
    there
}

/// The settings of a node of a cluster that no other test has.
pub(crate) fn config(node: u32, cluster: &str) -> VerbsConfig {
    let devices = devices();
    let mut net = NetConfig::new(cluster, NodeId(node));
    net.listen = vec!["127.0.0.1:0".to_owned()];
    net.failure_timeout = Duration::from_secs(5);
    let mut config = VerbsConfig::new(net);
    config.device = devices.get(node as usize % devices.len()).cloned();
    config
}

pub(crate) fn cluster() -> String {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    format!("verbs-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed))
}

/// Two nodes that know each other.
pub(crate) fn two() -> [VerbsFabric; 2] {
    let cluster = cluster();
    introduced([0, 1].map(|node| config(node, &cluster)))
}

/// Opens two nodes, and tells each the other's address.
pub(crate) fn introduced(configs: [VerbsConfig; 2]) -> [VerbsFabric; 2] {
    let mut fabrics = configs.map(|config| VerbsFabric::open(config).expect("a verbs fabric"));
    for (fabric, peer) in [(0, 1), (1, 0)] {
        let addresses: Vec<String> = fabrics[peer].local_addrs().iter().map(ToString::to_string).collect();
        fabrics[fabric].learn(NodeId(peer as u32), &addresses);
    }
    fabrics
}

/// Polls until `done` returns something for a completion.
pub(crate) fn until<T>(
    fabrics: &mut [&mut VerbsFabric],
    what: &str,
    mut done: impl FnMut(usize, &Completion) -> Option<T>,
) -> T {
    let limit = Time::boot_clock() + PATIENCE;
    let mut completions = Vec::new();
    while Time::boot_clock() < limit {
        for (node, fabric) in fabrics.iter_mut().enumerate() {
            fabric.poll(Time::boot_clock(), &mut completions);
            if let Some(found) = completions.drain(..).find_map(|completion| done(node, &completion)) {
                return found;
            }
        }
        std::thread::yield_now();
    }
    panic!("waited in vain for {what}");
}

/// Connects two nodes; each exposes some regions. Returns their endpoints, and the regions that they see of each other.
pub(crate) fn connect(fabrics: &mut [VerbsFabric; 2], expose: [&[Region]; 2]) -> [(EndpointId, Vec<RemoteRegion>); 2] {
    let [first, second] = fabrics;
    let ends = [first.connect(NodeId(1), TAG, expose[0], b""), second.connect(NodeId(0), TAG, expose[1], b"")];
    let mut remote = [None, None];
    until(&mut [first, second], "a connection", |node, completion| {
        match completion {
            Completion::Connected { remote: regions, .. } => remote[node] = Some(regions.clone()),
            other => panic!("{other:?} instead of a connection"),
        }
        remote.iter().all(Option::is_some).then_some(())
    });
    let [mine, theirs] = remote.map(Option::unwrap_or_default);
    [(ends[0], mine), (ends[1], theirs)]
}
