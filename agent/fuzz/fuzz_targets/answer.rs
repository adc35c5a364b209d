//! Any bytes as a URL's response: decoded within limits, and what is accepted is restored as it was.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::answer(bytes));
