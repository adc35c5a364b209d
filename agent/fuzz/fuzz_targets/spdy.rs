//! Any bytes as frames of a SPDY connection: the same ones however they arrive, and bounded.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::spdy(bytes));
