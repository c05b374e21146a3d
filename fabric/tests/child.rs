//! Tests that need a process of their own run this test program once more, for one test that does nothing otherwise.

use std::process::{Child, Command, Stdio};

const ROLE: &str = "SQUALL_SHM_TEST_CHILD";

/// A child process, killed when this is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Runs `test`, the path of a test function that begins with [`argument`], in a new process.
    pub(crate) fn start(test: &str, argument: &str) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, argument)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Process(child)
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    #[track_caller]
    pub(crate) fn succeed(mut self) {
        assert!(self.0.wait().unwrap().success(), "the child process failed: see its messages above");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The parent's argument, in a process that was started for the calling test.
pub(crate) fn argument() -> Option<String> {
    std::env::var(ROLE).ok()
}
