//! Any bytes as a runtime's options: read, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet_shim::fuzz::options(bytes));
