//! What another member may send as records.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_ordered::log::fuzz::export(bytes));
