//! The names in a certificate, a list of serial numbers, and what the kernel says of sockets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fabric::net::fuzz::names(bytes));
