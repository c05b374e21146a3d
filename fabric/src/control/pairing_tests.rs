use std::collections::VecDeque;

use super::*;

struct Plain;

impl Medium for Plain {
    type Tag = u32;
    type SetUp = String;
    type PeerSetUp = String;
}

const LINK: LinkId = LinkId(1);
const TAG: u32 = 7;

/// One side of a link, and the frames that are on their way to it.
struct Side {
    pairing: Pairing<Plain>,
    peer: NodeId,
    incoming: VecDeque<PairingMessage<Plain>>,
    log: Vec<String>,
    now: Instant,
}

impl Side {
    fn connect(&mut self, endpoint: u64, tag: u32) {
        let set_up = format!("set-up of {endpoint}");
        self.pairing.connect(EndpointId(endpoint), self.peer, tag, set_up, self.now);
    }

    fn close(&mut self, endpoint: u64) {
        self.pairing.close(EndpointId(endpoint), BreakReason::PeerClosed);
    }

    /// Carries out the effects, and returns the frames for the peer.
    fn settle(&mut self) -> Vec<PairingMessage<Plain>> {
        let mut outgoing = Vec::new();
        while let Some(effect) = self.pairing.next_effect() {
            match effect {
                PairingEffect::Send(link, message) => {
                    assert_eq!(Some(link), self.pairing.link_with(self.peer));
                    outgoing.push(message);
                }
                PairingEffect::Matched(endpoint) => self.log.push(format!("{} matched", endpoint.0)),
                PairingEffect::Unmatched(endpoint) => self.log.push(format!("{} unmatched", endpoint.0)),
                PairingEffect::Broken { endpoint, reason, .. } => {
                    self.log.push(format!("{} broken: {reason:?}", endpoint.0));
                }
            }
        }
        outgoing
    }

    fn complete(&mut self, endpoint: u64) -> String {
        self.pairing.complete(EndpointId(endpoint)).unwrap().1
    }

    fn take(&mut self, frame: PairingMessage<Plain>) -> Result<(), Malformed> {
        let from = |mine: EndpointId| Counterpart { link: self.pairing.link_with(self.peer).unwrap(), theirs: mine.0 };
        match frame {
            PairingMessage::Offer { mine, tag, set_up } => self.pairing.on_offer(from(mine), tag, set_up),
            PairingMessage::Accept { mine, yours, set_up } => {
                self.pairing.on_accept(from(mine), EndpointId(yours), Ok(set_up))
            }
            PairingMessage::Confirm { mine, yours } => self.pairing.on_confirm(from(mine), EndpointId(yours)),
            PairingMessage::Close { mine, reason } => {
                self.pairing.on_close(from(mine), reason);
                Ok(())
            }
        }
    }

