//! What a peer says of an endpoint before.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fabric::tcp::fuzz::set_up(bytes));
