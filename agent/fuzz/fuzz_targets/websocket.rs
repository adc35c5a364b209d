//! Any bytes as those of a WebSocket's client: the same messages however they arrive, and bounded.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| limpet::fuzz::websocket(bytes));
