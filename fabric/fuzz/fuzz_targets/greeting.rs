//! The bytes that any process may send to a node's port.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fabric::net::fuzz::greeting(bytes));
