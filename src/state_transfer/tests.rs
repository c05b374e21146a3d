//! Transfers of states.

#[path = "../../services/src/tests/nodes.rs"]
#[allow(dead_code, reason = "the tests of the streams use more of it")]
mod nodes;

use std::{
    io::{self, Read, Write},
    sync::{Arc, Mutex},
};

use squall_membership::{Epoch, Seq, ShardId};

use squall_services::{Caller, DialTarget, Handler, Server, Service, frame};

use self::nodes::{Node, PATIENCE, WAYS, Way, caller, fresh_cluster};
use super::wire::{
    self, Fetch, OfferKind, PreparedOffer, RequestedPart, TransferError, TransferProgress, TransferRequest,
};

const REQUEST: TransferRequest =
    TransferRequest { shard: ShardId(7), part: RequestedPart::State { epoch: Epoch(3), have: None } };
const STATE: OfferKind = OfferKind::State { epoch: Epoch(3), seq: Seq(42), chain: None };

/// The state that a source gives.
#[derive(Clone)]
enum FakeSource {
    Whole(Vec<u8>),
    /// The application fails behind these bytes.
    Fails(Vec<u8>),
    Refused,
}

impl FakeSource {
    fn capture(&self, request: TransferRequest) -> Result<PreparedOffer, String> {
        let (bytes, fails) = match self.clone() {
            FakeSource::Refused => return Err(format!("it does not hold {}", request.shard)),
            FakeSource::Whole(bytes) => (bytes, false),
            FakeSource::Fails(bytes) => (bytes, true),
        };
        let total = bytes.len() as u64;
        let write = move |to: &mut dyn Write| {
            // The pieces are not aligned with chunks.
            bytes.chunks(10_007).try_for_each(|piece| to.write_all(piece))?;
            if fails { Err(io::Error::other("the disk is full of holes")) } else { Ok(()) }
        };
        Ok(PreparedOffer { offer: STATE, bytes: Some(total), write: Box::new(write) })
    }
}

fn source(way: Way, cluster: &str, id: u32, state: FakeSource) -> Node {
    let handler: Handler = Arc::new(move |stream| wire::serve(stream, &|request| state.capture(request)));
    Node::start(way, cluster, id, vec![(Service::State, handler)])
}

fn state(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Returns the bytes that were received, and the error that ended the transfer.
fn fetch(way: Way, cluster: &str, from: &Node) -> (Vec<u8>, Result<(), TransferError>) {
    let mut received = Vec::new();
    let begun = Fetch::begin(&caller(way, cluster, 9), &from.contact, REQUEST, |_| {});
    let ended = begun.and_then(|mut fetch| match fetch.read_to_end(&mut received) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.downcast::<TransferError>().expect("an error of the transfer")),
    });
    (received, ended)
}

#[test]
fn a_state_arrives_whole_with_its_place_and_its_progress() {
    for &way in WAYS {
        for bytes in [0, 1, 256 << 10, (256 << 10) + 1, 3_000_000] {
            let cluster = fresh_cluster();
            let node = source(way, &cluster, 1, FakeSource::Whole(state(bytes)));
            let seen = Arc::new(Mutex::new(Vec::new()));
            let note = Arc::clone(&seen);
            let progress = move |progress| note.lock().unwrap().push(progress);
            let mut fetch = Fetch::begin(&caller(way, &cluster, 9), &node.contact, REQUEST, progress).unwrap();
            assert_eq!(fetch.offer, STATE);
            let mut received = Vec::new();
            fetch.read_to_end(&mut received).unwrap();
            assert!(received == state(bytes), "{bytes} bytes, {way:?}");
            let bytes = bytes as u64;
            let seen = seen.lock().unwrap();
            assert_eq!(seen.last(), Some(&TransferProgress { received: bytes, bytes: Some(bytes) }));
            assert!(seen.is_sorted_by_key(|progress| progress.received));
        }
    }
}

#[test]
fn a_source_that_does_not_hold_the_state_says_so() {
    let cluster = fresh_cluster();
    let node = source(Way::Host, &cluster, 1, FakeSource::Refused);
    let (_, ended) = fetch(Way::Host, &cluster, &node);
    assert_eq!(ended.unwrap_err().to_string(), "the source does not give its state: it does not hold shard 7");
}

