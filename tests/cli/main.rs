//! The `squall` command, as a user runs it.

mod admin;
mod copy;
mod copy_interrupted;
mod copy_links;
mod copy_network;
mod copy_open_files;
mod copy_options;
#[path = "../support/drawing.rs"]
mod drawing;
mod log_export;
mod log_service;
mod network;
mod rdmc;

use std::process::{Command, Output};

/// Runs the command with these arguments, which spaces separate.
fn squall(arguments: &str) -> Output {
    run(&arguments.split_whitespace().collect::<Vec<_>>())
}

/// Runs the command with these arguments.
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_squall")).args(arguments).output().expect("it can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the command prints UTF-8")
}

/// The output of the command, which must succeed.
fn printed(arguments: &str) -> String {
    let output = squall(arguments);
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    text(&output.stdout)
}
