//! Any bytes as a manifest: decoded without a panic, and what is accepted is restored as it was.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::manifest(bytes));
