//! The bytes that a node sends over a link.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fabric::net::fuzz::link(bytes));
