//! The set-up of an endpoint that a peer sends before.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fabric::tcp::fuzz::set_up(bytes));
