//! The scenarios over TCP, without and with TLS: three nodes in this process, polled in turn; and threads that race.

use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use squall_fabric::{
    Fabric, NodeId,
    net::{Identity, NetConfig, Security, certificate_name},
    tcp::{TcpConfig, TcpFabric},
};

use crate::{
    concurrent,
    rig::{Rig, Verdict},
    seeds,
    testbed::{Capabilities, FAILURE_TIMEOUT, Here},
};

/// The number of seeds that each scenario runs from.
const SEEDS: u64 = 6;

/// The name of all clusters, which do not meet: each node knows only the ports of its own.
const CLUSTER: &str = "conformance";

/// The identities of nodes 0 to 2, of one CA for the whole process.
fn identities() -> &'static [Identity] {
    static IDENTITIES: OnceLock<Vec<Identity>> = OnceLock::new();
    IDENTITIES.get_or_init(|| {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = || KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key()).expect("a CA");
        let identity = |node| {
            let name = certificate_name(CLUSTER, NodeId(node));
            let key = key();
            let params = CertificateParams::new([name]).expect("a name");
            let certificate = params.signed_by(&key, &ca).expect("a certificate");
            Identity::from_pem(&ca.pem(), &certificate.pem(), &key.serialize_pem()).expect("an identity")
        };
        (0..3).map(identity).collect()
    })
}

/// Nodes that listen on ports of their own and know each other's.
pub(crate) fn open(count: u32, tls: bool, set: impl Fn(&mut TcpConfig)) -> Vec<TcpFabric> {
    let open = |node| {
        let mut net = NetConfig::new(CLUSTER, NodeId(node));
        net.listen = vec!["127.0.0.1:0".to_owned()];
        net.failure_timeout = FAILURE_TIMEOUT;
        if tls {
            net.security = Security::Tls(identities()[node as usize].clone());
        }
        let mut config = TcpConfig::new(net);
        set(&mut config);
        TcpFabric::open(config).expect("a TCP fabric")
    };
    let mut fabrics: Vec<_> = (0..count).map(open).collect();
    for peer in 0..count {
        let addresses: Vec<_> = fabrics[peer as usize].local_addrs().iter().map(ToString::to_string).collect();
        for fabric in fabrics.iter_mut().filter(|fabric| fabric.node() != NodeId(peer)) {
            fabric.learn(NodeId(peer), &addresses);
        }
    }
    fabrics
}

fn bed(seed: u64, tls: bool) -> Here<TcpFabric> {
    let fabrics = open(3, tls, |config| {
        config.queue_depth = [16, 64, 1024][seed as usize % 3];
        // Every other seed has buffers that long messages fill.
        if seed % 2 == 1 {
            config.send_buffer_bytes = Some(8 << 10);
        }
    });
    // Only this side's polls place bytes.
    Here { fabrics, seed, can: Capabilities::here(true) }
}

/// Runs a scenario from a few seeds, or from the one in `SQUALL_SEED`.
pub(crate) fn check(name: &str, scenario: fn(&mut Rig<'_>) -> Verdict, tls: bool) {
    for seed in seeds(SEEDS) {
        if let Err(why) = scenario(&mut Rig::new(&mut bed(seed, tls))) {
            panic!("{name}: {why} (again with SQUALL_SEED={seed})");
        }
    }
}

fn race(scenario: fn(TcpFabric, TcpFabric)) {
    for tls in [false, true] {
        let mut fabrics = open(2, tls, |config| config.queue_depth = 256);
        if let (Some(reader), Some(writer)) = (fabrics.pop(), fabrics.pop()) {
            scenario(writer, reader);
        }
    }
}

#[test]
fn words_are_whole_to_a_spinning_reader() {
    race(concurrent::words_are_whole);
}

#[test]
fn writes_are_ordered_to_a_spinning_reader() {
    race(concurrent::writes_are_ordered);
}

#[test]
fn a_word_announces_its_bytes_to_a_spinning_reader() {
    race(concurrent::a_word_announces_its_bytes);
}
