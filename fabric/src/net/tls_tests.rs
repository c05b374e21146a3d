use std::sync::Arc;

use rustls::{ClientConfig, pki_types::ServerName};

use super::{
    super::{
        handshake::Handshake,
        identity::{Identity, provider},
        principal::certificate_name,
        test_keys::{CLUSTER, Ca},
        verifier::Wanted,
    },
    *,
};

/// Carries bytes between two handshakes, some at a time, until both are done or one has failed.
fn shake(
    mut dialer: Handshake,
    hello: Vec<u8>,
    mut acceptor: Handshake,
    step: usize,
) -> (Result<Session, TlsError>, Result<Session, TlsError>) {
    let (mut to_acceptor, mut to_dialer) = (hello, Vec::new());
    let (mut dialed, mut accepted) = (Ok(false), Ok(false));
    while !to_acceptor.is_empty() || !to_dialer.is_empty() {
        let some: Vec<u8> = to_acceptor.drain(..step.min(to_acceptor.len())).collect();
        if accepted == Ok(false) {
            accepted = acceptor.advance(&some, &mut to_dialer);
        }
        let some: Vec<u8> = to_dialer.drain(..step.min(to_dialer.len())).collect();
        if dialed == Ok(false) {
            dialed = dialer.advance(&some, &mut to_acceptor);
        } else if let (Ok(true), false) = (&dialed, some.is_empty()) {
            // The bytes after the dialer's end of the handshake are an alert.
            let (mut session, mut early) = dialer.into_session();
            early.extend(some.into_iter().chain(to_dialer.drain(..)));
            return (session.open(&mut early, &mut |_| {}).map(|_| session), accepted.map(|_| unreachable!()));
        }
    }
    let session = |handshake: Handshake, done| match done {
        Ok(true) => Ok(handshake.into_session().0),
        Ok(false) => Err(TlsError::Protocol("unfinished".into())),
        Err(error) => Err(error),
    };
    (session(dialer, dialed), session(acceptor, accepted))
}

fn meet(dialer: &Identity, to: u32, acceptor: &Identity) -> (Result<Session, TlsError>, Result<Session, TlsError>) {
    let mut hello = Vec::new();
    let dialing = Handshake::dial(dialer, Wanted::Member(NodeId(to)), &mut hello).unwrap();
    shake(dialing, hello, Handshake::accept(acceptor).unwrap(), 1 << 14)
}

fn pair() -> (Session, Session) {
    let ca = Ca::new();
    let (dialer, acceptor) = meet(&ca.identity(1), 2, &ca.identity(2));
    (dialer.unwrap(), acceptor.unwrap())
}

