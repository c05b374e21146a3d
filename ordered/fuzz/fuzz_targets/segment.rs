//! A segment's file as a disk may hold it: any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_ordered::log::fuzz::segment(bytes));
