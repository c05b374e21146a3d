//! The rights of certificates' owners at nodes that run: each call by each role; and keys that change under load.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use squall::{
    Config, Consistency, Mode, Node, NodeId, ServedGroup, Time,
    admin::{AdminClient, StatusReport, Target},
    client::{Client, ClientConfig},
    config::{Backend, Security},
    keys::{Authority, ClientRights, Files, KeyFiles, Principal},
    log_service::{LogClient, RecordLog},
};
use squall_fabric::{
    Completion, Fabric, GroupTag,
    net::{
        Access, Call, DialError, Identity, NetConfig, Role, Security as NetSecurity, ServiceDial, ServiceId,
        dial_service,
    },
    tcp::{TcpConfig, TcpFabric},
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);
const GROUP: &str = "log";

/// A service that only the program of the port knows.
const OWN_SERVICE: ServiceId = ServiceId(77);

/// A cluster with a CA: the directory has its keys, and each node's storage.
struct World {
    cluster: String,
    directory: TempDir,
    authority: Authority,
    /// The members' addresses.
    addresses: Vec<String>,
}

impl World {
    fn new(test: &str, members: usize) -> World {
        let cluster = format!("access-{test}-{}", std::process::id());
        let directory = tempfile::tempdir().expect("a directory can be made");
        let authority = Authority::create(&cluster).expect("a CA");
        let held: Vec<_> = (0..members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
        let world = World { cluster, directory, authority, addresses };
        (1..=members as u32).for_each(|id| world.issue(Principal::Member(NodeId(id))));
        world
    }

    /// The keys of an owner have a directory of their own, as at its host.
    fn files(&self, owner: &Principal) -> Files {
        Files::in_directory(self.directory.path().join(owner.label()))
    }

    fn issue(&self, owner: Principal) {
        let files = self.files(&owner);
        // A list that revokes nothing.
        self.authority.revoke(&files, []).expect("there is room");
        self.authority.issue(owner, 1).and_then(|keys| keys.save(&files, true)).expect("keys");
        fs::write(files.authority_certificate(), self.authority.certificate()).expect("there is room");
    }

    fn identity(&self, owner: &Principal) -> Identity {
        Identity::load(&self.files(owner).of(owner.clone())).expect("its keys are good")
    }

    /// The protection of a caller with these keys.
    fn protection(&self, identity: &Identity) -> Security {
        let owner = identity.principal();
        Security::Tls(self.files(owner).of(owner.clone()))
    }

    fn config(&self, id: u32) -> Config {
        let owner = Principal::Member(NodeId(id));
        let config = Config::builder(&self.cluster, id).backend(Backend::Tcp);
        let config = (1..).zip(&self.addresses).fold(config, |config, (id, at)| config.addresses(id, [at]));
        let config = config.storage(self.directory.path().join(format!("storage-{id}")));
        let files = self.files(&owner);
        let keys = KeyFiles { crl: Some(files.revocation_list()), ..files.of(owner) };
        let config = config.security(Security::Tls(keys));
        config.group(GROUP, |group| _ = group.mode(Mode::Durable)).build().expect("the configuration is possible")
    }

    fn start(&self, id: u32) -> (Node, ServedGroup<RecordLog>) {
        let config = self.config(id);
        let mut node = Node::builder(config.clone());
        let group = node.serve(GROUP, RecordLog::default(), RecordLog::options(&config, GROUP));
        (node.start().expect("it becomes a member"), group)
    }

    fn client(&self, identity: &Identity) -> Client<RecordLog> {
        let config = ClientConfig::on_network(&self.cluster, &self.addresses, &self.protection(identity));
        Client::connect(&config.expect("its keys are good").with_timeout(PATIENCE), GROUP).expect("it has a thread")
    }

    fn operator(&self, identity: &Identity, at: &str) -> Result<AdminClient, String> {
        self.operator_with(&self.protection(identity), at)
    }

    fn operator_with(&self, security: &Security, at: &str) -> Result<AdminClient, String> {
        let address = at.parse().expect("it is one");
        let target = Target::at(&self.cluster, &address, security).expect("its keys are good");
        AdminClient::connect(&target, PATIENCE).map_err(|error| error.to_string())
    }

    fn status(&self, identity: &Identity, at: &str) -> StatusReport {
        self.operator(identity, at).expect("it may ask").status().expect("it answers")
    }
}

/// The node of the matrix, and a port of the same process that offers what nodes of a group do not.
struct Called {
    node: String,
    port: TcpFabric,
}

impl Called {
    /// Tries a call. An error is the sentence of the refusal; every other end of the call counts as permitted.
    fn call(&self, world: &World, identity: &Identity, call: Call) -> Result<(), String> {
        let denied = |text: String| if text.contains(" may not use ") { Err(text) } else { Ok(()) };
        match call {
            Call::Link => self.link(world, identity),
            Call::ViewLog | Call::State => {
                dial(world, identity, &self.node, call.service().expect("it has one")).or_else(denied)
            }
            Call::Copy | Call::Other => {
                let at = self.port.local_addrs()[0].to_string();
                dial(world, identity, &at, call.service().unwrap_or(OWN_SERVICE)).or_else(denied)
            }
            Call::Status => {
                let status = world.operator(identity, &self.node);
                status.and_then(|mut node| node.status().map(drop).map_err(|error| error.to_string())).or_else(denied)
            }
            Call::Order => {
                // A node that may give the order is told that it makes no sense.
                let order = world.operator(identity, &self.node);
                let order = order.and_then(|mut node| node.suspect(NodeId(1)).map_err(|error| error.to_string()));
                order.or_else(denied)
            }
            Call::Command => {
                let submitted = world.client(identity).submit(&vec![1, 2, 3]).wait();
                submitted.map(drop).map_err(|error| error.to_string()).or_else(must_be_denial)
            }
            Call::Query => {
                let asked = world.client(identity).query(&()).wait();
                asked.map(drop).map_err(|error| error.to_string()).or_else(must_be_denial)
            }
            Call::Log => {
                let config = ClientConfig::on_network(&world.cluster, [&self.node], &world.protection(identity));
                let read = LogClient::new(&config.expect("its keys are good"), GROUP).status();
                read.map(drop).map_err(|error| error.to_string()).or_else(must_be_denial)
            }
        }
    }

