//! The store with a client library of another project, as applications use it.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    machine::{one_at_a_time, skip},
    process::ends_within,
    target::Target,
};

/// The version that `page.py` was written for.
const REDIS_PY: &str = "8.1.0";

/// The limit of the page's run. It takes some seconds, and may have to wait.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn a_page_of_ordinary_use_by_redis_py() {
    let python = match python_with_redis() {
        Ok(python) => python,
        Err(reason) => return skip(&reason),
    };
    let _turn = one_at_a_time();
    let target = Target::start();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/clients/page.py");
    let mut command = Command::new(python);
    // A warning would announce something that the library is about to drop.
    command.args(["-B", "-W", "error"]).arg(page).args(target.addresses().iter().map(ToString::to_string));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python starts");
    let status = ends_within(LIMIT, &mut child);
    let mut said = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
    assert!(status.is_some_and(|status| status.success()), "{status:?} (none: not within {LIMIT:?})\n{said}");
    target.stop();
}

/// A Python that has the package, made if it is not there yet; or the reason why there is none.
fn python_with_redis() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-py-{REDIS_PY}"));
    let python = folder.join("bin/python");
    let works = || {
        let check = format!("import redis; assert redis.__version__ == '{REDIS_PY}'");
        run(Command::new(&python).args(["-c", &check])).is_ok()
    };
    if works() {
        return Ok(python);
    }
    // An environment that another process is making, or has left half made.
    let _ = fs::remove_dir_all(&folder);
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .map_err(|error| format!("python3 makes no virtual environment (Debian's package python3-venv): {error}"))?;
    let package = format!("redis=={REDIS_PY}");
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package]))
        .map_err(|error| format!("pip can't install {package}: {error}"))?;
    if works() { Ok(python) } else { Err(format!("{package} was installed, but is not there")) }
}

/// Runs a command to its end. The error is its last line of output.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed, and said nothing").to_owned())
}
