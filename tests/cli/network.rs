//! The command's part in clusters on networks, as a user runs it: keys, and the doctor.

use std::{fs, net::TcpListener};

use serde_json::Value;
use tempfile::TempDir;

use super::{run, text};

/// A directory that is removed after the test.
struct Directory(TempDir);

impl Directory {
    fn new() -> Directory {
        Directory(tempfile::tempdir().expect("a directory can be made"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a readable path").to_owned()
    }
}

#[test]
fn keys_are_made_shown_and_never_replaced_unasked() {
    let directory = Directory::new();
    let keys = directory.path("keys");
    let output = run(&["keys", "init", "--cluster", "bank", "--dir", &keys]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(&["keys", "add", "--dir", &keys, "--node", "1,2", "--days", "30"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("node-2.key") && said.contains("[security]"), "{said}");
    let again = run(&["keys", "add", "--dir", &keys, "--node", "3,2"]);
    let said = text(&again.stderr);
    assert!(!again.status.success() && said.contains("node-2.key") && said.contains("--force"), "{said}");
    assert!(!directory.0.path().join("keys/node-3.key").exists(), "all or none");
    assert!(run(&["keys", "add", "--dir", &keys, "--node", "2", "--force"]).status.success());
    let output = run(&["keys", "show", &directory.path("keys/ca.pem"), &directory.path("keys/node-1.pem")]);
    let said = text(&output.stdout);
    assert!(said.contains("the CA of cluster \"bank\"") && said.contains("node 1 of cluster \"bank\""), "{said}");
    let output = run(&["keys", "show", &directory.path("keys/node-1.key")]);
    assert_eq!(output.status.code(), Some(1));
    for name in ["a b", "..", "../bank", "a/b", ""] {
        assert_eq!(run(&["keys", "init", "--cluster", name, "--dir", &keys]).status.code(), Some(2), "{name:?}");
    }
}

#[test]
fn the_doctor_says_whether_a_node_can_run() {
    let directory = Directory::new();
    let config = directory.path("squall.toml");
    // The port is held while the other checks run.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let held = listener.local_addr().expect("it has an address");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port is free");
    let file = format!(
        "cluster = \"bank\"\n[fabric]\nbackend = \"tcp\"\n[addresses]\n1 = \"{free}\"\n2 = \"{held}\"\n[security]\n\
         ca = \"ca.pem\"\ncertificate = \"node-{{id}}.pem\"\nkey = \"node-{{id}}.key\"\n"
    );
    fs::write(&config, file).expect("the file can be written");
    let look = || {
        let output = run(&["doctor", "--config", &config, "--id", "1", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        (output.status.success(), report)
    };
    let (possible, report) = look();
    assert!(!possible && report["configuration"].to_string().contains("squall keys"), "there are no keys: {report}");
    let keys = directory.0.path().to_str().expect("a readable path");
    assert!(run(&["keys", "init", "--cluster", "bank", "--dir", keys]).status.success());
    assert!(run(&["keys", "add", "--dir", keys, "--node", "1"]).status.success());
    let (possible, report) = look();
    assert!(possible, "{report}");
    assert_eq!((&report["carrier"], &report["configuration"]["usable"]), (&"tcp".into(), &true.into()));
    assert!(report["configuration"].to_string().contains(&format!("{held}, of node 2, can be reached")), "{report}");
    let reads =
        if squall::config::hypervisor().is_some() { "is confirmed by the other members" } else { "local under leases" };
    assert!(report["configuration"].to_string().contains(reads), "{report}");
}

#[test]
fn help_teaches_by_example() {
    for (arguments, teaches) in [
        (&["keys", "--help"][..], "squall keys add --dir keys --node 1,2,3"),
        (&["keys", "add", "--help"], "--force"),
        (&["doctor", "--help"], "squall doctor --config squall.toml --id 2"),
    ] {
        let output = run(arguments);
        let help = text(&output.stdout);
        assert!(
            output.status.success() && help.contains(teaches),
            "{arguments:?} does not mention {teaches:?}: {help}"
        );
    }
}
