//! Any bytes as the URI of an output: read, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet_shim::fuzz::output(bytes));
