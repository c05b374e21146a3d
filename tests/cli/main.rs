//! The `squall` command, as a user runs it.

mod admin;
mod command;
mod copy;
mod copy_network;
mod log_bench;
mod log_service;
mod network;
mod onepipe;
mod rdmc;
