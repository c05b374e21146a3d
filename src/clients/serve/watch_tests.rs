//! Nodes in this process, and clients that watch what changes.

use std::{collections::BTreeMap, io, thread, time::Duration};

use rkyv::{Archive, Archived, Deserialize, Serialize};
use squall_fabric::NodeId;

use super::{ServeOptions, tests::until};
use crate::{
    Applied, ChangePlace, Changes, Config, Node, Replicated, ServedGroup, Snapshot,
    clients::{
        client::{Client, ClientConfig, ClientError, Watch},
        query::{QueryService, Watched},
    },
};

const LIMIT: Duration = Duration::from_secs(60);

/// Values by name.
#[derive(Default)]
struct Board {
    values: BTreeMap<String, u64>,
    changes: Vec<(String, u64)>,
}

/// A name and its new value.
#[derive(Archive, Serialize, Deserialize)]
struct Put(String, u64);

impl Replicated for Board {
    type Command = Put;
    type Reply = ();

    fn apply(&mut self, put: &Archived<Put>, _at: &Applied) {
        let (name, value) = (put.0.to_string(), put.1.to_native());
        self.values.insert(name.clone(), value);
        self.changes.push((name, value));
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(Vec::new())
    }

    fn restore(&mut self, _from: &mut dyn io::Read) -> io::Result<()> {
        Ok(())
    }
}

impl QueryService for Board {
    type Query = ();
    type Answer = BTreeMap<String, u64>;

    fn answer(&self, _query: &()) -> BTreeMap<String, u64> {
        self.values.clone()
    }

    fn take_changes(&mut self, into: &mut Changes) {
        self.changes.drain(..).for_each(|(name, value)| into.push(name, &value));
    }
}

impl Watched for Board {
    type Change = u64;
}

fn cluster(test: &str) -> String {
    format!("watch-{test}-{}", std::process::id())
}

