//! Any bytes as an OCI spec: the parts that concern the shim: read, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet_shim::fuzz::spec(bytes));
