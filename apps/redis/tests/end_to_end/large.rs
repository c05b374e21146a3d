//! Values of the greatest length.

use crate::{
    TemporaryFile,
    machine::{free_ports, until},
    one_at_a_time,
    process::{Cluster, Replica, resident_bytes},
};

/// A large value arrives in whole, is changed in place, and its memory is given back when it is removed.
fn a_large_value_is_stored_everywhere(bytes: usize) {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let [first, second, third] = &cluster.replicas[..] else { panic!("three replicas") };
    let length = bytes.to_string();
    let mut value: Vec<u8> = (0..bytes).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    let mut client = first.connect();
    assert_eq!(client.ask(&["SET", "small", "1"]), "OK");
    let before: Vec<u64> = cluster.replicas.iter().map(|replica| resident_bytes(replica.pid())).collect();

    assert_eq!(client.ask_bytes(&[b"SET", b"large", &value]), b"OK");
    assert!(second.connect().ask_bytes(&[b"GET", b"large"]) == value, "another replica has other bytes");
    assert_eq!(client.ask(&["SETRANGE", "large", &(bytes - 3).to_string(), "end"]), length);
    value[bytes - 3..].copy_from_slice(b"end");
    assert!(third.connect().ask_bytes(&[b"GET", b"large"]) == value, "the change is not there");
    assert_eq!(client.ask(&["DEL", "large"]), "1");
    assert_eq!(client.ask(&["APPEND", "large", "a"]), "1");
    assert_eq!(client.ask_bytes(&[b"APPEND", b"large", &value[1..]]), length.as_bytes());
    assert_eq!(third.connect().ask(&["STRLEN", "large"]), length);
    assert_eq!(client.ask(&["DEL", "large"]), "1");

    for (replica, before) in cluster.replicas.iter().zip(before) {
        until("the memory is given back", || resident_bytes(replica.pid()) < before + (bytes as u64) / 4);
    }
    cluster.stop();
}

#[test]
fn a_value_of_64_mib_is_stored_everywhere() {
    a_large_value_is_stored_everywhere(64 << 20);
}

/// `cargo test --release -p squall-redis --test end_to_end 512 -- --ignored`
#[test]
#[ignore = "takes some gigabytes of memory"]
fn a_value_of_512_mib_is_stored_everywhere() {
    a_large_value_is_stored_everywhere(512 << 20);
}

#[test]
fn a_command_beyond_the_reserve_is_refused_with_both_sizes() {
    let _turn = one_at_a_time();
    let file = TemporaryFile::new(
        "reserve",
        "cluster = \"reserve-{pid}\"\nid = 1\nmembers = [1]\n[groups.kv]\nbulk_reserve = \"1MiB\"\n",
    );
    let base = free_ports();
    let mut replica = Replica::alone(&["--id", "1", "--port", &base.to_string(), "--config", file.as_str()]);
    replica.port = base;
    until("it listens", || std::net::TcpStream::connect(replica.address()).is_ok());
    let mut client = replica.connect();
    let answer = client.ask(&["SET", "key", &"x".repeat(8 << 20)]);
    assert!(answer.starts_with('-'), "{}", &answer[..answer.len().min(100)]);
    assert!(answer.contains("83886") && answer.contains("1048576"), "both sizes: {answer}");
    assert_eq!(client.ask(&["SET", "key", "small"]), "OK", "the connection goes on");
}
