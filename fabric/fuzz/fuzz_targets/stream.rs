//! The bytes that a peer sends over an endpoint's connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fabric::tcp::fuzz::stream(bytes));
