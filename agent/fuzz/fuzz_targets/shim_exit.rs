//! Any bytes as a recorded exit: read, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet_shim::fuzz::exit(bytes));
