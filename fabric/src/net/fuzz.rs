//! The code that strangers' bytes reach first, for fuzzing: without sockets, and with checks that hold whatever the
//! bytes are.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::{
    handshake::Handshake,
    identity::Identity,
    peer_user,
    pipe::Pipe,
    principal::Principal,
    revoked::Revoked,
    verifier::{self, Wanted},
    wire::{GREETING_BYTES, Greeting, LINK_FRAME_BYTES, LinkFrame},
};

/// The cluster of [`tls`] and [`handshake`].
pub const CLUSTER: &str = "test";

/// The protocol's version in greetings.
const VERSION: u32 = 1;

/// Reads bytes as a greeting, and as a sequence of frames.
pub fn greeting(bytes: &[u8]) {
    if bytes.len() <= GREETING_BYTES
        && let Ok(greeting) = Greeting::decode(bytes, VERSION)
    {
        assert_eq!(Greeting::decode(&greeting.encode()[4..], VERSION), Ok(greeting));
    }
    drain(Pipe::plain(), bytes, GREETING_BYTES);
}

/// Reads bytes as a link's frame, and as a sequence of them.
pub fn link(bytes: &[u8]) {
    if let Ok(frame) = LinkFrame::decode(bytes) {
        let encoded = frame.encode();
        assert!(encoded.len() <= 4 + LINK_FRAME_BYTES);
        assert_eq!(LinkFrame::decode(&encoded[4..]), Ok(frame));
    }
    drain(Pipe::plain(), bytes, LINK_FRAME_BYTES);
}

/// Reads bytes as those of a dialer's TLS handshake, and those of an acceptor's.
pub fn handshake(identity: &Identity, bytes: &[u8]) {
    let mut out = Vec::new();
    if let Ok(acceptor) = Handshake::accept(identity) {
        drain(Pipe::shaking(acceptor, Vec::new()), bytes, GREETING_BYTES);
    }
    if let Ok(dialer) = Handshake::dial(identity, Wanted::Member(identity.node()), &mut out) {
        drain(Pipe::shaking(dialer, out), bytes, GREETING_BYTES);
    }
}

/// Reads bytes as the names in a certificate, a line each, those with a colon as URIs; as a list of serial numbers; and
/// as what the kernel says of sockets.
pub fn names(bytes: &[u8]) {
    peer_user::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (uris, dns): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.contains(':'));
    if let Some((owner, cluster)) = Principal::of_names(dns.into_iter(), uris.into_iter()) {
        let (name, uri) = (format!("{}.{cluster}.squall", owner.label()), owner.rights_uri());
        let again = Principal::of_names([name.as_str()].into_iter(), uri.as_deref().into_iter());
        assert_eq!(again, Some((owner, cluster)));
    }
    let (mut revoked, mut again) = (Revoked::default(), Revoked::default());
    if revoked.read_serials(text).is_ok() {
        again.read_serials(&revoked.serial_lines()).expect("it was written by hand of the same numbers");
        assert_eq!(again.serial_lines(), revoked.serial_lines());
    }
}

/// Reads bytes as a certificate, and as a revocation list.
pub fn certificate(bytes: &[u8]) {
    let der = CertificateDer::from(bytes);
    if let Ok(certificate) = EndEntityCert::try_from(&der) {
        verifier::owner(&certificate);
    }
    let mut revoked = Revoked::default();
    let _ = revoked.read_list(bytes.to_vec().into());
    revoked.contain(&der);
}

