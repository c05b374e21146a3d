//! Roles, renewed keys and revoked ones, between nodes that run.

use std::{fs, os::unix::fs::OpenOptionsExt, path::PathBuf};

use super::*;

/// Files of keys that a test replaces.
struct Folder {
    folder: tempfile::TempDir,
    paths: KeyFiles,
}

impl Folder {
    fn new(authorities: &[&Ca], pair: &(String, String)) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut paths = KeyFiles::new(at("ca.pem"), at("own.pem"), at("own.key"));
        paths.denied = Some(at("denied"));
        let files = Folder { paths, folder };
        files.trust(authorities);
        files.take(pair);
        files.write("denied", "");
        files
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, beside) = (self.folder.path().join(name), self.folder.path().join("new"));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        fs::rename(beside, &path).unwrap();
        path
    }

    fn trust(&self, authorities: &[&Ca]) {
        self.write("ca.pem", &authorities.iter().map(|ca| ca.pem()).collect::<String>());
    }

    fn take(&self, (certificate, key): &(String, String)) {
        self.write("own.key", key);
        self.write("own.pem", certificate);
    }

    fn deny(&self, certificate: &str) {
        self.write("denied", &format!("# stolen\n{}\n", serial(certificate)));
    }

    fn load(&self) -> Identity {
        Identity::load(&self.paths).unwrap()
    }
}