    /// Tries to link with the port. The caller listens nowhere, so that it dials.
    fn link(&self, world: &World, identity: &Identity) -> Result<(), String> {
        let mut config = NetConfig::new(&world.cluster, identity.node());
        config.security = NetSecurity::Tls(identity.clone());
        config.peers = BTreeMap::from([(NodeId(1), vec![self.port.local_addrs()[0].to_string()])]);
        let mut caller = TcpFabric::open(TcpConfig::new(config)).expect("it needs no port");
        caller.connect(NodeId(1), GroupTag { layer: 0, group: 0, epoch: 0 }, &[], b"");
        let mut completions = Vec::new();
        let until = Instant::now() + PATIENCE;
        while caller.port().stats().links_up == 0 {
            caller.poll(Time::boot_clock(), &mut completions);
            for completion in completions.drain(..) {
                if let Completion::Broken { reason, .. } = completion {
                    return Err(reason.to_string());
                }
            }
            assert!(Instant::now() < until, "{} neither links nor is refused", identity.principal());
            thread::yield_now();
        }
        Ok(())
    }
}

/// Calls of this kind end with success or a denial: anything else is a fault of the test.
fn must_be_denial(text: String) -> Result<(), String> {
    assert!(text.contains(" may not use "), "{text}");
    Err(text)
}

fn dial(world: &World, identity: &Identity, at: &str, service: ServiceId) -> Result<(), String> {
    let dialed = dial_service(&ServiceDial {
        addresses: &[at.to_owned()],
        peer: None,
        cluster: &world.cluster,
        node: identity.node(),
        security: &NetSecurity::Tls(identity.clone()),
        service,
        connect_timeout: PATIENCE,
        timeout: PATIENCE,
    });
    match dialed {
        Ok(_) => Ok(()),
        Err(error @ DialError::NoService { .. }) => panic!("{error}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn each_role_may_make_the_calls_that_the_table_grants_it_and_no_others() {
    let world = World::new("matrix", 1);
    let certified = |commands, logs, groups: Option<&str>| {
        let groups = groups.map(|group| [group.to_owned()].into());
        ClientRights { groups, commands, logs }
    };
    // Each with the calls that the table leaves to its certificate.
    let owners = [
        (Principal::Member(NodeId(1)), vec![]),
        (Principal::Member(NodeId(0)), vec![]),
        (Principal::Witness(NodeId(0)), vec![]),
        (Principal::Operator("alice".into()), vec![]),
        (Principal::Client("full".into(), certified(true, true, None)), vec![Call::Command, Call::Query, Call::Log]),
        (Principal::Client("web".into(), certified(true, false, Some(GROUP))), vec![Call::Command, Call::Query]),
        (Principal::Client("dash".into(), certified(false, false, Some(GROUP))), vec![Call::Query]),
        (Principal::Client("audit".into(), certified(false, true, Some(GROUP))), vec![Call::Query, Call::Log]),
        (Principal::Client("other".into(), certified(true, true, Some("other"))), vec![]),
    ];
    assert!(Role::ALL.iter().all(|role| owners.iter().any(|(owner, _)| owner.role() == *role)), "each role is tried");
    let mut net = NetConfig::new(&world.cluster, NodeId(1));
    net.listen = vec!["127.0.0.1:0".to_owned()];
    net.security = NetSecurity::Tls(world.identity(&Principal::Member(NodeId(1))));
    let port = TcpFabric::open(TcpConfig::new(net)).expect("a port");
    let _taken = [ServiceId::COPIES, OWN_SERVICE].map(|service| port.take_service(service));
    let (_node, group) = world.start(1);
    group.submit(&vec![0]).wait().expect("it is alone");
    let called = Called { node: world.addresses[0].clone(), port };
    let mut expected_denials = BTreeMap::new();
    for (owner, certified) in owners {
        if owner != Principal::Member(NodeId(1)) {
            world.issue(owner.clone());
        }
        let identity = world.identity(&owner);
        for call in Call::ALL {
            // A node does not link with itself.
            if (call, owner.node()) == (Call::Link, Some(NodeId(1))) {
                continue;
            }
            let expected = match call.access(owner.role()) {
                Access::Granted => true,
                Access::OwnNode => owner.node() == Some(NodeId(1)),
                Access::AsCertified => certified.contains(&call),
                Access::Denied => false,
            };
            let found = called.call(&world, &identity, call);
            assert_eq!(found.is_ok(), expected, "{owner} and {call}: {found:?}");
            if !expected && !matches!(call, Call::Link | Call::Copy | Call::Other) {
                *expected_denials.entry(owner.role().to_string()).or_insert(0) += 1;
            }
        }
    }
    // What was denied is counted where an operator looks.
    let report = world.status(&world.identity(&Principal::Operator("alice".into())), &called.node);
    let denied = report.port.expect("it has a port").denied;
    for (role, least) in expected_denials {
        let counted: u64 = denied.iter().filter(|denied| denied.role == role).map(|denied| denied.count).sum();
        assert!(counted >= least, "{role}: {counted} of {least}, {denied:?}");
    }
    assert_eq!(report.keys.expect("it has keys").owner, "node 1");
}

/// Lets an owner trust these CAs, in the order of a careful operator: a whole file at once.
fn trust(files: &Files, authorities: &[&Authority]) {
    let text: String = authorities.iter().map(|ca| ca.certificate()).collect();
    replace(&files.authority_certificate(), &text);
}

fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).and_then(|()| fs::rename(&beside, path)).expect("there is room");
}

/// Calls until it is done.
fn load(done: &AtomicBool, calls: &AtomicU64, call: impl Fn()) {
    while !done.load(Ordering::Relaxed) {
        call();
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_ca_and_all_keys_are_replaced_under_load_and_no_call_fails() {
    let world = World::new("rotation", 3);
    let web = Principal::Client("web".into(), ClientRights::default());
    let alice = Principal::Operator("alice".into());
    [&web, &alice].into_iter().for_each(|owner| world.issue(owner.clone()));
    let nodes: Vec<_> = thread::scope(|scope| {
        let world = &world;
        let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || world.start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    });
    let epochs = || nodes.iter().map(|(node, _)| node.view().epoch).collect::<Vec<_>>();
    let before = epochs();
    let (caller, operator) = (world.identity(&web), world.identity(&alice));
    let client = world.client(&caller);
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let new = Authority::create(&world.cluster).expect("a CA");
    thread::scope(|scope| {
        let (done, calls, client) = (&done, &calls, &client);
        scope.spawn(move || load(done, calls, || _ = client.submit(&vec![7; 100]).wait().expect("no call fails")));
        for (_, group) in &nodes {
            scope.spawn(move || load(done, calls, || _ = group.submit(&vec![8; 50]).wait().expect("no call fails")));
        }
        let members = (1..=3).map(|id| Principal::Member(NodeId(id)));
        let owners: Vec<Principal> = members.chain([web.clone(), alice.clone()]).collect();
        let take_new = |owner: &Principal| {
            new.issue(owner.clone(), 30).and_then(|keys| keys.save(&world.files(owner), true)).expect("keys");
        };
        let lists = tempfile::tempdir().expect("a directory can be made");
        let lists = Files::in_directory(lists.path());
        new.revoke(&lists, []).expect("there is room");
        let read = |files: &Files| fs::read_to_string(files.revocation_list()).expect("it is there");
        let trust_both = |owner: &Principal| {
            let files = world.files(owner);
            replace(&files.revocation_list(), &(read(&files) + &read(&lists)));
            trust(&files, &[&world.authority, &new]);
        };
        let trust_new = |owner: &Principal| {
            replace(&world.files(owner).revocation_list(), &read(&lists));
            trust(&world.files(owner), &[&new]);
        };
        let steps: [&dyn Fn(&Principal); 3] = [&trust_both, &take_new, &trust_new];
        for step in steps {
            owners.iter().for_each(step);
            nodes.iter().for_each(|(node, _)| node.reload_keys().expect("the new keys are good"));
            [&caller, &operator].into_iter().for_each(|identity| identity.reload().expect("the new keys are good"));
            // New connections come about, and calls go on.
            for at in &world.addresses {
                assert!(world.status(&operator, at).keys.is_some_and(|keys| keys.problem.is_none()));
            }
            assert!(world.client(&caller).query(&()).wait().is_ok());
            let so_far = calls.load(Ordering::Relaxed);
            let until = Instant::now() + PATIENCE;
            while calls.load(Ordering::Relaxed) < so_far + 50 {
                assert!(Instant::now() < until, "the calls stand still");
                thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(epochs(), before, "no member was dropped");
    let stale = tempfile::tempdir().expect("a directory can be made");
    let stale = Files::in_directory(stale.path());
    world.authority.issue(alice.clone(), 1).and_then(|keys| keys.save(&stale, false)).expect("keys");
    trust(&stale, &[&world.authority]);
    let operator = world.operator_with(&Security::Tls(stale.of(alice)), &world.addresses[0]);
    assert!(operator.is_err(), "the old CA is no longer trusted");
    let read = LogClient::new(&ClientConfig::of(&world.config(1)).expect("it has keys"), GROUP);
    assert!(read.at_contacts().read(Consistency::Linearizable, ..).is_ok());
}
