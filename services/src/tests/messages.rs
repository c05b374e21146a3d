//! Messages between nodes.

use std::{sync::Arc, time::Instant};

use crossbeam::channel::{Receiver, unbounded};

use super::*;

/// A node that sends and receives messages.
struct Member {
    messenger: Arc<Messenger>,
    node: Node,
    came: Receiver<(NodeId, Vec<u8>)>,
}

impl Member {
    fn start(way: Way, cluster: &str, id: u32) -> Member {
        let (sender, came) = unbounded();
        let deliver = Box::new(move |from: MessageSender, message| drop(sender.send((from.node, message))));
        let messenger = Arc::new(Messenger::new(caller(way, cluster, id), deliver));
        let serving = Arc::clone(&messenger);
        let handler: Handler = Arc::new(move |stream| serving.serve(stream));
        Member { messenger, node: Node::start(way, cluster, id, vec![(Service::ViewLog, handler)]), came }
    }

    fn send(&self, to: &Member, message: &[u8]) {
        self.messenger.send(&to.node.contact, message.to_vec());
    }

    fn receive(&self) -> (NodeId, Vec<u8>) {
        self.came.recv_timeout(PATIENCE).expect("a message")
    }

    /// Sends a message until one copy arrives, as a protocol does that copes with losses.
    fn send_until_it_comes(&self, to: &Member, message: &[u8]) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.send(to, message);
            if to.came.recv_timeout(Duration::from_millis(50)).is_ok_and(|(_, came)| came == message) {
                return;
            }
            assert!(Instant::now() < until, "no message arrives");
        }
    }
}

#[test]
fn messages_go_both_ways() {
    for &way in WAYS {
        let cluster = fresh_cluster();
        let [one, other] = [1, 2].map(|id| Member::start(way, &cluster, id));
        for round in 0..100u32 {
            one.send(&other, &round.to_le_bytes());
            assert_eq!(other.receive(), (NodeId(1), round.to_le_bytes().to_vec()), "{way:?}");
            other.send(&one, b"");
            assert_eq!(one.receive(), (NodeId(2), Vec::new()), "{way:?}");
        }
        let large = vec![1; 1 << 20];
        one.send(&other, &large);
        assert_eq!(other.receive().1, large);
    }
}

#[test]
fn who_can_t_be_dialed_is_answered_over_the_stream_that_it_dialed() {
    let cluster = fresh_cluster();
    let [dials, listens] = [1, 2].map(|id| Member::start(Way::Port, &cluster, id));
    dials.send(&listens, b"question");
    assert_eq!(listens.receive().0, NodeId(1));
    listens.messenger.send(&DialTarget { node: Some(NodeId(1)), addresses: Vec::new() }, b"answer".to_vec());
    assert_eq!(dials.receive(), (NodeId(2), b"answer".to_vec()));
}

#[test]
fn a_node_known_by_its_address_alone_becomes_known_by_its_id() {
    let cluster = fresh_cluster();
    let [one, other] = [1, 2].map(|id| Member::start(Way::Port, &cluster, id));
    one.messenger.send(&DialTarget { node: None, ..other.node.contact.clone() }, b"who?".to_vec());
    assert_eq!(other.receive(), (NodeId(1), b"who?".to_vec()));
    // The contact has no address, so the message uses the stream that exists.
    one.messenger.send(&DialTarget { node: Some(NodeId(2)), addresses: Vec::new() }, b"you".to_vec());
    assert_eq!(other.receive().1, b"you");
}

#[test]
fn a_node_that_comes_back_is_reached_again() {
    let cluster = fresh_cluster();
    let one = Member::start(Way::Host, &cluster, 1);
    for _ in 0..3 {
        let other = Member::start(Way::Host, &cluster, 2);
        one.send_until_it_comes(&other, b"to you");
        other.send_until_it_comes(&one, b"to me");
    }
}

#[test]
fn who_starts_later_is_reached_by_what_waits() {
    let cluster = fresh_cluster();
    let one = Member::start(Way::Host, &cluster, 1);
    one.messenger.send(&DialTarget { node: Some(NodeId(2)), addresses: Vec::new() }, b"early".to_vec());
    let other = Member::start(Way::Host, &cluster, 2);
    one.send_until_it_comes(&other, b"late");
}

#[test]
fn all_to_all_at_once_arrives() {
    for &way in WAYS {
        let cluster = fresh_cluster();
        let members = [1, 2, 3, 4].map(|id| Member::start(way, &cluster, id));
        for (i, from) in members.iter().enumerate() {
            members.iter().enumerate().filter(|(j, _)| *j != i).for_each(|(_, to)| from.send(to, b"hello"));
        }
        for member in &members {
            let mut from: Vec<u32> = (0..3).map(|_| member.receive().0.0).collect();
            from.sort_unstable();
            let others: Vec<u32> = (1..=4).filter(|&id| NodeId(id) != member.node.caller.node()).collect();
            assert_eq!(from, others, "{way:?}");
        }
        // Streams that both sides dialed at once do not close each other.
        members[0].send(&members[1], b"more");
        assert_eq!(members[1].receive().1, b"more");
    }
}

/// Measures the time of a message and its answer. Run
/// `cargo test --release -p squall --lib -- --ignored --nocapture a_round_trip`.
#[test]
#[ignore = "a figure, not a rule"]
#[allow(clippy::print_stdout)]
fn a_round_trip_is_measured() {
    const ROUNDS: usize = 2000;
    for &way in WAYS {
        let cluster = fresh_cluster();
        let [one, other] = [1, 2].map(|id| Member::start(way, &cluster, id));
        let mut took: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                one.send(&other, b"ping");
                other.receive();
                other.send(&one, b"pong");
                one.receive();
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        println!("{way:?}: {:?} in the middle, {:?} of 99 %", took[ROUNDS / 2], took[ROUNDS * 99 / 100]);
    }
}
