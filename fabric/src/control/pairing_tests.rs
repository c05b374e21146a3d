use std::time::Duration;

use super::*;

struct Plain;

impl Medium for Plain {
    type Tag = u32;
    type SetUp = String;
    type PeerSetUp = String;
}

const LINK: LinkId = LinkId(1);
const OTHER_LINK: LinkId = LinkId(1000);
const TAG: u32 = 7;

/// A node that neither side is.
const OTHER_PEER: NodeId = NodeId(3);

/// One side of a link, and the frames that are on their way to its peer and to it.
struct Side {
    pairing: Pairing<Plain>,
    peer: NodeId,
    outgoing: Vec<PairingMessage<Plain>>,
    incoming: VecDeque<PairingMessage<Plain>>,
    log: Vec<String>,
    now: Instant,
}

impl Side {
    fn connect(&mut self, endpoint: u64, tag: u32) {
        let set_up = format!("set-up of {endpoint}");
        self.pairing.connect(EndpointId(endpoint), self.peer, tag, set_up, self.now);
        self.settle();
    }

    fn close(&mut self, endpoint: u64) {
        self.pairing.close(EndpointId(endpoint), BreakReason::PeerClosed);
        self.settle();
    }

    fn link_up(&mut self, id: LinkId, accepts: bool) {
        self.pairing.link_up(id, self.peer, accepts);
        self.settle();
    }

    fn link_down(&mut self, id: LinkId, reason: &BreakReason) {
        self.outgoing.clear();
        self.incoming.clear();
        self.pairing.link_down(id, reason);
        self.settle();
    }

    /// Carries out the effects of the last call.
    fn settle(&mut self) {
        while let Some(effect) = self.pairing.next_effect() {
            match effect {
                PairingEffect::Send(link, message) => {
                    assert_eq!(Some(link), self.pairing.link_with(self.peer));
                    self.outgoing.push(message);
                }
                PairingEffect::Matched(endpoint) => self.log.push(format!("{} matched", endpoint.0)),
                PairingEffect::Unmatched(endpoint) => self.log.push(format!("{} unmatched", endpoint.0)),
                PairingEffect::Broken { endpoint, reason, .. } => {
                    self.log.push(format!("{} broken: {reason:?}", endpoint.0));
                }
            }
        }
    }

    /// The frames for the peer since the last call.
    fn sent(&mut self) -> Vec<PairingMessage<Plain>> {
        self.settle();
        std::mem::take(&mut self.outgoing)
    }

    fn complete(&mut self, endpoint: u64) -> String {
        self.pairing.complete(EndpointId(endpoint)).unwrap().1
    }

    fn matched(&self, endpoint: u64) -> Option<Counterpart> {
        self.pairing.matched(EndpointId(endpoint))
    }

    fn paired(&self, endpoint: u64) -> Option<Counterpart> {
        self.pairing.paired(EndpointId(endpoint))
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
        outgoing: Vec::new(),
        incoming: VecDeque::new(),
        log: Vec::new(),
        now,
    })
}

