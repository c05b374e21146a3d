//! Processes of other users on this host. Each is this test program once more, for one test.

use std::{
    io::BufRead,
    net::TcpListener,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use super::*;

const ROLE: &str = "SQUALL_NET_TEST_STRANGER";

/// Some user that is not root.
const STRANGER: u32 = 65534;

/// A process of another user, killed when this is dropped.
struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test in a process of another user. Returns None if this user may not do that: the test is skipped.
fn stranger(test: &str, argument: &str) -> Option<Stranger> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("SQUALL_FORBID_SKIPS").is_none(), "only root can run a process of another user");
        return None;
    }
    let test = format!("net::tests::users::{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &test, "--nocapture", "--test-threads=1"]).env(ROLE, argument).uid(STRANGER);
    Some(Stranger(command.stdout(Stdio::piped()).spawn().unwrap()))
}

/// The number of bytes that come until the connection ends.
fn bytes_of(mut socket: TcpStream) -> usize {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => bytes.len(),
    }
}

#[test]
fn a_process_of_another_user_gets_no_challenge_without_keys() {
    if let Ok(address) = std::env::var(ROLE) {
        assert_eq!(bytes_of(TcpStream::connect(address).unwrap()), 0);
        return;
    }
    let node = Node::open(&config(1, &["127.0.0.1:0"]), Plane::Verbs);
    let Some(mut child) = stranger("a_process_of_another_user_gets_no_challenge_without_keys", &node.address()) else {
        return;
    };
    assert!(child.0.wait().unwrap().success(), "the other process failed: see its messages above");
    node.counts("another user's process", |stats| stats.refused.other_user == 1 && stats.refused.total() == 1);
}

#[test]
fn a_process_of_another_user_gets_no_hello_without_keys() {
    if std::env::var_os(ROLE).is_some() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        writeln!(std::io::stdout(), "{}", listener.local_addr().unwrap()).unwrap();
        loop {
            let (socket, _) = listener.accept().unwrap();
            let mut bare = Bare { socket, pipe: Pipe::plain() };
            bare.send(&Greeting::Challenge { version: PROTOCOL, challenge: [1; 16] }.encode());
            assert_eq!(bytes_of(bare.socket), 0);
        }
    }
    let Some(mut child) = stranger("a_process_of_another_user_gets_no_hello_without_keys", "listen") else { return };
    let mut lines = std::io::BufReader::new(child.0.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| line.unwrap().rsplit_once("127.0.0.1:").map(|(_, port)| port.to_owned()));
    let address = format!("127.0.0.1:{}", address.expect("it prints its address"));
    let mut node = Node::open(&config(1, &[]), Plane::Verbs);
    node.net.set_peer(NodeId(2), vec![address.clone()]);
    node.connect(2, 1);
    node.counts("another user's listener", |stats| stats.refused.other_user > 0);
    drop(node);
    let call = ServiceDial {
        addresses: &[address],
        peer: None,
        cluster: CLUSTER,
        node: NodeId(1),
        security: &Security::LoopbackOnly,
        service: ServiceId(1),
        connect_timeout: PATIENCE,
        timeout: PATIENCE,
    };
    let error = dial_service(&call).unwrap_err().to_string();
    assert!(error.contains("its process belongs to another user"), "{error}");
    assert_eq!(child.0.try_wait().unwrap(), None, "the other process failed: see its messages above");
}