    fn logged(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

/// Two nodes: the first accepts offers, the second makes them.
fn two() -> [Side; 2] {
    let now = Instant::now();
    [2, 1].map(|peer| Side {
        pairing: Pairing::new(),
        peer: NodeId(peer),
        incoming: VecDeque::new(),
        log: Vec::new(),
        now,
    })
}

fn link_up(sides: &mut [Side; 2], id: LinkId) {
    for (side, accepts) in sides.iter_mut().zip([true, false]) {
        side.incoming.clear();
        side.pairing.link_up(id, side.peer, accepts);
    }
}

fn linked() -> [Side; 2] {
    let mut sides = two();
    link_up(&mut sides, LINK);
    sides
}

/// Carries frames over until none are left; to the side of `limit`, at most so many.
fn exchange(sides: &mut [Side; 2], limit: Option<(usize, usize)>) {
    let mut taken = [0; 2];
    loop {
        for from in 0..2 {
            let frames = sides[from].settle();
            sides[1 - from].incoming.extend(frames);
        }
        let Some(side) = (0..2).find(|side| !sides[*side].incoming.is_empty() && limit != Some((*side, taken[*side])))
        else {
            return;
        };
        let frame = sides[side].incoming.pop_front().unwrap();
        sides[side].take(frame).unwrap();
        taken[side] += 1;
    }
}

#[test]
fn endpoints_of_a_tag_meet_whichever_is_first() {
    for first in [0, 1] {
        let mut sides = linked();
        for side in [first, 1 - first] {
            sides[side].connect(10 + side as u64, TAG);
            exchange(&mut sides, None);
        }
        for (side, own, other) in [(0, 10, 11), (1, 11, 10)] {
            let side = &mut sides[side];
            assert_eq!(side.logged(), [format!("{own} matched")]);
            assert_eq!(side.pairing.matched(EndpointId(own)), Some(Counterpart { link: LINK, theirs: other }));
            assert_eq!(side.complete(own), format!("set-up of {other}"));
            assert_eq!(side.pairing.paired(EndpointId(own)), Some(Counterpart { link: LINK, theirs: other }));
        }
    }
}

#[test]
fn endpoints_of_two_tags_do_not_meet() {
    let mut sides = linked();
    sides[0].connect(10, 1);
    sides[1].connect(11, 2);
    exchange(&mut sides, None);
    assert!(sides[0].logged().is_empty() && sides[1].logged().is_empty());
}

#[test]
fn an_endpoint_of_a_tag_that_is_in_use_breaks() {
    let mut side = two().into_iter().next().unwrap();
    side.connect(10, TAG);
    side.connect(12, TAG);
    side.settle();
    assert_eq!(side.logged(), ["12 broken: TagInUse"]);
    side.close(10);
    side.connect(14, TAG);
    side.settle();
    assert!(side.logged().is_empty());
}

/// The `Close` crosses the `Accept`, so the accepting endpoint waits for the next offer, as new.
#[test]
fn an_acceptance_of_an_endpoint_that_was_closed_waits_for_another_offer() {
    let mut sides = linked();
    sides[1].connect(11, TAG);
    exchange(&mut sides, None);
    sides[0].connect(10, TAG);
    sides[1].close(11);
    sides[1].connect(13, TAG);
    exchange(&mut sides, None);
    assert_eq!(sides[0].logged(), ["10 matched"]);
    assert_eq!(sides[1].logged(), ["13 matched"]);
    assert_eq!(sides[0].complete(10), "set-up of 13");
}

#[test]
fn a_matched_endpoint_whose_counterpart_was_closed_is_unmatched_and_meets_the_next() {
    let mut sides = linked();
    sides[0].connect(10, TAG);
    sides[1].connect(11, TAG);
    exchange(&mut sides, None);
    sides[1].close(11);
    sides[1].connect(13, TAG);
    exchange(&mut sides, None);
    assert_eq!(sides[0].logged(), ["10 matched", "10 unmatched", "10 matched"]);
    assert_eq!(sides[1].logged(), ["11 matched", "11 unmatched", "13 matched"]);
}

#[test]
fn a_complete_endpoint_breaks_when_its_counterpart_is_closed() {
    let mut sides = linked();
    sides[0].connect(10, TAG);
    sides[1].connect(11, TAG);
    exchange(&mut sides, None);
    sides[0].complete(10);
    sides[0].logged();
    sides[1].close(11);
    exchange(&mut sides, None);
    assert_eq!(sides[0].logged(), ["10 broken: PeerClosed"]);
}

#[test]
fn an_endpoint_that_breaks_on_both_sides_is_reported_on_both() {
    let mut sides = linked();
    sides[0].connect(10, TAG);
    sides[1].connect(11, TAG);
    exchange(&mut sides, None);
    sides[1].pairing.break_both(EndpointId(11), BreakReason::Access);
    exchange(&mut sides, None);
    assert_eq!(sides[0].logged(), ["10 matched", "10 unmatched", "10 broken: Access"]);
    assert_eq!(sides[1].logged(), ["11 matched", "11 unmatched", "11 broken: Access"]);
}

#[test]
fn with_its_link_an_endpoint_breaks_if_it_is_complete_and_waits_for_another_if_not() {
    for steps in 0..=2 {
        let mut sides = linked();
        sides[1].connect(11, TAG);
        sides[0].connect(10, TAG);
        // The offer, and the confirmation, have come or not.
        exchange(&mut sides, Some((0, steps)));
        sides[0].connect(20, 8);
        sides[1].connect(21, 8);
        if steps == 2 {
            sides[0].complete(10);
            sides[1].complete(11);
        }
        for side in &mut sides {
            side.settle();
            side.logged();
            side.pairing.link_down(LINK, &BreakReason::ProcessGone);
            side.settle();
            let broken = side.logged();
            assert_eq!(broken.iter().any(|line| line.ends_with("broken: ProcessGone")), steps == 2, "{broken:?}");
            assert_eq!(side.pairing.unlinked_peers(), BTreeSet::from([side.peer]));
        }
        link_up(&mut sides, LinkId(2));
        exchange(&mut sides, None);
        let expected: &[&str] = if steps == 2 { &["20 matched"] } else { &["10 matched", "20 matched"] };
        assert_eq!(sides[0].logged(), expected, "{steps}");
        assert!(sides[1].pairing.unlinked_peers().is_empty());
    }
}

#[test]
fn a_refused_peer_is_refused_to_later_endpoints_for_a_moment() {
    let mut side = two().into_iter().next().unwrap();
    side.connect(10, TAG);
    side.pairing.refuse(side.peer, "too old".into(), side.now);
    side.connect(12, TAG);
    side.settle();
    assert_eq!(side.logged(), ["10 broken: Refused(\"too old\")", "12 broken: Refused(\"too old\")"]);
    side.now += std::time::Duration::from_secs(1);
    side.connect(14, TAG);
    side.settle();
    assert!(side.logged().is_empty());
    assert_eq!(side.pairing.unlinked_peers(), BTreeSet::from([side.peer]));
}

#[test]
fn a_message_that_can_not_be_used_breaks_the_endpoint_on_both_sides() {
    let mut sides = linked();
    sides[1].connect(11, TAG);
    let offered = sides[1].settle();
    assert!(matches!(offered[..], [PairingMessage::Offer { mine: EndpointId(11), .. }]));
    let failed = || BreakReason::Failed("too large".into());
    let from = Counterpart { link: LINK, theirs: 10 };
    sides[1].pairing.on_accept(from, EndpointId(11), Err(failed())).unwrap();
    assert!(matches!(sides[1].settle()[..], [PairingMessage::Close { mine: EndpointId(11), .. }]));
    sides[1].connect(13, TAG);
    sides[1].pairing.on_reject(LINK, EndpointId(13), failed());
    assert!(matches!(sides[1].settle()[..], [PairingMessage::Offer { .. }]));
    assert_eq!(sides[1].logged(), ["11 broken: Failed(\"too large\")", "13 broken: Failed(\"too large\")"]);
    sides[0].connect(10, TAG);
    sides[0].connect(12, TAG + 1);
    sides[0].pairing.fail_tag(NodeId(2), TAG, failed());
    sides[0].settle();
    assert_eq!(sides[0].logged(), ["10 broken: Failed(\"too large\")"]);
}

#[test]
fn frames_that_no_peer_sends_are_malformed() {
    let [mut accepting, mut offering] = linked();
    let from = |theirs| Counterpart { link: LINK, theirs };
    let text = || String::new();
    accepting.connect(10, TAG);
    offering.connect(11, TAG);
    assert!(accepting.pairing.on_confirm(from(11), EndpointId(10)).is_err(), "nothing was accepted");
    accepting.pairing.on_offer(from(11), TAG, text()).unwrap();
    assert!(accepting.pairing.on_offer(from(11), 8, text()).is_err(), "offered, and accepted, before");
    accepting.pairing.on_offer(from(13), 8, text()).unwrap();
    assert!(accepting.pairing.on_offer(from(13), 9, text()).is_err(), "offered before");
    assert!(accepting.pairing.on_confirm(from(12), EndpointId(10)).is_err(), "another was accepted");
    accepting.pairing.on_confirm(from(11), EndpointId(10)).unwrap();
    assert!(accepting.pairing.on_confirm(from(11), EndpointId(10)).is_err(), "confirmed before");
    offering.pairing.on_accept(from(10), EndpointId(11), Ok(text())).unwrap();
    assert!(offering.pairing.on_accept(from(10), EndpointId(11), Ok(text())).is_err(), "accepted before");
    offering.connect(15, 8);
    assert!(offering.pairing.on_accept(from(10), EndpointId(15), Ok(text())).is_err(), "one accepts two");
    // An endpoint that is not here any more is none that the peer could have known of.
    offering.pairing.on_accept(from(10), EndpointId(99), Ok(text())).unwrap();
    accepting.pairing.on_confirm(from(11), EndpointId(99)).unwrap();
    accepting.pairing.on_close(from(99), BreakReason::PeerClosed);
}

#[test]
fn offers_that_wait_are_bounded() {
    let [mut accepting, _] = linked();
    for theirs in 0..MAX_OFFERS as u64 {
        let from = Counterpart { link: LINK, theirs };
        accepting.pairing.on_offer(from, theirs as u32, String::new()).unwrap();
    }
    assert_eq!(accepting.pairing.offered(LINK).count(), MAX_OFFERS);
    let from = Counterpart { link: LINK, theirs: u64::MAX };
    assert!(accepting.pairing.on_offer(from, u32::MAX, String::new()).is_err());
    accepting.pairing.on_close(Counterpart { link: LINK, theirs: 0 }, BreakReason::PeerClosed);
    accepting.pairing.on_offer(from, u32::MAX, String::new()).unwrap();
}

/// Endpoints and links come and go at random, frames take their time, and those that are left at the end meet.
#[test]
fn endpoints_that_come_and_go_meet_those_that_stay() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut sides, mut link, mut next) = (linked(), LINK, 100);
        let mut open = [BTreeMap::new(), BTreeMap::new()];
        for _ in 0..100 {
            let side = rng.usize(..2);
            let tag = rng.u32(..4);
            match rng.u32(..20) {
                0 => {
                    for side in &mut sides {
                        side.settle();
                        side.pairing.link_down(link, &BreakReason::PeerClosed);
                        side.settle();
                    }
                    link = LinkId(link.0 + 1);
                    link_up(&mut sides, link);
                }
                1..8 => {
                    next += 1;
                    if let Some(endpoint) = open[side].insert(tag, next) {
                        sides[side].close(endpoint);
                    }
                    sides[side].connect(next, tag);
                }
                _ => exchange(&mut sides, Some((side, rng.usize(..3)))),
            }
        }
        exchange(&mut sides, None);
        for tag in 0..4 {
            if let (Some(a), Some(b)) = (open[0].get(&tag), open[1].get(&tag)) {
                for (side, own, other) in [(0, *a, *b), (1, *b, *a)] {
                    let met = sides[side].pairing.matched(EndpointId(own));
                    assert_eq!(met, Some(Counterpart { link, theirs: other }), "seed {seed}, tag {tag}");
                }
            }
        }
    }
}
