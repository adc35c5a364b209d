//! Any bytes as the file of a bundle: nothing of it is believed without its signature, and nothing in it breaks its reader.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::bundle(bytes));
