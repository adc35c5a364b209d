//! The types of records, each in one definition.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use super::record::{put, take};
use super::seal::Sealer;
use super::table::{Stored, Table};
use limpet_core::last_good::LastGood;
use limpet_model::directory_id::DirectoryId;

/// Every type of record, for what works on records of any type. Two types must not share a tag.
pub(super) const TABLES: [Table; 2] = [Table::of::<LastGood>(), Table::of::<DirectoryId>()];

/// The type of record whose number a salvage reports.
pub(super) const COUNTED: u8 = LastGood::TAG;

/// The last good version of a file, a URL or a push. Content: time, mark, each manifest with its length.
impl Stored for LastGood {
    type Key = (&'static str, &'static str);
    const TABLE: &'static str = "last-good";
    const TAG: u8 = 1;
    const REMOVED: u8 = 0;

    fn encode(&self, content: &mut Vec<u8>) {
        content.extend_from_slice(&self.accepted.as_millisecond().to_be_bytes());
        put(content, self.mark.as_bytes());
        self.manifests.iter().for_each(|manifest| put(content, manifest));
    }

    fn decode(content: &[u8]) -> Option<Self> {
        let (accepted, mut content) = content.split_first_chunk::<8>()?;
        let accepted = Timestamp::from_millisecond(i64::from_be_bytes(*accepted)).ok()?;
        let mark = String::from_utf8(take(&mut content)?.to_vec()).ok()?;
        let mut manifests = Vec::new();
        while !content.is_empty() {
            manifests.push(Arc::from(take(&mut content)?));
        }
        Some(Self { manifests, mark, accepted })
    }

    fn same(&self, other: &Self) -> bool {
        Self::same(self, other)
    }

    fn sealed(&self, sealer: &Sealer) -> Option<Cow<'_, Self>> {
        sealer.sealed(self)
    }

    fn opened(self, sealer: &Sealer) -> Self {
        sealer.opened(self)
    }
}

/// The directory accepted last at a path. Content: device and inode.
impl Stored for DirectoryId {
    type Key = &'static str;
    const TABLE: &'static str = "accepted-directories";
    const TAG: u8 = 2;
    const REMOVED: u8 = 3;

    fn encode(&self, content: &mut Vec<u8>) {
        content.extend_from_slice(&self.device.to_be_bytes());
        content.extend_from_slice(&self.inode.to_be_bytes());
    }

    fn decode(content: &[u8]) -> Option<Self> {
        let (device, inode) = content.split_first_chunk::<8>()?;
        let inode = <[u8; 8]>::try_from(inode).ok()?;
        Some(Self { device: u64::from_be_bytes(*device), inode: u64::from_be_bytes(inode) })
    }

    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn content(record: &impl Stored) -> Vec<u8> {
        let mut content = Vec::new();
        record.encode(&mut content);
        content
    }

    #[test]
    fn contents_survive_a_round_trip() {
        let manifests: Vec<Arc<[u8]>> = vec![Arc::from(&b"{}"[..]), Arc::from(&b""[..]), Arc::from(&b"{\"a\":1}"[..])];
        let last_good = LastGood { manifests, mark: "etag".to_owned(), accepted: Timestamp::UNIX_EPOCH };
        assert_eq!(LastGood::decode(&content(&last_good)), Some(last_good));
        let id = DirectoryId { device: 3, inode: u64::MAX };
        assert_eq!(DirectoryId::decode(&content(&id)), Some(id));
        assert_eq!(DirectoryId::decode(&content(&id)[..15]), None);
    }

    #[test]
    fn no_two_types_share_a_tag() {
        let tags: Vec<u8> = TABLES.iter().flat_map(|table| [table.tag, table.removed]).collect();
        assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), tags.len(), "{tags:?}");
    }
}
