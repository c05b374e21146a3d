//! Records as another member may send them: any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_ordered::log::fuzz::export(bytes));
