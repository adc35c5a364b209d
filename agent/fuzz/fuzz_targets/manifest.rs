//! Any bytes as a manifest: read without a panic, and what is accepted is read back the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::manifest(bytes));
