//! Nodes as their users run them, over shared memory and TCP: several in this process, or each in a process of its own.

mod access;
mod appending;
mod collectives;
mod damaged_command;
mod disks;
mod failures;
mod forming;
mod groups;
mod history;
mod hung_disk;
mod kill_rounds;
mod members;
mod network;
mod onepipe;
mod operator;
mod poison_command;
#[path = "../support/process.rs"]
mod process;
mod recover_command;
mod replaced_disk;
mod restart;
#[path = "../support/schema.rs"]
mod schema;
mod sharded;
mod signed_log;
mod status;
mod stop_all;
mod stopped_replicas;
#[path = "../support/sum.rs"]
mod sum;
mod transfer;
mod typed;
mod watching;
mod wrong_directories;

#[test]
#[ignore = "it is what other tests start as processes"]
fn node() {
    process::node();
}
