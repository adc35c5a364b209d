//! Any bytes as ttrpc, and the messages of its requests: read, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet_shim::fuzz::ttrpc(bytes));
