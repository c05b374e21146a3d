//! Benchmarks of nodes that talk over sockets, as a user runs them.

use serde_json::Value;

use crate::{bench, run, text};

/// The rows of a benchmark.
fn rows(name: &str, options: &str) -> Vec<Value> {
    let arguments: Vec<&str> =
        [name, "--bare"].into_iter().chain(options.split_whitespace()).chain(["--json"]).collect();
    let output = run(&arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    let figures =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect::<Vec<Value>>();
    figures.into_iter().filter(|figure| figure["bench"] == name).collect()
}

#[test]
fn benchmarks_run_over_sockets_with_and_without_tls() {
    for (name, options, figure) in [
        ("ordered", "--nodes 3 --size 100,20000 --seconds 0.3 --window 8", "messages_per_second"),
        ("calls", "--nodes 2 --reads 50 --seconds 0.3", "calls_per_second"),
        ("bulk", "--nodes 4 --size 1000001,64MiB --iterations 2 --warm-up 0", "bytes_per_second"),
        ("onepipe", "--nodes 3 --seconds 0.1 --mode be,r", "scatterings_per_second"),
    ] {
        for tls in [false, true] {
            let options = format!("{options} --fabric tcp {}", if tls { "--tls" } else { "" });
            let rows = rows(name, &options);
            assert!(!rows.is_empty());
            for row in rows {
                assert_eq!((&row["fabric"], &row["tls"]), (&"tcp".into(), &tls.into()), "{row}");
                assert!(row[figure].as_f64() > Some(0.0), "{row}");
            }
        }
    }
}

#[test]
fn over_sockets_bulk_data_goes_by_the_pipeline() {
    let rows = rows("bulk", "--nodes 2 --size 64KiB --iterations 1 --warm-up 0 --fabric tcp");
    assert_eq!(rows[0]["algorithm"], "pipeline");
}

#[test]
fn nodes_can_be_started_through_a_command() {
    // `env` starts the command behind it, as `ip netns exec NAME` does, which only root may.
    let arguments = "ordered --bare --nodes 2 --seconds 0.2 --fabric tcp --json --wrap";
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    arguments.push("env SQUALL_HOST={host}");
    let output = run(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    *arguments.last_mut().expect("the wrapper") = "no-such-wrapper {host}";
    let output = run(&arguments);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("no-such-wrapper") && said.contains("--wrap"), "{said}");
}

#[test]
fn help_says_how_nodes_are_started_on_several_hosts() {
    let help = text(&bench("ordered --help").stdout);
    assert!(help.contains("--wrap 'ip netns exec host{host}'"), "{help}");
}