fn link_up(sides: &mut [Side; 2], id: LinkId) {
    for (side, accepts) in sides.iter_mut().zip([true, false]) {
        side.link_up(id, accepts);
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
            let frames = sides[from].sent();
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
            assert_eq!(side.matched(own), Some(Counterpart { link: LINK, theirs: other }));
            assert_eq!(side.complete(own), format!("set-up of {other}"));
            assert_eq!(side.paired(own), Some(Counterpart { link: LINK, theirs: other }));
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
    assert_eq!(side.logged(), ["12 broken: TagInUse"]);
    side.close(10);
    side.connect(14, TAG);
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
fn endpoints_that_have_not_met_break_and_those_that_have_stay() {
    let mut sides = linked();
    sides[0].connect(10, TAG);
    sides[1].connect(11, TAG);
    exchange(&mut sides, None);
    sides[0].connect(20, 8);
    sides[1].connect(31, 9);
    exchange(&mut sides, None);
    for side in &mut sides {
        side.logged();
        side.pairing.break_unmet(side.peer, &BreakReason::Unreachable);
    }
    exchange(&mut sides, None);
    assert_eq!(sides[0].logged(), ["20 broken: Unreachable"]);
    assert_eq!(sides[1].logged(), ["31 broken: Unreachable"]);
    assert_eq!(sides[0].pairing.offered(LINK).count(), 0, "the offer was withdrawn");
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
            side.logged();
            side.link_down(LINK, &BreakReason::ProcessGone);
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
    side.settle();
    side.connect(12, TAG);
    assert_eq!(side.logged(), ["10 broken: Refused(\"too old\")", "12 broken: Refused(\"too old\")"]);
    side.now += Duration::from_secs(1);
    side.connect(14, TAG);
    assert!(side.logged().is_empty());
    assert_eq!(side.pairing.unlinked_peers(), BTreeSet::from([side.peer]));
}

#[test]
fn a_message_that_can_not_be_used_breaks_the_endpoint_on_both_sides() {
    let mut sides = linked();
    sides[1].connect(11, TAG);
    assert!(matches!(sides[1].sent()[..], [PairingMessage::Offer { mine: EndpointId(11), .. }]));
    let failed = || BreakReason::Failed("too large".into());
    let from = Counterpart { link: LINK, theirs: 10 };
    sides[1].pairing.on_accept(from, EndpointId(11), Err(failed())).unwrap();
    assert!(matches!(sides[1].sent()[..], [PairingMessage::Close { mine: EndpointId(11), .. }]));
    sides[1].connect(13, TAG);
    sides[1].pairing.on_reject(LINK, EndpointId(13), failed());
    assert!(matches!(sides[1].sent()[..], [PairingMessage::Offer { .. }]));
    assert_eq!(sides[1].logged(), ["11 broken: Failed(\"too large\")", "13 broken: Failed(\"too large\")"]);
    sides[0].connect(10, TAG);
    sides[0].connect(12, TAG + 1);
    sides[0].pairing.fail_tag(NodeId(2), TAG, failed());
    sides[0].settle();
    assert_eq!(sides[0].logged(), ["10 broken: Failed(\"too large\")"]);
}

#[test]
fn a_link_makes_a_refusal_forgotten() {
    let mut side = two().into_iter().next().unwrap();
    side.pairing.refuse(side.peer, "too old".into(), side.now);
    side.link_up(LINK, true);
    side.link_down(LINK, &BreakReason::ProcessGone);
    side.connect(10, TAG);
    assert!(side.logged().is_empty());
}

/// A peer may offer a second endpoint of a tag while the first one is on its way to be connected.
#[test]
fn a_tag_that_can_not_be_used_again_leaves_the_endpoint_that_has_a_counterpart() {
    let mut sides = linked();
    sides[0].connect(10, TAG);
    sides[1].connect(11, TAG);
    exchange(&mut sides, None);
    sides[0].pairing.fail_tag(NodeId(2), TAG, BreakReason::Access);
    sides[0].settle();
    assert_eq!(sides[0].logged(), ["10 matched"]);
}

#[test]
fn endpoints_of_two_peers_have_a_tag_each_and_fail_apart() {
    let mut side = two().into_iter().next().unwrap();
    let peer = side.peer;
    side.connect(10, TAG);
    side.peer = OTHER_PEER;
    side.connect(12, TAG);
    side.link_up(OTHER_LINK, true);
    side.pairing.on_offer(Counterpart { link: OTHER_LINK, theirs: 13 }, TAG, String::new()).unwrap();
    let sent = side.sent();
    assert!(matches!(sent[..], [PairingMessage::Accept { mine: EndpointId(12), yours: 13, .. }]));
    side.link_down(OTHER_LINK, &BreakReason::ProcessGone);
    side.pairing.fail_waiting(peer, &BreakReason::Access);
    side.settle();
    assert_eq!(side.logged(), ["10 broken: Access"]);
    assert_eq!(side.pairing.unlinked_peers(), BTreeSet::from([OTHER_PEER]));
}

#[test]
fn frames_about_an_endpoint_count_on_its_own_link_alone() {
    let [mut accepting, mut offering] = linked();
    let at = |link, theirs| Counterpart { link, theirs };
    accepting.connect(10, TAG);
    offering.connect(11, TAG);
    for side in [&mut accepting, &mut offering] {
        side.pairing.link_up(OTHER_LINK, OTHER_PEER, true);
    }
    accepting.pairing.on_offer(at(LINK, 11), TAG, String::new()).unwrap();
    accepting.settle();
    assert!(accepting.pairing.on_confirm(at(OTHER_LINK, 11), EndpointId(10)).is_err());
    accepting.pairing.on_confirm(at(LINK, 11), EndpointId(10)).unwrap();
    assert!(offering.pairing.on_accept(at(OTHER_LINK, 10), EndpointId(11), Ok(String::new())).is_err());
    offering.pairing.on_reject(OTHER_LINK, EndpointId(11), BreakReason::Access);
    offering.pairing.on_accept(at(LINK, 10), EndpointId(11), Ok(String::new())).unwrap();
    offering.settle();
    assert_eq!(offering.logged(), ["11 matched"]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "effects of the last call")]
fn effects_that_were_not_carried_out_are_noticed() {
    let [mut side, _] = linked();
    side.connect(10, TAG);
    side.pairing.break_both(EndpointId(10), BreakReason::Access);
    side.pairing.close(EndpointId(12), BreakReason::PeerClosed);
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
    accepting.settle();
    assert!(accepting.pairing.on_offer(from(11), 8, text()).is_err(), "offered, and accepted, before");
    accepting.pairing.on_offer(from(13), 8, text()).unwrap();
    assert!(accepting.pairing.on_offer(from(13), 9, text()).is_err(), "offered before");
    assert!(accepting.pairing.on_confirm(from(12), EndpointId(10)).is_err(), "another was accepted");
    accepting.pairing.on_confirm(from(11), EndpointId(10)).unwrap();
    accepting.settle();
    assert!(accepting.pairing.on_confirm(from(11), EndpointId(10)).is_err(), "confirmed before");
    offering.pairing.on_accept(from(10), EndpointId(11), Ok(text())).unwrap();
    offering.settle();
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

/// Endpoints, also complete ones, and links come and go at random, frames take their time, and those that are left at
/// the end meet.
#[test]
fn endpoints_that_come_and_go_meet_those_that_stay() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut sides, mut link, mut next) = (linked(), LINK, 100);
        let (mut open, mut complete) = ([BTreeMap::new(), BTreeMap::new()], BTreeSet::new());
        for _ in 0..100 {
            let side = rng.usize(..2);
            let tag = rng.u32(..4);
            match rng.u32(..20) {
                0 => {
                    for side in &mut sides {
                        side.link_down(link, &BreakReason::PeerClosed);
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
                8..11 => {
                    if let Some(endpoint) = open[side].get(&tag).filter(|open| sides[side].matched(**open).is_some()) {
                        sides[side].complete(*endpoint);
                        complete.insert(*endpoint);
                    }
                }
                _ => exchange(&mut sides, Some((side, rng.usize(..3)))),
            }
            note_ends(&mut sides, &mut open, &complete);
        }
        exchange(&mut sides, None);
        note_ends(&mut sides, &mut open, &complete);
        for (side, tag) in [0, 1].into_iter().flat_map(|side| (0..4).map(move |tag| (side, tag))) {
            let Some(own) = open[side].get(&tag) else { continue };
            let other = open[1 - side].get(&tag).map(|other| Counterpart { link, theirs: *other });
            let met = sides[side].matched(*own).or(sides[side].paired(*own));
            assert_eq!(met, other, "seed {seed}, tag {tag}");
        }
    }
}

/// Forgets the endpoints that broke. One that was complete never meets another counterpart.
fn note_ends(sides: &mut [Side; 2], open: &mut [BTreeMap<u32, u64>; 2], complete: &BTreeSet<u64>) {
    for (side, open) in sides.iter_mut().zip(open) {
        for line in side.logged() {
            let (endpoint, event) = line.split_once(' ').unwrap();
            let endpoint = endpoint.parse().unwrap();
            if event.starts_with("broken") {
                open.retain(|_, open| *open != endpoint);
            } else {
                assert!(!complete.contains(&endpoint), "complete endpoint {line}");
            }
        }
    }
}
