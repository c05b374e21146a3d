//! A certificate, and a revocation list.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fabric::net::fuzz::certificate(bytes));
