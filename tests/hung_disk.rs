//! A durable group of five processes. One member's log hangs in the kernel, as on a disk that does not answer, while another member
//! is killed: the others go on without both, and the first comes back once its disk answers.
//!
//! Skipped, and said so, where `strace` is not there or may not attach to a process, unless `SQUALL_FORBID_SKIPS` is set.
#![expect(clippy::print_stderr, reason = "it says why it was skipped, and how long callers waited")]

mod process;
mod sum;

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use process::{Cluster, PATIENCE, Process};

/// The time for which members wait for one whose disk stands still; for its application longer, as usual. A busy machine's disk may take a while, too.
const TIMEOUT: Duration = Duration::from_secs(1);

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::builder("sum").disk_timeout(TIMEOUT);
    process::node_of(config.build().expect("the configuration is valid"));
}

/// Lets each write and sync of a process's log hang as long as this lives.
struct HungDisk(Child);

impl HungDisk {
    /// None where that is not possible.
    fn of(node: &Process) -> Option<HungDisk> {
        let calls = "pwrite64,pwritev,pwritev2,write,fdatasync,fsync";
        let child = Command::new("strace")
            .args(["-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:delay_enter=600000000")])
            .args(["-p", &node.thread("squall-storage").to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut hung = HungDisk(child.ok()?);
        // It ends at once if it may not attach.
        thread::sleep(Duration::from_millis(500));
        hung.0.try_wait().expect("it was started").is_none().then_some(hung)
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        // With the children by which it finds out at its start what the kernel can do. The kernel lets the thread go on where it was.
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn callers_go_on_while_one_disk_hangs_and_another_member_is_killed() {
    let cluster = Cluster::durable("hung", "tcp", 5);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(1), Ok(1));
    let Some(hung) = HungDisk::of(&nodes[1]) else {
        assert!(env::var_os("SQUALL_FORBID_SKIPS").is_none(), "strace can't attach to a process");
        eprintln!("skipped: strace can't attach to a process");
        return;
    };
    let began = Instant::now();
    nodes.remove(4).kill();
    for (sum, at) in (2..).zip([0, 2, 3, 0]) {
        assert_eq!(nodes[at].add(1), Ok(sum), "no submit fails for it");
    }
    let waited = began.elapsed();
    eprintln!("callers went on after {waited:?}");
    assert!(waited < PATIENCE, "{waited:?}");
    drop(hung);
    nodes[1].wait_members(&[1, 2, 3, 4]);
    assert_eq!(nodes[1].serves(), 5);
}