fn start(test: &str, members: u32, options: ServeOptions) -> Vec<(Node, ServedGroup<Board>)> {
    let start = |id| {
        let config = Config::builder(cluster(test), id).members(1..=members).build().unwrap();
        let mut node = Node::builder(config);
        let board = node.serve("board", Board::default(), options);
        (node.start().expect("the view is formed"), board)
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=members).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

fn client(test: &str, members: impl IntoIterator<Item = u32>) -> Client<Board> {
    let config = ClientConfig::on_host(cluster(test), members.into_iter().map(NodeId));
    Client::connect(&config.with_timeout(LIMIT), "board").unwrap()
}

/// Takes the next change: its key and its value.
fn next(watch: &mut Watch<Board>) -> (String, u64) {
    let change = watch.wait_next(LIMIT).expect("the watch goes on").expect("it comes in time");
    (String::from_utf8(change.key).expect("it is a name"), change.change)
}

fn put(board: &ServedGroup<Board>, name: &str, value: u64) {
    board.submit(&Put(name.to_owned(), value)).wait().expect("the group goes on");
}

#[test]
fn a_watch_tells_the_changes_of_its_keys_in_order_and_goes_on_where_its_member_stops() {
    let mut nodes = start("move", 3, ServeOptions::default());
    let client = client("move", [1, 2, 3]);
    let mut of_a = client.watch("a").wait().unwrap();
    // A member's own handle watches as well.
    let mut of_all = nodes[2].1.anywhere().watch("").wait().unwrap();
    let last = nodes[2].1.clone();
    for value in 0..200 {
        put(&last, ["a/1", "b/1"][value as usize % 2], value);
        if value == 50 || value == 100 {
            nodes[value as usize / 50 - 1].0.stop_serving();
        }
    }
    for value in 0..100 {
        assert_eq!(next(&mut of_a), ("a/1".to_owned(), 2 * value));
    }
    for value in 0..200 {
        assert_eq!(next(&mut of_all).1, value);
    }
    assert!(of_a.wait_next(Duration::ZERO).unwrap().is_none());
    assert_eq!(of_all.place().number, 200);
}

#[test]
fn a_copy_and_the_changes_behind_it_are_the_state() {
    let nodes = start("copy", 2, ServeOptions::default());
    let client = client("copy", [1]);
    let (_, board) = &nodes[1];
    thread::scope(|scope| {
        scope.spawn(|| (0..500).for_each(|value| put(board, ["x", "y", "z"][value as usize % 3], value)));
        for _ in 0..10 {
            let (mut values, mut watch) = client.watch_with_query("", &()).wait().unwrap();
            while values.values().max() != Some(&499) {
                let (name, value) = next(&mut watch);
                let before = values.insert(name, value);
                assert!(before.is_none_or(|before| before + 3 == value), "{before:?} was followed by {value}");
            }
            assert_eq!(values.values().sum::<u64>(), 497 + 498 + 499);
        }
    });
}

#[test]
fn a_watch_goes_on_from_a_stored_place_and_not_in_another_history() {
    let nodes = start("resume", 1, ServeOptions::default());
    let (_, board) = &nodes[0];
    let place: ChangePlace = {
        let mut watch = client("resume", [1]).watch("").wait().unwrap();
        (0..3).for_each(|value| put(board, "a", value));
        assert_eq!([(); 2].map(|()| next(&mut watch).1), [0, 1]);
        watch.place()
    };
    let client = client("resume", [1]);
    assert_eq!(place.number, 2);
    assert_eq!(next(&mut client.watch_from("", place).wait().unwrap()), ("a".to_owned(), 2));
    let other = ChangePlace { time_ns: place.time_ns + 1, ..place };
    assert_eq!(client.watch_from("", other).wait().err(), Some(ClientError::OtherHistory { number: 2 }));
    // No member will come to this place: all have passed its time.
    let beyond = ChangePlace { number: 1000, ..place };
    assert_eq!(client.watch_from("", beyond).wait().err(), Some(ClientError::OtherHistory { number: 1000 }));
    // Watches that have ended take no place of the 1024 that a client may have.
    for _ in 0..1024 {
        assert_eq!(client.watch_from("", other).wait().err(), Some(ClientError::OtherHistory { number: 2 }));
    }
    assert!(client.watch("").wait().is_ok());
    // This one may come yet.
    let later = ChangePlace { number: 1000, time_ns: u64::MAX };
    let late = client.within(Duration::from_millis(50)).watch_from("", later).wait().err();
    assert!(matches!(late, Some(ClientError::Deadline { sent: false, .. })), "{late:?}");
}

#[test]
fn a_program_that_takes_nothing_costs_its_credit_and_is_told_when_it_is_too_far_behind() {
    let options = ServeOptions { change_bytes: 4 << 20, ..ServeOptions::default() };
    let nodes = start("slow", 1, options);
    let (_, board) = &nodes[0];
    let client = client("slow", [1]);
    let mut watch = client.watch("").wait().unwrap();
    let mut slow = client.watch("").wait().unwrap();
    // More than all credit, and less than is kept.
    let name = "n".repeat(1000);
    (0..1000).for_each(|value| put(board, &name, value));
    for value in 0..1000 {
        assert_eq!(next(&mut watch).1, value);
    }
    for value in 1000..8000 {
        put(board, &name, value);
        if value % 100 == 0 {
            (value - 100..value).filter(|&value| value >= 1000).for_each(|value| assert_eq!(next(&mut watch).1, value));
        }
    }
    let mut came = 0;
    let error = loop {
        match slow.wait_next(LIMIT) {
            Ok(change) => {
                assert_eq!(change.expect("it comes in time").change, came);
                came += 1;
            }
            Err(error) => break error,
        }
    };
    // What waited for the program is told, with what was under way: 256 KiB, and a batch of 64 KiB.
    assert!((200..400).contains(&came), "{came}");
    let ClientError::TooFarBehind { needed, oldest } = error else { panic!("{error}") };
    assert!(needed == came + 1 && needed < oldest, "{needed} {oldest}");
    let again = slow.wait_next(LIMIT).unwrap_err();
    assert_eq!(again, ClientError::TooFarBehind { needed, oldest }, "it is told again");
}

#[test]
fn watches_end_with_their_handles_and_a_node_has_room_for_so_many() {
    let nodes = start("many", 1, ServeOptions::default());
    let (_, board) = &nodes[0];
    let client = client("many", [1]);
    let watching: Vec<_> = (0..1024).map(|_| client.watch("")).collect();
    let mut watches: Vec<_> = watching.into_iter().map(|watching| watching.wait().unwrap()).collect();
    let refused = client.watch("").wait().err();
    assert!(matches!(&refused, Some(ClientError::NotWatched(why)) if why.contains("1024")), "{refused:?}");
    let refused = client.watch([0; 1025]).wait().err();
    assert!(matches!(&refused, Some(ClientError::NotWatched(why)) if why.contains("1024 bytes")), "{refused:?}");
    put(board, "a", 1);
    assert!(watches.iter_mut().all(|watch| next(watch).1 == 1));
    watches.truncate(1);
    until("there is room again", || client.watch("").wait().is_ok());
    drop(client);
    put(board, "a", 2);
    assert_eq!(next(&mut watches[0]).1, 2, "a watch needs no other handle of its client");
    // A client that is gone ends what waits for it.
    let nobody = ClientConfig::on_host(cluster("nobody"), [NodeId(1)]).with_timeout(Duration::from_millis(50));
    let error = Client::<Board>::connect(&nobody, "board").unwrap().watch("").wait().err();
    assert!(matches!(error, Some(ClientError::Deadline { sent: false, .. })), "{error:?}");
}
