//! The messages of one transaction of nftables (`linux/netfilter/nf_tables.h`).

use super::TABLE;
use super::data::{value, verdict};
use super::expression::{Expressions, NFPROTO_INET};
use crate::netlink::{Attributes, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, message, netfilter_header};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = NEW_TABLE + 1;
const DEL_TABLE: u16 = NEW_TABLE + 2;
const NEW_CHAIN: u16 = NEW_TABLE + 3;
const GET_CHAIN: u16 = NEW_TABLE + 4;
const NEW_RULE: u16 = NEW_TABLE + 6;
const NEW_SET: u16 = NEW_TABLE + 9;
const NEW_ELEMENTS: u16 = NEW_TABLE + 12;

const SET_IS_MAP: u32 = 8;
const DATA_VERDICT: u32 = 0xffff_ff00;
/// How large a list of elements may become: an attribute has at most 64 KiB.
const MAX_LIST: usize = 32 << 10;

// Attributes: of tables, chains, hooks, rules, sets, lists of elements, elements.
const NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LENGTH: u16 = 7;
const SET_ID: u16 = 10;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ITEM: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;

/// A type of keys or data: the number by which `nft` knows it, and its length.
#[derive(Debug, Clone, Copy)]
pub(super) struct SetType {
    pub(super) id: u32,
    pub(super) length: u32,
}

/// The place in the kernel where packets enter a chain.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hook {
    Prerouting = 0,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// `NFT_GOTO`, the verdict of all maps here.
const GOTO: i32 = -4;

#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    /// The number of the next set within the transaction.
    set: u32,
}

impl Batch {
    pub(super) fn begin() -> Self {
        let mut batch = Self { bytes: Vec::new(), sequence: 0, set: 0 };
        batch.frame(BATCH_BEGIN, 0);
        batch
    }

    /// The transaction, which takes effect as a whole or not at all.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.frame(BATCH_END, 0);
        self.bytes
    }

    fn frame(&mut self, kind: u16, flags: u16) {
        self.sequence += 1;
        message(&mut self.bytes, (kind, flags, self.sequence), &netfilter_header(0, SUBSYSTEM), &Attributes::default());
    }

    fn add(&mut self, kind: u16, flags: u16, attributes: &Attributes) {
        self.sequence += 1;
        message(&mut self.bytes, (kind, flags, self.sequence), &netfilter_header(NFPROTO_INET, 0), attributes);
    }

    /// Removes the table, whether or not it exists.
    pub(super) fn remove_table(&mut self) {
        self.table();
        let mut attributes = Attributes::default();
        attributes.text(NAME, TABLE);
        // The one message whose acknowledgement says that the kernel has read the transaction.
        self.add(DEL_TABLE, NLM_F_ACK, &attributes);
    }

    pub(super) fn table(&mut self) {
        let mut attributes = Attributes::default();
        attributes.text(NAME, TABLE);
        self.add(NEW_TABLE, NLM_F_CREATE, &attributes);
    }

    pub(super) fn chain(&mut self, name: &str) {
        let mut attributes = Attributes::default();
        attributes.text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, name);
        self.add(NEW_CHAIN, NLM_F_CREATE, &attributes);
    }

    pub(super) fn base_chain(&mut self, name: &str, kind: &str, hook: Hook, priority: i32) {
        let mut attributes = Attributes::default();
        attributes.text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, name).nested(CHAIN_HOOK, |of_hook| {
            of_hook.number(HOOK_NUMBER, hook as u32).bytes(HOOK_PRIORITY, &priority.to_be_bytes());
        });
        attributes.text(CHAIN_TYPE, kind);
        self.add(NEW_CHAIN, NLM_F_CREATE, &attributes);
    }

    pub(super) fn rule(&mut self, chain: &str, expressions: Expressions) {
        let mut attributes = Attributes::default();
        attributes.text(RULE_TABLE, TABLE).text(RULE_CHAIN, chain);
        attributes.nested(RULE_EXPRESSIONS, |list| {
            list.raw(&expressions.into_bytes());
        });
        self.add(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &attributes);
    }

    pub(super) fn set(&mut self, name: &str, key: SetType) {
        self.new_set(name, key, None);
    }

    pub(super) fn map(&mut self, name: &str, key: SetType, data: SetType) {
        self.new_set(name, key, Some(data));
    }

    pub(super) fn verdict_map(&mut self, name: &str, key: SetType) {
        self.new_set(name, key, Some(SetType { id: DATA_VERDICT, length: 0 }));
    }

    fn new_set(&mut self, name: &str, key: SetType, data: Option<SetType>) {
        self.set += 1;
        let mut attributes = Attributes::default();
        attributes.text(SET_TABLE, TABLE).text(SET_NAME, name);
        attributes.number(SET_FLAGS, if data.is_some() { SET_IS_MAP } else { 0 });
        attributes.number(SET_KEY_TYPE, key.id).number(SET_KEY_LENGTH, key.length);
        if let Some(data) = data {
            attributes.number(SET_DATA_TYPE, data.id);
            if data.id != DATA_VERDICT {
                attributes.number(SET_DATA_LENGTH, data.length);
            }
        }
        attributes.number(SET_ID, self.set);
        self.add(NEW_SET, NLM_F_CREATE, &attributes);
    }

    /// Adds elements of a map of verdicts, each of which leads to a chain.
    pub(super) fn verdicts(&mut self, set: &str, elements: impl Iterator<Item = (Vec<u8>, String)>) {
        self.list(set, elements, |element, (key, chain)| {
            value(element, ELEMENT_KEY, &key);
            element.nested(ELEMENT_DATA, |data| verdict(data, GOTO, Some(&chain)));
        });
    }

    /// Adds elements of a set or of a map of values.
    pub(super) fn elements(&mut self, set: &str, elements: impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)>) {
        self.list(set, elements, |element, (key, data)| {
            value(element, ELEMENT_KEY, &key);
            if let Some(data) = data {
                value(element, ELEMENT_DATA, &data);
            }
        });
    }

    fn list<T>(&mut self, set: &str, elements: impl Iterator<Item = T>, write: impl Fn(&mut Attributes, T)) {
        let mut list = Attributes::default();
        let mut elements = elements.peekable();
        while let Some(element) = elements.next() {
            list.nested(LIST_ITEM, |item| write(item, element));
            if list.len() < MAX_LIST && elements.peek().is_some() {
                continue;
            }
            let full = std::mem::take(&mut list);
            let mut attributes = Attributes::default();
            attributes.text(LIST_TABLE, TABLE).text(LIST_SET, set);
            attributes.nested(LIST_ELEMENTS, |all| {
                all.raw(&full.into_bytes());
            });
            self.add(NEW_ELEMENTS, NLM_F_CREATE, &attributes);
        }
    }
}

/// The request for a table.
pub(super) fn table_request(family: u8, name: &str) -> Vec<u8> {
    let mut attributes = Attributes::default();
    attributes.text(NAME, name);
    request(GET_TABLE, family, &attributes)
}

/// The request for a chain.
pub(super) fn chain_request(family: u8, table: &str, name: &str) -> Vec<u8> {
    let mut attributes = Attributes::default();
    attributes.text(CHAIN_TABLE, table).text(CHAIN_NAME, name);
    request(GET_CHAIN, family, &attributes)
}

fn request(kind: u16, family: u8, attributes: &Attributes) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, (kind, NLM_F_ACK, 1), &netfilter_header(family, 0), attributes);
    bytes
}
