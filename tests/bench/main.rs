//! The `squall-bench` command, as a user runs it.

mod command;
#[path = "../support/drawing.rs"]
mod drawing;
mod log;
mod network;
mod onepipe;
mod rdmc;
mod shards;
mod transactions;

use std::process::{Command, Output};

use serde_json::Value;

/// Runs the command with these arguments, which spaces separate.
fn bench(arguments: &str) -> Output {
    run(&arguments.split_whitespace().collect::<Vec<_>>())
}

/// Runs the command with these arguments.
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_squall-bench")).args(arguments).output().expect("it can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the command prints UTF-8")
}

/// The output of the command, which must succeed.
fn printed(arguments: &str) -> String {
    let output = bench(arguments);
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A figure of a row of JSON.
fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {row}"))
}
