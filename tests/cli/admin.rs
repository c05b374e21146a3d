//! The command's requests to nodes that run, as an operator makes them.

use super::{squall, text};

#[test]
fn help_teaches_by_example() {
    for (command, teaches) in [
        ("status", "squall status --cluster bank --node 1"),
        ("status", "4  degraded: something is to be looked at"),
        ("suspect", "squall suspect 3 --config squall.toml"),
        ("leave", "squall leave --cluster bank --node 3"),
        ("recover", "there are TWO groups"),
    ] {
        let output = squall(&format!("{command} --help"));
        assert!(output.status.success());
        let help = text(&output.stdout);
        assert!(help.contains(teaches), "{command} does not mention {teaches:?}: {help}");
    }
}

#[test]
fn a_node_that_does_not_run_is_named() {
    let name = format!("test-admin-command-{}", std::process::id());
    for command in ["status", "suspect 3", "leave", "recover --force --reason test --yes"] {
        let output = squall(&format!("{command} --cluster {name} --node 2"));
        let expected = format!("squall: node 2 of cluster {name:?} does not run on this host");
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.starts_with(&expected), "{command}: {said}");
    }
}

#[test]
fn what_makes_no_sense_is_said_before_anybody_is_asked() {
    for (arguments, word) in [
        ("status", "--config"),
        ("status --cluster bank", "--node"),
        ("status --cluster bank --node 1 --address 10.0.0.1:7700", "--address"),
        ("status --cluster bank --address nowhere", "host.example:7700"),
        ("status --config /nonexistent/squall.toml", "can't be read"),
        ("status --cluster bank --node 1 --watch=0", "give a time from 10ms"),
        ("status --cluster bank --node 1 --watch=9ms", "give a time from 10ms"),
        ("status --cluster bank --node 1 --watch=soon", "such as 500ms, 5s or 10m"),
        ("status --all --cluster bank", "--node"),
        ("status --all --config /nonexistent/squall.toml", "can't be read"),
        ("recover --cluster bank --node 1 --reason test", "--force"),
        ("suspect --cluster bank --node 1", "MEMBER"),
    ] {
        let output = squall(arguments);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(word), "{arguments}: {:?} {said}", output.status);
    }
}
