//! Any bytes as a URL's answer: unpacked and read within bounds, and what is accepted comes back the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::answer(bytes));
