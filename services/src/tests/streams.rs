//! Dialing and serving.

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use crossbeam::channel::unbounded;
use squall_fabric::net::{ServiceDial, dial_service};

use super::{nodes::security, *};

/// Returns a handler that reads to the end, and then sends the bytes back, followed by the caller's id.
fn echo() -> Handler {
    Arc::new(|mut stream| {
        let mut all = Vec::new();
        // A caller that hangs up gets no echo.
        if stream.reader.read_to_end(&mut all).is_ok() {
            all.extend(stream.peer.0.to_le_bytes());
            let _ = stream.writer.write_all(&all);
        }
    })
}

fn converse(stream: ControlStream, say: &[u8]) -> Vec<u8> {
    let ControlStream { mut reader, mut writer, .. } = stream;
    writer.write_all(say).unwrap();
    drop(writer);
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn a_service_has_the_streams_of_whoever_dials_it() {
    for &way in WAYS {
        let cluster = fresh_cluster();
        let node = Node::start(way, &cluster, 1, vec![(Service::State, echo())]);
        let stream = caller(way, &cluster, 9).dial(&node.contact, Service::State, PATIENCE).unwrap();
        assert_eq!(stream.peer, NodeId(1), "{way:?}");
        let large = vec![7; 1_000_000];
        assert_eq!(converse(stream, &large), [&large[..], &9u32.to_le_bytes()].concat(), "{way:?}");
    }
}

#[test]
fn an_address_alone_leads_to_whoever_listens_there() {
    let cluster = fresh_cluster();
    let node = Node::start(Way::Port, &cluster, 3, vec![(Service::Admin, echo())]);
    let contact = DialTarget { node: None, ..node.contact };
    let stream = caller(Way::Port, &cluster, 9).dial(&contact, Service::Admin, PATIENCE).unwrap();
    assert_eq!(stream.peer, NodeId(3));
}

#[test]
fn a_service_that_is_not_offered_is_refused() {
    for &way in WAYS {
        let cluster = fresh_cluster();
        let node = Node::start(way, &cluster, 1, vec![(Service::State, echo())]);
        let error = caller(way, &cluster, 9).dial(&node.contact, Service::Admin, PATIENCE).unwrap_err();
        assert!(matches!(error, ControlError::NoService { .. } | ControlError::Dial(_)), "{way:?}: {error}");
    }
}

#[test]
fn a_node_that_does_not_run_is_named() {
    let to = DialTarget { node: Some(NodeId(4)), addresses: Vec::new() };
    let error = caller(Way::Host, "test-absent", 9).dial(&to, Service::State, PATIENCE).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("node 4 of cluster \"test-absent\" does not run on this host"), "{text}");
    let error = caller(Way::Port, "test-absent", 9).dial(&to, Service::State, PATIENCE).unwrap_err();
    assert!(matches!(error, ControlError::NoAddress { .. }), "{error}");
}

#[test]
fn a_node_runs_once_on_a_host() {
    let cluster = fresh_cluster();
    let first = Node::start(Way::Host, &cluster, 1, vec![]);
    let error = Server::on_host(&cluster, NodeId(1), vec![]).unwrap_err();
    let expected = format!("node 1 of cluster {cluster:?} runs already on this host");
    assert!(error.to_string().contains(&expected), "{error}");
    drop(first);
    Server::on_host(&cluster, NodeId(1), vec![]).expect("the name is free again");
}

/// The cluster of the other user's node: the test's program runs once more, with this set.
const OTHER_USERS: &str = "SQUALL_SERVICES_TEST_CLUSTER";

#[test]
fn a_node_of_another_user_is_told_from_one_that_does_not_run() {
    if let Ok(cluster) = std::env::var(OTHER_USERS) {
        let _node = Node::start(Way::Host, &cluster, 1, vec![]);
        // Until the parent ends, or wants this process to.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let (cluster, to) = (fresh_cluster(), DialTarget::on_host(NodeId(1)));
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "tests::streams::a_node_of_another_user_is_told_from_one_that_does_not_run";
    command.args(["--exact", test]).env(OTHER_USERS, &cluster).uid(65534).stdin(Stdio::piped()).stdout(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        assert!(std::env::var_os("SQUALL_FORBID_SKIPS").is_none(), "only root can run a process of another user");
        return;
    };
    let dial = || caller(Way::Host, &cluster, 9).dial(&to, Service::State, PATIENCE).unwrap_err();
    let until = Instant::now() + PATIENCE;
    while !matches!(dial(), ControlError::OtherUser { node: NodeId(1) }) {
        assert!(Instant::now() < until, "{}", dial());
    }
    let own = Node::start(Way::Host, &cluster, 1, vec![]);
    assert!(matches!(dial(), ControlError::NoService { .. }), "this user's node has the name too");
    drop(own);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "the other process failed: see its messages above");
    assert!(matches!(dial(), ControlError::Absent { .. }));
}

