//! Hosts for tests whose nodes are processes: network namespaces, as the script beside this file makes them.

// Each test uses only a part of this module.
#![allow(dead_code)]

use std::{
    env,
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// Hosts 1 to n, each with the name `hostK` and the addresses `10.77.0.K` and `fd77::K`. The hosts, and the processes
/// on them, are removed when this is dropped.
pub(crate) struct Hosts {
    set: String,
}

impl Hosts {
    /// Makes `count` hosts; `rate` is that of each link, such as "200mbit". None where the machine or the user can't
    /// have namespaces: the test is skipped, and says so, unless `SQUALL_FORBID_SKIPS` is set.
    pub(crate) fn up(count: u32, rate: &str) -> Option<Hosts> {
        static SETS: AtomicU32 = AtomicU32::new(0);
        let set = format!("{:x}t{}", std::process::id(), SETS.fetch_add(1, Ordering::Relaxed));
        let hosts = Hosts { set };
        let made = hosts.script("up").args([&count.to_string(), "--rate", rate]).output().expect("bash runs");
        if made.status.success() {
            return Some(hosts);
        }
        let reason = String::from_utf8_lossy(&made.stderr).trim_end().to_owned();
        assert!(env::var_os("SQUALL_FORBID_SKIPS").is_none(), "there are no hosts to test with: {reason}");
        // Written past the test harness, which keeps the output of passing tests to itself.
        let _ = writeln!(std::io::stderr(), "skipped: there are no hosts to test with: {reason}");
        None
    }

    /// Returns a command that will run on a host. Its process is the program's own, so signals reach it.
    pub(crate) fn command(&self, host: u32, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.script("run");
        command.arg(host.to_string()).arg(program);
        command
    }

    /// From now on, drops all traffic to and from a host, silently.
    pub(crate) fn cut(&self, host: u32) {
        self.change("cut", &[host]);
    }

    /// From now on, drops all traffic between two hosts, silently.
    pub(crate) fn cut_between(&self, a: u32, b: u32) {
        self.change("cut", &[a, b]);
    }

    /// Undoes a [`cut`](Hosts::cut).
    pub(crate) fn heal(&self, host: u32) {
        self.change("heal", &[host]);
    }

    /// Undoes a [`cut_between`](Hosts::cut_between).
    pub(crate) fn heal_between(&self, a: u32, b: u32) {
        self.change("heal", &[a, b]);
    }

    fn change(&self, what: &str, hosts: &[u32]) {
        let status = self.script(what).args(hosts.iter().map(u32::to_string)).status().expect("bash runs");
        assert!(status.success(), "{what} {hosts:?} failed: see above");
    }

    fn script(&self, what: &str) -> Command {
        let mut command = Command::new(script());
        command.args(["--name", &self.set, what]);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The script itself reports anything that it could not remove.
        let _ = self.script("down").status();
    }
}

/// Returns the script's path, from any package of the workspace.
fn script() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let found = above.map(|folder| folder.join("tests/hosts/hosts")).find(|script| script.is_file());
    found.expect("the package lies in the workspace")
}