fn open(session: &mut Session, sealed: &mut [u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let used = session.open(sealed, &mut |bytes| plain.extend_from_slice(bytes)).unwrap();
    assert_eq!(used, sealed.len());
    plain
}

#[test]
fn a_handshake_ends_however_its_bytes_are_cut() {
    let ca = Ca::new();
    for step in [1, 7, 100, 1 << 14] {
        let mut hello = Vec::new();
        let dialer = Handshake::dial(&ca.identity(1), Wanted::Member(NodeId(2)), &mut hello).unwrap();
        let (dialer, acceptor) = shake(dialer, hello, Handshake::accept(&ca.identity(2)).unwrap(), step);
        let (mut dialer, mut acceptor) = (dialer.unwrap(), acceptor.unwrap());
        let mut sealed = Vec::new();
        dialer.seal(b"hello", &mut sealed).unwrap();
        assert_eq!(open(&mut acceptor, &mut sealed), b"hello");
    }
}

#[test]
fn what_one_side_seals_the_other_opens() {
    let (mut a, mut b) = pair();
    for len in [0, 1, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 1 << 20] {
        let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
        for back in [false, true] {
            let (from, to) = if back { (&mut b, &mut a) } else { (&mut a, &mut b) };
            let mut sealed = Vec::new();
            from.seal(&plain, &mut sealed).unwrap();
            assert_eq!(sealed.len(), len + len.div_ceil(RECORD_BYTES) * RECORD_OVERHEAD, "{len} bytes");
            let mut most = 0;
            let mut opened = Vec::new();
            let mut take = |bytes: &[u8]| {
                most = most.max(bytes.len());
                opened.extend_from_slice(bytes);
            };
            assert_eq!(to.open(&mut sealed.clone(), &mut take).unwrap(), sealed.len());
            assert!(opened == plain, "{len} bytes differ");
            assert!(most <= RECORD_BYTES);
        }
    }
}

#[test]
fn an_incomplete_record_stays() {
    let (mut a, mut b) = pair();
    let mut rng = fastrand::Rng::with_seed(1);
    let plain: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(200_000).collect();
    let mut sealed = Vec::new();
    for chunk in plain.chunks(9_999) {
        a.seal(chunk, &mut sealed).unwrap();
    }
    let (mut buffer, mut opened, mut at) = (Vec::new(), Vec::new(), 0);
    while at < sealed.len() {
        let some = rng.usize(1..30_000).min(sealed.len() - at);
        buffer.extend_from_slice(&sealed[at..at + some]);
        at += some;
        let used = b.open(&mut buffer, &mut |bytes| opened.extend_from_slice(bytes)).unwrap();
        buffer.drain(..used);
    }
    assert!(buffer.is_empty() && opened == plain);
}

#[test]
fn one_record_can_be_opened_alone() {
    let (mut a, mut b) = pair();
    let mut sealed = Vec::new();
    a.seal(b"first", &mut sealed).unwrap();
    a.seal(b"second", &mut sealed).unwrap();
    let mut plain = Vec::new();
    let used = b.open_record(&mut sealed, &mut |bytes| plain.extend_from_slice(bytes)).unwrap();
    assert_eq!(plain, b"first");
    assert_eq!(open(&mut b, &mut sealed[used..]), b"second");
}

#[test]
fn what_follows_the_handshake_in_the_same_bytes_is_early() {
    let ca = Ca::new();
    let (mut to_acceptor, mut to_dialer) = (Vec::new(), Vec::new());
    let mut dialer = Handshake::dial(&ca.identity(1), Wanted::Member(NodeId(2)), &mut to_acceptor).unwrap();
    let mut acceptor = Handshake::accept(&ca.identity(2)).unwrap();
    assert_eq!(acceptor.advance(&std::mem::take(&mut to_acceptor), &mut to_dialer), Ok(false));
    assert_eq!(dialer.advance(&to_dialer, &mut to_acceptor), Ok(true));
    let (mut session, early) = dialer.into_session();
    assert!(early.is_empty());
    session.seal(b"early", &mut to_acceptor).unwrap();
    to_acceptor.extend_from_slice(&[23, 3, 3]);
    assert_eq!(acceptor.advance(&to_acceptor, &mut to_dialer), Ok(true));
    let (mut session, mut early) = acceptor.into_session();
    let mut plain = Vec::new();
    let used = session.open(&mut early, &mut |bytes| plain.extend_from_slice(bytes)).unwrap();
    assert_eq!((plain.as_slice(), &early[used..]), (&b"early"[..], &[23, 3, 3][..]));
}

#[test]
fn keys_change_between_records() {
    let (mut a, mut b) = pair();
    for round in 0..5u8 {
        a.refresh_keys();
        for back in [false, true] {
            let (from, to) = if back { (&mut b, &mut a) } else { (&mut a, &mut b) };
            let mut sealed = Vec::new();
            from.seal(&[round], &mut sealed).unwrap();
            assert_eq!(open(to, &mut sealed), [round]);
        }
    }
}

#[test]
fn a_farewell_says_that_nothing_follows() {
    let (mut a, mut b) = pair();
    let mut sealed = Vec::new();
    a.seal(b"last", &mut sealed).unwrap();
    a.farewell(&mut sealed);
    assert_eq!(open(&mut b, &mut sealed), b"last");
    assert!(b.is_closed() && !a.is_closed());
    let mut sealed = Vec::new();
    b.seal(b"answer", &mut sealed).unwrap();
    assert_eq!(open(&mut a, &mut sealed), b"answer");
}

#[test]
fn a_changed_byte_ends_the_session() {
    for at in [0, 3, 5, 20] {
        let (mut a, mut b) = pair();
        let mut sealed = Vec::new();
        a.seal(&[7; 100], &mut sealed).unwrap();
        sealed[at] ^= 0x80;
        let error = b.open(&mut sealed, &mut |_| panic!("it was opened"));
        assert!(matches!(error, Err(TlsError::Protocol(_)) | Ok(0)), "byte {at}: {error:?}");
    }
}

#[test]
fn certificates_of_another_ca_and_old_ones_are_refused_by_both_sides() {
    let (ca, other) = (Ca::new(), Ca::new());
    let refuses_peer = |result: Result<Session, TlsError>| matches!(result, Err(TlsError::PeerCertificate(_)));
    let hears_it = |result: Result<Session, TlsError>| matches!(result, Err(TlsError::OwnCertificate(_)));

    let (dialer, acceptor) = meet(&ca.identity(1), 2, &other.identity(2));
    for refused in [dialer, acceptor] {
        let text = refused.err().expect("it is refused").to_string();
        assert!(text.contains("signed by another cluster's CA"), "{text}");
    }
    let (dialer, _) = meet(&ca.identity(1), 2, &ca.expired(2));
    assert!(refuses_peer(dialer));
    let (dialer, _) = meet(&ca.identity(1), 2, &ca.identity(3));
    assert!(refuses_peer(dialer), "a certificate of another node");
    let (dialer, _) = meet(&ca.expired(1), 2, &ca.identity(2));
    assert!(hears_it(dialer));
}

#[test]
fn an_acceptor_checks_the_dialers_node() {
    let (_, acceptor) = pair();
    assert_eq!(acceptor.verify_peer(CLUSTER, NodeId(1)), Ok(Principal::Member(NodeId(1))));
    assert!(matches!(acceptor.verify_peer(CLUSTER, NodeId(2)), Err(TlsError::PeerCertificate(_))));
    assert!(matches!(acceptor.verify_peer("another", NodeId(1)), Err(TlsError::PeerCertificate(_))));
}

#[test]
fn a_dialer_without_a_certificate_is_refused() {
    let ca = Ca::new();
    let mut roots = rustls::RootCertStore::empty();
    let pem = ca.pem();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(certificate_name(CLUSTER, NodeId(2))).unwrap();
    let mut hello = Vec::new();
    let dialer = Handshake::dial_name(&Arc::new(config), name, &mut hello).unwrap();
    let (dialer, _) = shake(dialer, hello, Handshake::accept(&ca.identity(2)).unwrap(), 1 << 14);
    assert!(matches!(dialer, Err(TlsError::OwnCertificate(_))));
}

#[test]
fn garbage_is_no_handshake() {
    let identity = Ca::new().identity(1);
    let mut rng = fastrand::Rng::with_seed(2);
    for first in [b"GET / HTTP/1.1\r\n".to_vec(), vec![22, 3, 1, 255, 255], vec![0; 64], vec![23; 64]] {
        let mut acceptor = Handshake::accept(&identity).unwrap();
        let mut ended = acceptor.advance(&first, &mut Vec::new());
        while ended == Ok(false) {
            let more: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(1000).collect();
            ended = acceptor.advance(&more, &mut Vec::new());
        }
        assert!(matches!(ended, Err(TlsError::Protocol(_))), "{first:?}");
        assert!(acceptor.advance(&[], &mut Vec::new()).is_err(), "it stays failed");
    }
}

#[test]
fn what_follows_a_handshake_is_kept_wherever_its_last_flight_was_cut() {
    let ca = Ca::new();
    let (dialer, acceptor) = (ca.identity(1), ca.identity(2));
    let mut cut = 1;
    loop {
        let (mut to_acceptor, mut to_dialer) = (Vec::new(), Vec::new());
        let mut dialing = Handshake::dial(&dialer, Wanted::Member(NodeId(2)), &mut to_acceptor).unwrap();
        let mut accepting = Handshake::accept(&acceptor).unwrap();
        assert_eq!(accepting.advance(&std::mem::take(&mut to_acceptor), &mut to_dialer), Ok(false));
        assert_eq!(dialing.advance(&to_dialer, &mut to_acceptor), Ok(true));
        let flight = to_acceptor.len();
        if cut >= flight {
            break;
        }
        dialing.into_session().0.seal(b"hello", &mut to_acceptor).unwrap();
        let (first, rest) = to_acceptor.split_at(cut);
        assert_eq!(accepting.advance(first, &mut Vec::new()), Ok(false), "of {flight} bytes {cut} came");
        assert_eq!(accepting.advance(rest, &mut Vec::new()), Ok(true), "of {flight} bytes {cut} came");
        let (mut session, mut early) = accepting.into_session();
        assert_eq!(open(&mut session, &mut early), b"hello", "of {flight} bytes {cut} came");
        cut += 7;
    }
}
