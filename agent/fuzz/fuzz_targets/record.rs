//! Any bytes as a database record: decoded or rejected, never more than was written.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::record(bytes));
