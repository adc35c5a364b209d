//! Any lines as the documents of a bundle that is signed: read within limits, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::bundle_documents(bytes));