#[test]
fn a_source_that_fails_is_followed_by_another() {
    for &way in WAYS {
        let cluster = fresh_cluster();
        let sources = [
            source(way, &cluster, 1, FakeSource::Fails(state(1_000_000))),
            source(way, &cluster, 2, FakeSource::Whole(state(1_000_000))),
        ];
        let ended = sources.each_ref().map(|node| fetch(way, &cluster, node));
        let error = ended[0].1.as_ref().unwrap_err().to_string();
        assert!(error.contains("gave up after") && error.ends_with("the disk is full of holes"), "{error}");
        assert!(ended[1].1.is_ok() && ended[1].0 == state(1_000_000));
    }
}

/// Returns the bytes that a source sends for a state of this many bytes.
fn recorded(bytes: usize) -> Vec<u8> {
    let cluster = fresh_cluster();
    let node = source(Way::Host, &cluster, 1, FakeSource::Whole(state(bytes)));
    let mut stream = caller(Way::Host, &cluster, 9).dial(&node.contact, Service::State, PATIENCE).unwrap();
    frame::write(&mut stream.writer, &REQUEST, 100).unwrap();
    let mut said = Vec::new();
    stream.reader.read_to_end(&mut said).unwrap();
    said
}

/// Starts a source that sends these bytes, whatever the request.
fn says(cluster: &str, bytes: Vec<u8>) -> Node {
    let handler: Handler = Arc::new(move |mut stream| {
        frame::read::<TransferRequest>(&mut stream.reader, 100).unwrap();
        // A receiver that found an error has hung up.
        let _ = stream.writer.write_all(&bytes);
    });
    Node::start(Way::Host, cluster, 1, vec![(Service::State, handler)])
}

#[test]
fn a_state_that_is_cut_anywhere_is_an_error_and_what_was_read_is_right() {
    let (whole, all) = (recorded(300_000), state(300_000));
    for end in [0, 1, 5, 8, 12, 40, 100, 262_150, 262_200, 290_000, whole.len() - 36, whole.len() - 1] {
        let cluster = fresh_cluster();
        let (received, ended) = fetch(Way::Host, &cluster, &says(&cluster, whole[..end].to_vec()));
        assert!(matches!(ended, Err(TransferError::Cut { .. })), "after {end} bytes: {ended:?}");
        assert!(all.starts_with(&received), "after {end} bytes");
    }
}

#[test]
fn a_byte_that_is_damaged_is_found_before_it_is_used() {
    let (whole, all) = (recorded(300_000), state(300_000));
    let head = whole.len() - 300_000 - 3 * 36;
    for at in [
        head,
        head + 3,
        head + 4,
        head + 35,
        head + 36,
        head + 1000,
        whole.len() - 1000,
        whole.len() - 36,
        whole.len() - 1,
    ] {
        let cluster = fresh_cluster();
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        let (received, ended) = fetch(Way::Host, &cluster, &says(&cluster, damaged));
        assert!(
            matches!(ended, Err(TransferError::Damaged { .. } | TransferError::Cut { .. })),
            "byte {at}: {ended:?}"
        );
        assert!(all.starts_with(&received), "byte {at}");
    }
}

#[test]
fn a_chunk_that_is_left_out_is_found() {
    let (mut whole, all) = (recorded(600_000), state(600_000));
    let chunk = 36 + (256 << 10);
    let head = whole.len() - 600_000 - 4 * 36;
    whole.drain(head + chunk..head + 2 * chunk);
    let cluster = fresh_cluster();
    let (received, ended) = fetch(Way::Host, &cluster, &says(&cluster, whole));
    assert!(matches!(ended, Err(TransferError::Damaged { after: 262_144 })), "{ended:?}");
    assert!(all.starts_with(&received));
}

#[test]
fn who_hangs_up_ends_the_transfer_at_both_sides() {
    let cluster = fresh_cluster();
    let node = source(Way::Host, &cluster, 1, FakeSource::Whole(state(50_000_000)));
    let mut fetch = Fetch::begin(&caller(Way::Host, &cluster, 9), &node.contact, REQUEST, |_| {}).unwrap();
    let mut some = vec![0; 300_000];
    fetch.read_exact(&mut some).unwrap();
    fetch.hang_up().now();
    assert!(fetch.read_to_end(&mut some).is_err());
    // The drop waits until the node's threads have returned.
    drop(node);
}
