//! The rules of a client's watches.

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::super::{
    core::ClientCore,
    effect::{ClientEffect, WatchEvent, WatchId, WatchRequest},
    error::ClientError,
};
use crate::clients::{
    changes::ChangePlace,
    contacts::Contacts,
    wire::{Members, ToClient, ToNode, ToldChange, WatchEnd, WatchStart},
};

const NOW: Time = Time::from_nanos(1);
const ID: WatchId = WatchId(7);

/// A client with one watch, of a window of 100 bytes.
struct Bench {
    core: ClientCore,
    out: Vec<ClientEffect>,
}

impl Bench {
    fn new() -> Bench {
        let contacts = Contacts::new(vec![DialTarget::on_host(NodeId(1))], 0);
        let core = ClientCore::new("bank".into(), contacts, Rng::with_seed(1));
        let mut bench = Bench { core, out: Vec::new() };
        let begin_by = Time::from_nanos(1 << 40);
        let request = WatchRequest { prefix: vec![1], start: WatchStart::Query(vec![2]), window: 100, begin_by };
        bench.core.watch(NOW, ID, request, &mut bench.out);
        bench
    }

    /// Returns the watch as it is asked for on a fresh connection.
    fn connect(&mut self) -> Option<(WatchStart, i64)> {
        self.out.clear();
        self.core.connected(NOW, &mut self.out);
        self.hear(ToClient::Welcome { members: Members::default(), session_timeout_ms: 1 << 40, request_bytes: 100 });
        self.out.drain(..).find_map(|effect| match effect {
            ClientEffect::Send(ToNode::Watch { number: 7, start, credit, .. }) => Some((start, credit)),
            _ => None,
        })
    }

    fn hear(&mut self, message: ToClient) {
        self.core.heard(NOW, message, &mut self.out);
    }

    fn tell(&mut self, numbers: &[u64], upto: u64) {
        let changes = numbers.iter().map(|&number| ToldChange { at: place(number), key: vec![1], change: vec![0; 17] });
        self.hear(ToClient::Changes { number: 7, upto: place(upto), changes: changes.collect() });
    }

    fn events(&mut self) -> Vec<WatchEvent> {
        let events = self.out.drain(..).filter_map(|effect| match effect {
            ClientEffect::Watch(ID, event) => Some(event),
            _ => None,
        });
        events.collect()
    }
}

fn place(number: u64) -> ChangePlace {
    ChangePlace { number, time_ns: 10 * number }
}

/// The cost of a change here.
const COST: u64 = 50;

#[test]
fn a_watch_goes_on_behind_what_it_has_handed_on_with_the_credit_that_is_left() {
    let mut bench = Bench::new();
    assert_eq!(bench.connect(), Some((WatchStart::Query(vec![2]), 100)));
    // It has not begun, so it asks anew.
    bench.core.broken(NOW, "cut".into(), &mut bench.out);
    assert_eq!(bench.connect(), Some((WatchStart::Query(vec![2]), 100)));
    let began = ToClient::Watching { number: 7, at: place(4), answer: Some(vec![3]) };
    bench.hear(began);
    bench.tell(&[5, 7], 9);
    assert!(matches!(&bench.events()[..], [WatchEvent::Began(_, Some(_)), WatchEvent::Changes(..)]));
    bench.core.broken(NOW, "cut".into(), &mut bench.out);
    assert_eq!(bench.connect(), Some((WatchStart::Behind(place(9)), 100 - 2 * COST as i64)));
    bench.hear(ToClient::Watching { number: 7, at: place(9), answer: None });
    assert_eq!(bench.events(), [], "it begins once");
    bench.core.taken(ID, COST, &mut bench.out);
    assert!(bench.out.contains(&ClientEffect::Send(ToNode::More { number: 7, credit: COST })));
    bench.tell(&[10], 10);
    bench.core.broken(NOW, "cut".into(), &mut bench.out);
    assert_eq!(bench.connect(), Some((WatchStart::Behind(place(10)), 100 - 2 * COST as i64)));
    bench.core.unwatch(ID, &mut bench.out);
    assert!(bench.out.contains(&ClientEffect::Send(ToNode::Unwatch { number: 7 })));
    bench.out.clear();
    bench.tell(&[11], 11);
    assert_eq!(bench.events(), [], "nobody wants it any more");
}

#[test]
fn a_member_that_breaks_the_rules_of_watches_is_hung_up_on() {
    for (numbers, upto) in [(&[3][..], 3), (&[4], 4), (&[6, 5], 6), (&[5, 5], 5), (&[6], 5), (&[5, 6, 7], 7)] {
        let mut bench = Bench::new();
        bench.connect();
        bench.hear(ToClient::Watching { number: 7, at: place(4), answer: Some(vec![3]) });
        bench.tell(numbers, upto);
        assert!(bench.out.contains(&ClientEffect::HangUp), "{numbers:?}");
        assert!(matches!(&bench.events()[..], [WatchEvent::Began(..)]), "{numbers:?}");
        assert_eq!(bench.connect(), Some((WatchStart::Behind(place(4)), 100)), "{numbers:?}");
    }
    let mut early = Bench::new();
    early.connect();
    early.tell(&[1], 1);
    assert!(early.out.contains(&ClientEffect::HangUp));
}

#[test]
fn a_watch_ends_with_the_reason_that_a_member_gives_or_if_it_does_not_begin_in_time() {
    let mut bench = Bench::new();
    bench.connect();
    let why = WatchEnd::TooFarBehind { needed: 5, oldest: 9 };
    bench.hear(ToClient::WatchEnded { number: 7, why });
    assert_eq!(bench.events(), [WatchEvent::Ended(ClientError::TooFarBehind { needed: 5, oldest: 9 })]);
    assert_eq!(bench.connect(), None);

    let mut late = Bench::new();
    late.out.clear();
    late.core.broken(NOW, "nobody".into(), &mut late.out);
    while let Some(at) = late.core.deadline().filter(|at| *at <= Time::from_nanos(1 << 40)) {
        late.core.tick(at, &mut late.out);
        if late.out.iter().any(|effect| matches!(effect, ClientEffect::Dial(_))) {
            late.out.clear();
            late.core.broken(at, "nobody".into(), &mut late.out);
        }
    }
    let error = ClientError::Deadline { sent: false, trouble: "nobody".into() };
    assert_eq!(late.events(), [WatchEvent::Ended(error)]);
}
