use super::*;

fn hellos() -> Vec<Greeting> {
    let services = [
        Service::Link { dialer_listens: true },
        Service::Link { dialer_listens: false },
        Service::Data { link: [1; 16], mine: 2, yours: 3 },
        Service::Application(4),
    ];
    let hello = |service| {
        let rest = HelloRest {
            to: Some(NodeId(5)),
            incarnation: 6,
            challenge: [7; 16],
            nonce: [8; 16],
            service,
            cluster: "c".repeat(64),
        };
        Greeting::Hello(Hello { version: 1, from: NodeId(9), rest: Some(rest) })
    };
    services.into_iter().map(hello).collect()
}

fn greetings() -> Vec<Greeting> {
    let mut greetings = hellos();
    greetings.push(Greeting::Challenge { version: 1, challenge: [1; 16] });
    greetings.push(Greeting::Welcome { version: 1, from: NodeId(2), incarnation: 3, nonce: [4; 16] });
    greetings.extend(REFUSALS.map(|why| Greeting::Refuse { version: 1, why, cluster: "cluster".into() }));
    greetings
}

fn link_frames() -> Vec<LinkFrame> {
    let tag = GroupTag { layer: 1, group: 2, epoch: 3 };
    let mut frames = vec![
        LinkFrame::Beat,
        LinkFrame::Offer { mine: 1, plane: Plane::Tcp, tag, set_up: vec![] },
        LinkFrame::Offer { mine: 1, plane: Plane::Verbs, tag, set_up: vec![4; 100] },
        LinkFrame::Accept { mine: 1, yours: 2, set_up: vec![3] },
        LinkFrame::Confirm { mine: 1, yours: 2 },
        LinkFrame::Tell { yours: 1, bytes: vec![2; 10] },
        LinkFrame::Goodbye,
        LinkFrame::GivenUp,
    ];
    for reason in [
        BreakReason::PeerClosed,
        BreakReason::Access,
        BreakReason::ReceiverNotReady,
        BreakReason::Refused("why".into()),
        BreakReason::Failed("how".into()),
        BreakReason::Lost("where".into()),
        BreakReason::GivenUp,
    ] {
        frames.push(LinkFrame::Close { mine: 1, reason });
    }
    frames
}

/// A frame without its length, which must be right.
fn body(frame: &[u8], most: usize) -> &[u8] {
    assert_eq!(frame_len(frame, most), Ok(Some(frame.len())));
    &frame[4..]
}

#[test]
fn every_frame_comes_out_as_it_went_in() {
    for greeting in greetings() {
        assert_eq!(Greeting::decode(body(&greeting.encode(), GREETING_BYTES), 1), Ok(greeting));
    }
    for frame in link_frames() {
        assert_eq!(LinkFrame::decode(body(&frame.encode(), LINK_FRAME_BYTES)), Ok(frame));
    }
    let tag = GroupTag { layer: 1, group: 2, epoch: 3 };
    let longest = LinkFrame::Offer { mine: 1, plane: Plane::Verbs, tag, set_up: vec![0; SET_UP_BYTES] };
    assert_eq!(LinkFrame::decode(body(&longest.encode(), LINK_FRAME_BYTES)), Ok(longest));
}

#[test]
fn a_greeting_that_was_cut_or_lengthened_is_malformed() {
    for greeting in greetings() {
        let bytes = greeting.encode();
        for len in 4..bytes.len() {
            assert!(Greeting::decode(&bytes[4..len], 1).is_err(), "{greeting:?} cut to {len}");
        }
        let longer = [&bytes[4..], &[0]].concat();
        assert!(Greeting::decode(&longer, 1).is_err(), "{greeting:?} with a byte more");
    }
}

#[test]
fn any_bytes_are_a_frame_or_malformed() {
    let mut rng = fastrand::Rng::with_seed(1);
    let greetings = greetings().into_iter().map(|greeting| greeting.encode());
    let examples: Vec<Vec<u8>> = greetings.chain(link_frames().iter().map(LinkFrame::encode)).collect();
    for _ in 0..200_000 {
        let mut bytes = examples[rng.usize(..examples.len())].clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        let _ = frame_len(&bytes, GREETING_BYTES);
        let _ = Greeting::decode(&bytes[4..], 1);
        let _ = LinkFrame::decode(&bytes[4..]);
    }
}

#[test]
fn a_length_is_checked_before_anything_is_kept() {
    for len in [0, GREETING_BYTES as u32 + 1, u32::MAX] {
        assert!(frame_len(&len.to_le_bytes(), GREETING_BYTES).is_err(), "{len}");
    }
    assert_eq!(frame_len(&[1, 0, 0], GREETING_BYTES), Ok(None));
}

#[test]
fn a_hello_of_another_version_still_says_who_it_is() {
    for greeting in hellos() {
        let Ok(Greeting::Hello(hello)) = Greeting::decode(&greeting.encode()[4..], 2) else { panic!("no hello") };
        assert_eq!((hello.version, hello.from, hello.rest), (1, NodeId(9), None));
    }
}

/// Bytes as the page on the clients' protocol writes them.
fn in_page(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    format!("\n```text\n{}\n```\n", bytes.chunks(32).map(line).collect::<Vec<_>>().join("\n"))
}

#[test]
fn the_handshake_stands_in_the_page_on_the_clients_protocol() {
    let page = include_str!("../../../docs/src/internals/client-protocol.md");
    let (version, challenge, nonce) = (crate::net::config::PROTOCOL, [0xc1; 16], [0xd2; 16]);
    let service = Service::Application(5);
    let rest = HelloRest { to: None, incarnation: 0, challenge, nonce, service, cluster: "bank".into() };
    for greeting in [
        Greeting::Challenge { version, challenge },
        Greeting::Hello(Hello { version, from: NodeId(3_000_000_000), rest: Some(rest) }),
        Greeting::Welcome { version, from: NodeId(1), incarnation: 0x0102_0304_0506_0708, nonce },
        Greeting::Refuse { version, why: Refusal::Cluster, cluster: "bank".into() },
    ] {
        let example = in_page(&greeting.encode());
        assert!(page.contains(&example), "the page is to have this for {greeting:?}:{example}");
    }
}
