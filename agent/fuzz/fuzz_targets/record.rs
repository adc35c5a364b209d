//! Any bytes as a record of the database: read or refused, never more than was written.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::record(bytes));