/// Hands bytes over in pieces, whose sizes the bytes themselves give.
fn drain(mut pipe: Pipe, bytes: &[u8], most: usize) {
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let (some, more) = rest.split_at(rest.len().min(1 + usize::from(*first)));
        rest = more;
        if pipe.receive(some).is_err() {
            return;
        }
        loop {
            match pipe.next_frame(most) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    let _ = pipe.into_parts();
}

/// One end of an encrypted connection.
struct End {
    pipe: Pipe,
    /// Bytes that are on their way to it.
    incoming: Vec<u8>,
    /// The frames that the other end was asked to send to it; `came` counts those that have come.
    expected: Vec<Vec<u8>>,
    came: usize,
    failed: bool,
}

impl End {
    fn new(pipe: Pipe) -> End {
        End { pipe, incoming: Vec::new(), expected: Vec::new(), came: 0, failed: false }
    }

    /// Takes some of the bytes on their way: no more at once than a socket is asked for.
    fn take(&mut self, bytes: usize) {
        let now = bytes.min(self.incoming.len()).min(16 << 10);
        let some: Vec<u8> = self.incoming.drain(..now).collect();
        self.failed |= !self.failed && self.pipe.receive(&some).is_err();
        while !self.failed {
            match self.pipe.next_frame(LINK_FRAME_BYTES) {
                Ok(Some(frame)) => {
                    assert_eq!(Some(&frame), self.expected.get(self.came), "a frame came that was not sent then");
                    self.came += 1;
                }
                Ok(None) => return,
                Err(_) => self.failed = true,
            }
        }
    }
}

/// Carries bytes between two nodes as a script says, three bytes for each step.
///
/// The first byte's lowest bit names the side, its other bits the action; the other two bytes are a number. Whatever is
/// done to bytes on their way, no frame comes that was not sent, nor in another order; and if nothing is done, all
/// come.
pub fn tls([dialer, acceptor]: [&Identity; 2], script: &[u8]) {
    let mut hello = Vec::new();
    let Ok(dialing) = Handshake::dial(dialer, Wanted::Member(acceptor.node()), &mut hello) else { return };
    let Ok(accepting) = Handshake::accept(acceptor) else { return };
    let mut ends = [End::new(Pipe::shaking(dialing, hello)), End::new(Pipe::shaking(accepting, Vec::new()))];
    let mut clean = true;
    for step in script.as_chunks::<3>().0 {
        let [what, low, high] = *step;
        let number = usize::from(u16::from_le_bytes([low, high]));
        let [dialer, acceptor] = &mut ends;
        let (here, there) = if what & 1 == 0 { (dialer, acceptor) } else { (acceptor, dialer) };
        let at = number % here.incoming.len().max(1);
        match what >> 1 & 7 {
            0..=2 => here.take(number),
            3 => {
                let frame = vec![low; number.max(1)];
                let mut sent = (frame.len() as u32).to_le_bytes().to_vec();
                sent.extend_from_slice(&frame);
                if !here.failed && here.pipe.send(&sent).is_ok() {
                    there.expected.push(frame);
                }
            }
            4 => {
                if let Some(byte) = here.incoming.get_mut(at) {
                    *byte ^= 1 << (what >> 4 & 7);
                    clean = false;
                }
            }
            5 => {
                clean &= here.incoming.is_empty();
                here.incoming.truncate(at);
            }
            // The limit keeps steps from doubling the bytes without end.
            6 if here.incoming.len() < 1 << 20 => {
                clean &= here.incoming.is_empty();
                here.incoming.extend_from_within(at..);
            }
            6 => {}
            // A side that has said that takes nothing more: rustls asserts, in debug builds, that no alert of its own
            // follows.
            _ => {
                here.pipe.farewell();
                here.failed = true;
                clean = false;
            }
        }
        carry(&mut ends);
    }
    carry(&mut ends);
    while clean && ends.iter().any(|end| !end.incoming.is_empty()) {
        ends.iter_mut().for_each(|end| end.take(usize::MAX));
        carry(&mut ends);
    }
    assert!(!clean || ends.iter().all(|end| !end.failed && end.came == end.expected.len()), "a frame got lost");
}

/// Puts the bytes that either side has to send on their way to the other.
fn carry([dialer, acceptor]: &mut [End; 2]) {
    acceptor.incoming.append(&mut dialer.pipe.out);
    dialer.incoming.append(&mut acceptor.pipe.out);
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateRevocationListDer, pem::PemObject};

    use super::{
        super::{
            plane::Plane,
            principal::ClientRights,
            test_keys::Ca,
            wire::{Hello, HelloRest, Refusal, Service},
        },
        *,
    };
    use crate::{BreakReason, GroupTag, NodeId, seeds::replay};

    #[test]
    fn known_greetings_are_read_or_refused() {
        let hello = |service| {
            let rest = HelloRest {
                to: Some(NodeId(5)),
                incarnation: 6,
                challenge: [7; 16],
                nonce: [8; 16],
                service,
                cluster: "cluster".into(),
            };
            Greeting::Hello(Hello { version: VERSION, from: NodeId(9), rest: Some(rest) })
        };
        let greetings = [
            ("challenge", Greeting::Challenge { version: VERSION, challenge: [1; 16] }),
            ("hello-link", hello(Service::Link { dialer_listens: true })),
            ("hello-data", hello(Service::Data { link: [1; 16], mine: 2, yours: 3 })),
            ("hello-service", hello(Service::Application(4))),
            ("hello-other-version", Greeting::Hello(Hello { version: 2, from: NodeId(9), rest: None })),
            ("welcome", Greeting::Welcome { version: VERSION, from: NodeId(2), incarnation: 3, nonce: [4; 16] }),
            ("refuse", Greeting::Refuse { version: VERSION, why: Refusal::Cluster, cluster: "cluster".into() }),
        ];
        let seeds = greetings.map(|(name, greeting)| (name, greeting.encode()[4..].to_vec()));
        replay("greeting", &seeds, greeting);
    }

    #[test]
    fn known_link_frames_are_read_or_refused() {
        let tag = GroupTag { layer: 1, group: 2, epoch: 3 };
        let frames = [
            ("beat", LinkFrame::Beat),
            ("offer", LinkFrame::Offer { mine: 1, plane: Plane::Tcp, tag, set_up: vec![4; 40] }),
            ("accept", LinkFrame::Accept { mine: 1, yours: 2, set_up: vec![3] }),
            ("confirm", LinkFrame::Confirm { mine: 1, yours: 2 }),
            ("tell", LinkFrame::Tell { yours: 1, bytes: vec![2; 10] }),
            ("close", LinkFrame::Close { mine: 1, reason: BreakReason::PeerClosed }),
            ("close-why", LinkFrame::Close { mine: 1, reason: BreakReason::Failed("how".into()) }),
            ("goodbye", LinkFrame::Goodbye),
            ("given-up", LinkFrame::GivenUp),
        ];
        let mut seeds: Vec<_> = frames.iter().map(|(name, frame)| (*name, frame.encode()[4..].to_vec())).collect();
        seeds.push(("sequence", frames.iter().flat_map(|(_, frame)| frame.encode()).collect()));
        replay("link", &seeds, link);
    }

    /// A script that lets all bytes arrive, some rounds long.
    const CARRY: [u8; 24] =
        [1, 255, 255, 0, 255, 255, 1, 255, 255, 0, 255, 255, 1, 255, 255, 0, 255, 255, 1, 255, 255, 0, 255, 255];

    #[test]
    fn no_frame_comes_that_was_not_sent() {
        let ca = Ca::new();
        let (dialer, acceptor) = (ca.identity(1), ca.identity(2));
        let (send, reply) = ([6, 100, 0], [7, 0, 100]);
        let seeds = [
            ("calm", [&CARRY[..], &send, &reply, &CARRY].concat()),
            ("held", [&send[..], &reply, &send, &CARRY, &CARRY].concat()),
            ("in-pieces", [&send[..], &[1, 100, 0].repeat(40), &[0, 77, 0].repeat(40), &CARRY].concat()),
            ("changed", [&CARRY[..], &send, &[1, 0, 0], &[9, 60, 0], &CARRY].concat()),
            ("cut", [&CARRY[..], &send, &[1, 0, 0], &[11, 60, 0], &send, &CARRY].concat()),
            ("repeated", [&CARRY[..], &send, &[1, 0, 0], &[13, 0, 0], &CARRY].concat()),
            ("ended", [&CARRY[..], &send, &[14, 0, 0], &CARRY, &reply, &CARRY].concat()),
            ("hello-changed", [&[1, 0, 0][..], &[9, 44, 0], &CARRY].concat()),
        ];
        replay("tls", &seeds, |script| tls([&dialer, &acceptor], script));
    }

    #[test]
    fn known_names_are_read_or_refused() {
        let cluster = "c0123456789abcdef.squall";
        let seeds = [
            ("member", format!("node-7.{cluster}\nhost.example")),
            ("client", format!("client-web.{cluster}\nsquall:groups=bank,log;read-only;logs")),
            ("operator-with-rights", format!("operator-alice.{cluster}\nsquall:logs")),
            ("two-owners", format!("node-7.{cluster}\nwitness-8.{cluster}")),
            ("serials", "# stolen\n00ab:CD # of node 3\nfff\n0\n".to_owned()),
            (
                "table",
                " 0: 0100007F:0277 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1234 1".to_owned(),
            ),
        ];
        replay("names", &seeds.map(|(name, text)| (name, text.into_bytes())), names);
    }

    #[test]
    fn changed_certificates_are_refused_without_a_panic() {
        // No seeds are made, since no two certificates are alike.
        replay("certificate", &[], certificate);
        let ca = Ca::new();
        let rights = ClientRights { commands: false, ..ClientRights::default() };
        let (client, _) = ca.issue_to(&Principal::Client("web".to_owned(), rights));
        let list = CertificateRevocationListDer::from_pem_slice(ca.revoke(&client).as_bytes()).unwrap();
        let client = CertificateDer::from_pem_slice(client.as_bytes()).unwrap();
        let ders = [client.to_vec(), list.to_vec()];
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..2000 {
            let mut bytes = ders[rng.usize(..ders.len())].clone();
            for _ in 0..rng.usize(0..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            certificate(&bytes);
        }
    }

    #[test]
    fn changed_handshakes_are_refused_without_a_panic() {
        let identity = Ca::new().identity(1);
        let mut hello = Vec::new();
        Handshake::dial(&identity, Wanted::Member(identity.node()), &mut hello).unwrap();
        let mut answer = Vec::new();
        Handshake::accept(&identity).unwrap().advance(&hello, &mut answer).unwrap();
        // No seeds are made, since no two handshakes are alike.
        replay("handshake", &[], |bytes| handshake(&identity, bytes));
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..2000 {
            let mut bytes = if rng.bool() { hello.clone() } else { answer.clone() };
            for _ in 0..rng.usize(0..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            handshake(&identity, &bytes);
        }
    }
}
