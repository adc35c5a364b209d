//! Values and verdicts, as elements of sets and expressions have them.

use crate::netlink::Attributes;

// The numbers of attributes: first those of data, then those of verdicts.
const DATA_VALUE: u16 = 1;
const DATA_OF_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// Writes a verdict that leads to a chain.
pub(super) fn verdict(into: &mut Attributes, code: i32, chain: Option<&str>) {
    into.nested(DATA_OF_VERDICT, |verdict| {
        verdict.bytes(VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.text(VERDICT_CHAIN, chain);
        }
    });
}

/// Writes a value as an attribute of that kind.
pub(super) fn value(into: &mut Attributes, kind: u16, bytes: &[u8]) {
    into.nested(kind, |data| {
        data.bytes(DATA_VALUE, bytes);
    });
}