#[test]
fn what_is_no_hello_is_hung_up_on_and_harms_nobody() {
    let cluster = fresh_cluster();
    let node = Node::start(Way::Host, &cluster, 1, vec![(Service::State, echo())]);
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"squallct", b"squallct\xff\0\0\0\x03\0\0\0\x09\0\0\0\x01\0\0\0"]
    {
        let mut stranger = local::dial(caller::KIND, &caller::name(&cluster, NodeId(1))).unwrap();
        stranger.write_all(bytes).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Bytes that the node did not read turn the end into a reset.
        let _ = stranger.read_to_end(&mut answer);
        assert_eq!(answer, b"", "to {bytes:?}");
    }
    let stream = node.caller.dial(&node.contact, Service::State, PATIENCE).unwrap();
    assert_eq!(converse(stream, b"still"), [&b"still"[..], &1u32.to_le_bytes()].concat());
}

#[test]
fn another_node_than_was_called_is_told_apart() {
    let cluster = fresh_cluster();
    let node = Node::start(Way::Port, &cluster, 1, vec![(Service::State, echo())]);
    let contact = DialTarget { node: Some(NodeId(2)), ..node.contact };
    let error = caller(Way::Port, &cluster, 9).dial(&contact, Service::State, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("not the node that was called"), "{error}");
}

#[test]
fn streams_of_a_service_are_limited() {
    for &way in WAYS {
        let cluster = fresh_cluster();
        let node = Node::start(way, &cluster, 1, vec![(Service::State, echo())]);
        let dial = || node.caller.dial(&node.contact, Service::State, PATIENCE);
        let mut held: Vec<_> = (0..Service::State.id().limit()).map(|_| dial().unwrap()).collect();
        let error = dial().unwrap_err();
        assert!(matches!(error, ControlError::Busy { node: NodeId(1), .. }), "{way:?}: {error}");
        converse(held.pop().unwrap(), b"bye");
        // The thread of the stream may still have to end.
        let until = Instant::now() + PATIENCE;
        while matches!(dial(), Err(ControlError::Busy { .. })) {
            assert!(Instant::now() < until, "{way:?}: there is no room again");
            thread::yield_now();
        }
    }
}

#[test]
fn callers_of_the_port_that_never_say_hello_lock_out_no_other() {
    let cluster = fresh_cluster();
    let node = Node::start(Way::Tls, &cluster, 1, vec![(Service::Log, echo()), (Service::State, echo())]);
    let security = security(Way::Tls, &cluster, 8).expect("it has keys");
    let mute = || {
        let to = ServiceDial {
            addresses: &node.contact.addresses,
            peer: node.contact.node,
            cluster: &cluster,
            node: NodeId(8),
            security: &security,
            service: Service::Log.id(),
            connect_timeout: PATIENCE,
            timeout: PATIENCE,
        };
        dial_service(&to).unwrap()
    };
    // More than a server hears before they have named a service.
    let _crowd: Vec<_> = (0..100).map(|_| mute()).collect();
    let stream = node.caller.dial(&node.contact, Service::State, PATIENCE).unwrap();
    assert_eq!(converse(stream, b"here"), [&b"here"[..], &1u32.to_le_bytes()].concat());
}

#[test]
fn a_server_that_ends_takes_its_streams_with_it() {
    for &way in WAYS {
        let cluster = fresh_cluster();
        let (began, begun) = unbounded();
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        let handler: Handler = Arc::new(move |mut stream| {
            began.send(()).unwrap();
            let _ = stream.reader.read_to_end(&mut Vec::new());
            count.fetch_add(1, Ordering::Relaxed);
        });
        let mut node = Node::start(way, &cluster, 1, vec![(Service::State, handler)]);
        let mut streams = [(); 2].map(|()| node.caller.dial(&node.contact, Service::State, PATIENCE).unwrap());
        begun.iter().take(2).for_each(drop);
        drop(node.server.take());
        assert_eq!(ended.load(Ordering::Relaxed), 2, "{way:?}: all handlers have returned");
        for stream in &mut streams {
            let _ = stream.reader.read_to_end(&mut Vec::new());
        }
    }
}