/// The digits of a certificate's serial number.
fn serial(certificate: &str) -> String {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let serial = webpki::EndEntityCert::try_from(&der).unwrap().serial().to_vec();
    serial.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn node(id: u32, identity: &Identity) -> Node {
    let mut config = config(id, &["127.0.0.1:0"]);
    config.security = Security::Tls(identity.clone());
    Node::open(&config, Plane::Tcp)
}

fn member(id: u32) -> Principal {
    Principal::Member(NodeId(id))
}

/// A test of an error.
type IsError = fn(&IdentityError) -> bool;

/// A change of a greeting.
type Lie = fn(&mut Hello, &mut HelloRest);

/// Calls a service of a node, which hands out the stream if it takes it.
fn call(
    node: &Node,
    identity: &Identity,
    service: ServiceId,
    streams: &Receiver<ServiceStream>,
) -> Result<(ServiceStream, ServiceStream), DialError> {
    let dialed = dial_service(&ServiceDial {
        addresses: &[node.address()],
        peer: Some(node.id),
        cluster: CLUSTER,
        node: identity.node(),
        security: &Security::Tls(identity.clone()),
        service,
        connect_timeout: PATIENCE,
        timeout: PATIENCE,
    })?;
    Ok((dialed, streams.recv_timeout(PATIENCE).unwrap()))
}

fn is_open(stream: &mut (ServiceStream, ServiceStream)) -> bool {
    stream.0.set_timeout(Some(PATIENCE)).unwrap();
    stream.1.write_all(b"?").and_then(|()| stream.0.read_exact(&mut [0])).is_ok()
}

#[test]
fn only_members_link_and_a_service_knows_its_callers_rights() {
    let ca = Ca::new();
    let server = node(1, &ca.identity(1));
    let clients = server.net.take_service(ServiceId::CLIENTS);
    let states = server.net.take_service(ServiceId::STATE);
    let rights = ClientRights { groups: Some(["bank".to_owned()].into()), commands: false, logs: false };
    let outsiders =
        [Principal::Client("web".into(), rights), Principal::Operator("alice".into()), Principal::Witness(NodeId(5))];
    for (denied, owner) in (1..).zip(outsiders) {
        let identity = ca.identity_of(&owner);
        let mut outsider = node(identity.node().0, &identity);
        outsider.knows(&server);
        // The one with the smaller id dials: of these two, either.
        server.knows(&outsider);
        let endpoint = outsider.connect(1, 1);
        assert!(outsider.event_within(Duration::from_millis(300)).is_none_or(|event| {
            matches!(event, Event::Broken { endpoint: broken, reason: BreakReason::Refused(_) } if broken == endpoint)
        }));
        let error = call(&server, &identity, ServiceId::STATE, &states).unwrap_err().to_string();
        assert!(error.contains(&format!("{owner} may not use state transfer")), "{error}");
        let counts = server.net.monitor().denied();
        assert_eq!(counts.iter().filter(|(_, call, _)| *call == Call::State).count(), denied, "{counts:?}");
        let called = call(&server, &identity, ServiceId::CLIENTS, &clients);
        assert_eq!(called.is_ok(), owner.role() == Role::Client, "{owner}");
        if let Ok((_, stream)) = called {
            assert_eq!(stream.access().principal(), Some(&owner));
            assert!(stream.access().check(Call::Query, Some("bank")).is_ok());
            assert!(stream.access().check(Call::Command, Some("bank")).is_err());
        }
    }
    assert_eq!(server.net.monitor().stats().links_up, 0);
}

#[test]
fn a_member_dials_no_link_with_another_role() {
    let ca = Ca::new();
    let witness = node(2, &ca.identity_of(&Principal::Witness(NodeId(2))));
    let mut a = node(1, &ca.identity(1));
    a.knows(&witness);
    a.connect(2, 1);
    witness.counts("the dialer refused it", |stats| stats.refused.total() > 0);
    assert_eq!(a.net.monitor().stats().links_up, 0);
    assert!(a.event_within(Duration::ZERO).is_none());
}

#[test]
fn keys_and_ca_change_while_links_and_streams_stay() {
    let (old, new) = (Ca::new(), Ca::new());
    let files = [1, 2].map(|id| Folder::new(&[&old], &old.issue_to(&member(id))));
    let [first, second] = [&files[0], &files[1]].map(Folder::load);
    let (mut a, mut b) = (node(1, &first), node(2, &second));
    a.knows(&b);
    b.knows(&a);
    join(&mut a, &mut b, 1);
    let streams = b.net.take_service(ServiceId::STATE);
    let mut stream = call(&b, &first, ServiceId::STATE, &streams).unwrap();
    // Both are trusted everywhere before the first shows the new one.
    let trust_both = |at: usize| files[at].trust(&[&old, &new]);
    let take_new = |at: usize| files[at].take(&new.issue_to(&member(at as u32 + 1)));
    let trust_new = |at: usize| files[at].trust(&[&new]);
    let steps: [&dyn Fn(usize); 3] = [&trust_both, &take_new, &trust_new];
    for step in steps {
        for (at, identity) in [&first, &second].into_iter().enumerate() {
            step(at);
            identity.reload().unwrap();
            assert!(is_open(&mut call(&b, &first, ServiceId::STATE, &streams).unwrap()));
        }
    }
    assert!(is_open(&mut stream));
    assert_eq!((a.net.monitor().stats().links_up, a.net.monitor().stats().links_down), (1, 0));
    let stale = old.identity(3);
    assert!(call(&b, &stale, ServiceId::STATE, &streams).is_err(), "the old CA is no longer trusted");
}

#[test]
fn a_revoked_peer_is_cut_off_at_once_and_stays_out() {
    for by_list in [false, true] {
        let ca = Ca::new();
        let pair = ca.issue_to(&member(1));
        let mut files = Folder::new(&[&ca], &ca.issue_to(&member(2)));
        // A list that is empty for now: of another certificate.
        let list = files.write("list", &ca.revoke(&ca.issue_to(&member(9)).0));
        files.paths.crl = Some(list);
        let thief = Identity::from_pem(&ca.pem(), &pair.0, &pair.1).unwrap();
        let second = files.load();
        let (mut a, mut b) = (node(1, &thief), node(2, &second));
        a.knows(&b);
        b.knows(&a);
        let ((ea, _), (eb, _)) = join(&mut a, &mut b, 1);
        let streams = b.net.take_service(ServiceId::STATE);
        let mut stream = call(&b, &thief, ServiceId::STATE, &streams).unwrap();
        assert!(is_open(&mut stream));
        if by_list {
            files.write("list", &ca.revoke(&pair.0));
        } else {
            files.deny(&pair.0);
        }
        second.reload().unwrap();
        let reason = b.broken(eb).to_string();
        assert!(reason.contains("revoked"), "{reason}");
        a.broken(ea);
        assert!(!is_open(&mut stream));
        assert!(call(&b, &thief, ServiceId::STATE, &streams).is_err(), "it is not let in again");
        // The renewed certificate of the same node is good.
        let (certificate, key) = ca.issue_to(&member(1));
        let renewed = Identity::from_pem(&ca.pem(), &certificate, &key).unwrap();
        assert!(is_open(&mut call(&b, &renewed, ServiceId::STATE, &streams).unwrap()));
    }
}

#[test]
fn changed_files_are_noticed_and_bad_ones_leave_the_old_keys_in_use() {
    let (ca, other) = (Ca::new(), Ca::new());
    let files = Folder::new(&[&ca], &ca.issue_to(&member(1)));
    let identity = files.load();
    let server = node(1, &identity);
    let streams = server.net.take_service(ServiceId::STATE);
    let peer = ca.identity(2);

    let bad: [(&dyn Fn(), IsError); 4] = [
        (&|| files.take(&other.issue_to(&member(1))), |error| matches!(error, IdentityError::OtherCa { .. })),
        (&|| files.take(&ca.issue_to(&member(3))), |error| matches!(error, IdentityError::OtherOwner { .. })),
        (&|| _ = files.write("own.key", ""), |error| matches!(error, IdentityError::NoKey { .. })),
        (&|| fs::remove_file(&files.paths.ca).unwrap(), |error| matches!(error, IdentityError::Read { .. })),
    ];
    for (damage, is_it) in bad {
        damage();
        let error = identity.reload().unwrap_err();
        assert!(is_it(&error), "{error}");
        assert_eq!(identity.problem(), Some(error));
        assert!(is_open(&mut call(&server, &peer, ServiceId::STATE, &streams).unwrap()));
        files.trust(&[&ca]);
        files.take(&ca.issue_to(&member(1)));
        identity.reload().unwrap();
        assert_eq!(identity.problem(), None);
    }

    // Without a call: the files are looked at.
    files.deny(&ca.issue_to(&member(9)).0);
    let (certificate, key) = ca.issue_to(&member(4));
    files.deny(&certificate);
    let denied = Identity::from_pem(&ca.pem(), &certificate, &key).unwrap();
    let until = Instant::now() + PATIENCE;
    while call(&server, &denied, ServiceId::STATE, &streams).is_ok() {
        assert!(Instant::now() < until, "the files were not read again");
        std::thread::yield_now();
    }
}

#[test]
fn a_revocation_list_of_a_stranger_is_refused() {
    let (ca, other) = (Ca::new(), Ca::new());
    let mut files = Folder::new(&[&ca], &ca.issue_to(&member(1)));
    let certificate = ca.issue_to(&member(2)).0;
    // The issuers of these tests share a name, so that only the signature differs.
    files.paths.crl = Some(files.write("list", &other.revoke(&certificate)));
    let error = Identity::load(&files.paths).unwrap_err();
    assert!(matches!(error, IdentityError::RevocationList { .. }), "{error}");
    let own = fs::read_to_string(&files.paths.certificate).unwrap();
    files.write("list", &ca.revoke(&own));
    assert!(matches!(Identity::load(&files.paths), Err(IdentityError::Revoked { .. })));
}

#[test]
fn a_client_speaks_for_no_member() {
    let ca = Ca::new();
    let client = ca.identity_of(&Principal::Client("web".into(), ClientRights::default()));
    let mut b = node(2, &ca.identity(2));
    let waiting = b.connect(1, 1);
    // Of another version or cluster, in the name of node 1: endpoints that wait for a member with such keys would end.
    let lies: [Lie; 2] = [|hello, _| hello.version = 77, |_, rest| rest.cluster = "another".into()];
    for lie in lies {
        let answer = Bare::dial_tls(&b, &client).greet(1, 2, lie);
        assert!(matches!(answer, Greeting::Refuse { .. }), "{answer:?}");
    }
    let mut a = node(1, &ca.identity(1));
    a.knows(&b);
    let endpoint = a.connect(2, 1);
    a.paired(endpoint);
    b.paired(waiting);
}

#[test]
fn a_witness_does_not_pass_for_a_member_at_a_service() {
    let ca = Ca::new();
    let witness = node(3, &ca.identity_of(&Principal::Witness(NodeId(3))));
    let caller = ca.identity(1);
    for (service, is_of_members) in
        [(ServiceId::CLIENTS, true), (ServiceId::LOG, true), (ServiceId::STATE, true), (ServiceId::VIEW_LOG, false)]
    {
        let streams = witness.net.take_service(service);
        let called = call(&witness, &caller, service, &streams).map(drop);
        assert_eq!(called.is_err(), is_of_members, "{service}: {called:?}");
    }
}

#[test]
fn what_is_revoked_counts_though_the_own_keys_can_not_be_used() {
    let ca = Ca::new();
    let pair = ca.issue_to(&member(1));
    let files = Folder::new(&[&ca], &ca.issue_to(&member(2)));
    let thief = Identity::from_pem(&ca.pem(), &pair.0, &pair.1).unwrap();
    let second = files.load();
    let b = node(2, &second);
    let streams = b.net.take_service(ServiceId::STATE);
    let mut stream = call(&b, &thief, ServiceId::STATE, &streams).unwrap();
    files.write("own.pem", "half of a certif");
    files.deny(&pair.0);
    assert!(second.reload().is_err());
    assert!(!is_open(&mut stream) && call(&b, &thief, ServiceId::STATE, &streams).is_err());
    assert!(is_open(&mut call(&b, &ca.identity(3), ServiceId::STATE, &streams).unwrap()), "the old keys stay in use");
    // A list that can't be read changes nothing.
    files.write("denied", "no number");
    assert!(second.reload().is_err() && call(&b, &thief, ServiceId::STATE, &streams).is_err());
}

#[test]
fn a_key_whose_mode_is_mended_is_noticed() {
    let ca = Ca::new();
    let files = Folder::new(&[&ca], &ca.issue_to(&member(1)));
    let identity = files.load();
    let _server = node(1, &identity);
    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&files.paths.key, fs::Permissions::from_mode(mode)).unwrap();
    };
    let wait = |what: &str, is: &dyn Fn(Option<IdentityError>) -> bool| {
        let until = Instant::now() + PATIENCE;
        while !is(identity.problem()) {
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        }
    };
    mode(0o640);
    wait("its mode is noticed", &|problem| matches!(problem, Some(IdentityError::KeyIsOpen { .. })));
    mode(0o600);
    wait("that it is mended", &|problem| problem.is_none());
}
