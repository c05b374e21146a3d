//! The tests' needs of the machine: turns, time, ports, files, and other programs.

use std::{
    env, fs,
    io::{self, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Long enough for a busy machine; a test waits so long only if something is broken.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Gives tests their turns. Clusters of several tests at once would disturb each other's measurements.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a condition holds. Panics if it does not within [`DEADLINE`].
pub(crate) fn until(what: &str, so: impl FnMut() -> bool) {
    assert!(within(DEADLINE, so), "not within {DEADLINE:?}: {what}");
}

/// Waits until a condition holds, for `limit` at most. Returns whether it does.
pub(crate) fn within(limit: Duration, mut so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a program from a Debian package is there. Without it the test skips.
pub(crate) fn has(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(&format!("{program} is not installed (Debian's package {package} has it)"));
    }
    found
}

/// Prints why a test does not run, unless skips are forbidden.
pub(crate) fn skip(reason: &str) {
    assert!(env::var_os("SQUALL_FORBID_SKIPS").is_none(), "{reason}, and SQUALL_FORBID_SKIPS is set");
    // Written directly, since the test harness captures the output of passing tests.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}

/// The first of twenty free ports in a row.
pub(crate) fn free_ports() -> u16 {
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    (first..60_000)
        .step_by(20)
        .find(|&base| (base..base + 20).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()))
        .expect("some ports are free")
}

/// A file that is removed on drop.
pub(crate) struct TemporaryFile(PathBuf);

impl TemporaryFile {
    /// Writes the file, with `{pid}` in its text replaced by this process's id.
    pub(crate) fn new(name: &str, text: &str) -> TemporaryFile {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.toml", std::process::id()));
        fs::write(&path, text.replace("{pid}", &std::process::id().to_string())).expect("the file can be written");
        TemporaryFile(path)
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().expect("a readable path")
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // The file lies among the tests' temporary files, so one that stays does no harm.
        let _ = fs::remove_file(&self.0);
    }
}
