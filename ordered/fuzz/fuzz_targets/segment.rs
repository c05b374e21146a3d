//! What a segment's file may hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_ordered::log::fuzz::segment(bytes));
