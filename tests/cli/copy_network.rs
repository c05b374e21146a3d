//! `squall cp` over a network, as an operator runs it: with keys, without them, and with the wrong ones.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use tempfile::TempDir;

use super::{run, text};

/// A directory with the keys of nodes 1 to 3 of a cluster and a file to copy, which is removed after the test.
pub(super) struct World {
    base: TempDir,
}

/// A receiver, which is killed when it is dropped.
pub(super) struct Receiver {
    process: Child,
    pub(super) address: String,
    pub(super) directory: PathBuf,
    /// Kept open, so that the receiver can write more.
    _said: BufReader<ChildStderr>,
}

impl World {
    pub(super) fn new() -> World {
        let world = World { base: tempfile::tempdir().expect("a directory can be made") };
        let mut bytes = vec![0; 3_000_000];
        fastrand::Rng::with_seed(7).fill(&mut bytes);
        fs::write(world.path("file"), bytes).expect("a file");
        world.make_keys("keys", "cp");
        world
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.base.path().join(name).to_str().expect("a readable path").to_owned()
    }

    fn make_keys(&self, directory: &str, cluster: &str) {
        let directory = self.path(directory);
        assert!(run(&["keys", "init", "--cluster", cluster, "--dir", &directory]).status.success());
        assert!(run(&["keys", "add", "--dir", &directory, "--node", "1,2,3"]).status.success());
    }

    /// Options that name a node's keys.
    fn keys(&self, directory: &str, node: u32) -> Vec<String> {
        ["--keys", &self.path(directory), "--node", &node.to_string()].map(str::to_owned).into()
    }

    /// Starts a receiver at a free port of loopback.
    pub(super) fn serve(&self, name: &str, protection: &[String]) -> Receiver {
        let directory = self.base.path().join(name);
        fs::create_dir(&directory).expect("the name is new");
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.args(["cp", "serve", "--quiet", "--name", name, "--listen", "127.0.0.1:0", "--dir"]).arg(&directory);
        command.args(protection).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("it can be started");
        let mut said = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says something");
        let address = line.trim_end().rsplit_once("listens on ").unwrap_or_else(|| panic!("{name}: {line}")).1;
        Receiver { address: address.to_owned(), process, directory, _said: said }
    }

    fn push(&self, to: &[&Receiver], protection: &[String]) -> Output {
        let to: Vec<&str> = to.iter().map(|receiver| &*receiver.address).collect();
        self.push_to(&to.join(","), protection)
    }

    fn push_to(&self, to: &str, protection: &[String]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.args(["cp", "push", "--quiet", "--no-sync", "--to", to]).arg(self.base.path().join("file"));
        command.args(protection).output().expect("it can be started")
    }

    pub(super) fn assert_copied(&self, receiver: &Receiver) {
        let [sent, received] = [self.base.path(), &receiver.directory]
            .map(|directory| fs::read(directory.join("file")).expect("it is there"));
        assert!(sent == received, "{} differs", receiver.directory.display());
    }
}

impl Receiver {
    fn assert_empty(&self) {
        assert!(!self.directory.join("file").exists(), "something was written into {}", self.directory.display());
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Checks that the command failed with this code, and said all of these words.
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} are not all in: {said}");
}

#[test]
fn a_file_reaches_all_receivers_with_tls_and_without() {
    let world = World::new();
    for tls in [true, false] {
        let keys = |node| if tls { world.keys("keys", node) } else { Vec::new() };
        let receivers = [2, 3].map(|node| world.serve(&format!("{tls}{node}"), &keys(node)));
        let output = world.push(&[&receivers[0], &receivers[1]], &keys(1));
        assert!(output.status.success(), "{}", text(&output.stderr));
        receivers.iter().for_each(|receiver| world.assert_copied(receiver));
    }
}

#[test]
fn who_has_no_keys_or_those_of_another_authority_is_refused_and_disturbs_nobody() {
    let world = World::new();
    world.make_keys("others", "cp");
    let receiver = world.serve("a", &world.keys("keys", 2));
    // Bytes that are no greeting at all.
    let mut stranger = TcpStream::connect(&receiver.address).expect("it listens");
    stranger.write_all(&[0xff; 4096]).expect("it takes some bytes");
    for protection in [world.keys("others", 1), Vec::new(), vec!["--security".to_owned(), "none".to_owned()]] {
        let output = world.push(&[&receiver], &protection);
        assert_refused(&output, 1, &[&receiver.address, "keys of the same CA"]);
        receiver.assert_empty();
    }
    let output = world.push(&[&receiver], &world.keys("keys", 1));
    assert!(output.status.success(), "{}", text(&output.stderr));
    world.assert_copied(&receiver);
}

#[test]
fn a_source_with_keys_trusts_no_receiver_without() {
    let world = World::new();
    let receiver = world.serve("a", &[]);
    assert_refused(&world.push(&[&receiver], &world.keys("keys", 1)), 1, &[&receiver.address, "can't be called"]);
    receiver.assert_empty();
}

#[test]
fn keys_that_can_t_be_used_are_refused_with_a_remedy() {
    let world = World::new();
    let push = |protection: &[String]| world.push_to("127.0.0.1:1", protection);
    assert_refused(&push(&world.keys("keys", 4)), 2, &["node-4.key", "squall keys add"]);
    assert_refused(&push(&world.keys("keys", 1)[..2]), 2, &["keys of several owners", "--node"]);
    assert_refused(&push(&world.keys("nowhere", 1)[..2]), 2, &["nowhere", "can't be read"]);
    world.make_keys("bank", "bank");
    assert_refused(&push(&world.keys("bank", 1)), 1, &["not for cluster \"cp\"", "squall keys add"]);
    let key = world.base.path().join("keys/node-1.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("it is this user's");
    assert_refused(&push(&world.keys("keys", 1)), 2, &["node-1.key", "chmod 600"]);
}

#[test]
fn without_keys_a_copy_stays_on_this_host_unless_it_is_told_otherwise() {
    let world = World::new();
    let serve = run(&["cp", "serve", "--dir", &world.path(""), "--listen", "0.0.0.0:0"]);
    assert_refused(&serve, 1, &["without protection", "--keys DIR", "--security none"]);
    // TEST-NET-1 (RFC 5737): the command does not even dial it.
    assert_refused(&world.push_to("192.0.2.1:7700", &[]), 1, &["192.0.2.1:7700", "--keys DIR", "--security none"]);
}

#[test]
fn options_that_make_no_sense_together_are_usage_errors() {
    let world = World::new();
    assert_refused(&world.push_to("a,127.0.0.1:7700", &[]), 2, &["names of this host and addresses"]);
    assert_refused(&world.push_to("a,b", &world.keys("keys", 1)), 2, &["--keys", "over a network"]);
    let serve = run(&["cp", "serve", "--dir", &world.path(""), "--name", "a", "--security", "none"]);
    assert_refused(&serve, 2, &["--security", "--listen"]);
}
