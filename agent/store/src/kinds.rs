//! The types of records, each in one definition.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use super::record::{Record, put, take};
use super::seal::{Place, Sealer};
use super::table::{Stored, Table};
use limpet_core::image_access::{PullIntent, PulledImage};
use limpet_core::last_good::LastGood;
use limpet_model::directory_id::DirectoryId;
use limpet_model::pull_credential::{CredentialHash, PullCredential, PullSecret, PullServiceAccount};

/// Every type of record, for code that works on records of any type. Two types must not share a tag.
pub(super) const TABLES: [Table; 7] = [
    Table::for_records::<LastGood>(),
    Table::for_records::<DirectoryId>(),
    Table::for_records::<PulledImage>(),
    Table::for_records::<PullIntent>(),
    Table::for_records::<StoredMemory>(),
    Table::for_records::<GenerationManifest>(),
    Table::for_records::<GenerationDocument>(),
];

impl Table {
    /// The table of a record; `None` if no type has its tag, or its content cannot be decoded.
    pub(super) fn for_record(record: &Record<'_>) -> Option<&'static Self> {
        let table = TABLES.iter().find(|table| record.tag == table.tag || record.tag == table.removed)?;
        let intact = match record.tag == table.removed {
            true => record.content.is_empty(),
            false => (table.recode)(record.content).is_some(),
        };
        intact.then_some(table)
    }
}

/// The type of record whose number a salvage reports.
pub(super) const COUNTED_TAG: u8 = LastGood::TAG;

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

    fn sealed(&self, sealer: &Sealer, place: Place<'_>) -> Option<Cow<'_, Self>> {
        sealer.sealed(self, place)
    }

    fn opened(self, sealer: &Sealer, place: Place<'_>) -> Self {
        sealer.opened(self, place)
    }
}

/// The directory that was last accepted at a path. Content: device and inode.
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

/// What an image was pulled with, by its digest. Content: each name with its credentials, each of them a kind and its
/// texts.
impl Stored for PulledImage {
    type Key = &'static str;
    const TABLE: &'static str = "pulled-images";
    const TAG: u8 = 4;
    const REMOVED: u8 = 5;

    fn encode(&self, content: &mut Vec<u8>) {
        for (name, credentials) in &self.names {
            put(content, name.as_bytes());
            let mut all = Vec::new();
            for credential in credentials {
                let (kind, texts): (u8, &[&str]) = match credential {
                    PullCredential::Node => (0, &[]),
                    PullCredential::Secret(secret) => {
                        (1, &[&secret.uid, &secret.namespace, &secret.name, secret.hash.as_str()])
                    }
                    PullCredential::ServiceAccount(account) => (2, &[&account.uid, &account.namespace, &account.name]),
                };
                all.push(kind);
                texts.iter().for_each(|text| put(&mut all, text.as_bytes()));
            }
            put(content, &all);
        }
    }

    fn decode(mut content: &[u8]) -> Option<Self> {
        let mut names = Vec::new();
        while !content.is_empty() {
            let name = take_text(&mut content)?;
            let (mut all, mut credentials) = (take(&mut content)?, Vec::new());
            while let Some((kind, rest)) = all.split_first() {
                all = rest;
                let mut text = || take_text(&mut all);
                credentials.push(match kind {
                    0 => PullCredential::Node,
                    1 => {
                        let (uid, namespace, name) = (text()?, text()?, text()?);
                        let hash = CredentialHash::from_text(text()?);
                        PullCredential::Secret(PullSecret { uid, namespace, name, hash })
                    }
                    2 => {
                        let (uid, namespace, name) = (text()?, text()?, text()?);
                        PullCredential::ServiceAccount(PullServiceAccount { uid, namespace, name })
                    }
                    _ => return None,
                });
            }
            names.push((name, credentials));
        }
        Some(Self { names })
    }

    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

/// A pull of an image whose result is not known, by the image's normalized name. No content.
impl Stored for PullIntent {
    type Key = &'static str;
    const TABLE: &'static str = "pull-intents";
    const TAG: u8 = 6;
    const REMOVED: u8 = 7;

    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(content: &[u8]) -> Option<Self> {
        content.is_empty().then_some(Self)
    }

    fn same(&self, _: &Self) -> bool {
        true
    }
}

/// What the controller of a workload remembers, by the workload's kind, namespace and name. Content: its JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMemory(pub Arc<[u8]>);

impl Stored for StoredMemory {
    type Key = (&'static str, &'static str);
    const TABLE: &'static str = "workloads";
    const TAG: u8 = 8;
    const REMOVED: u8 = 9;

    fn encode(&self, content: &mut Vec<u8>) {
        content.extend_from_slice(&self.0);
    }

    fn decode(content: &[u8]) -> Option<Self> {
        Some(Self(Arc::from(content)))
    }

    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

/// A manifest of generations, by its number. It is stored like the last good version of a file with only this manifest;
/// its mark is the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationManifest(pub LastGood);

impl Stored for GenerationManifest {
    type Key = (&'static str, &'static str);
    const TABLE: &'static str = "generation-manifests";
    const TAG: u8 = 10;
    const REMOVED: u8 = 11;

    fn encode(&self, content: &mut Vec<u8>) {
        self.0.encode(content);
    }

    fn decode(content: &[u8]) -> Option<Self> {
        LastGood::decode(content).map(Self)
    }

    fn same(&self, other: &Self) -> bool {
        self.0.same(&other.0)
    }

    fn sealed(&self, sealer: &Sealer, place: Place<'_>) -> Option<Cow<'_, Self>> {
        Some(match sealer.sealed(&self.0, place)? {
            Cow::Borrowed(_) => Cow::Borrowed(self),
            Cow::Owned(sealed) => Cow::Owned(Self(sealed)),
        })
    }

    fn opened(self, sealer: &Sealer, place: Place<'_>) -> Self {
        Self(sealer.opened(self.0, place))
    }
}

/// The generations of a source, and the manifests of which they consist. Content: its JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationDocument(pub Arc<[u8]>);

impl Stored for GenerationDocument {
    type Key = (&'static str, &'static str);
    const TABLE: &'static str = "generations";
    const TAG: u8 = 12;
    const REMOVED: u8 = 13;

    fn encode(&self, content: &mut Vec<u8>) {
        content.extend_from_slice(&self.0);
    }

    fn decode(content: &[u8]) -> Option<Self> {
        Some(Self(Arc::from(content)))
    }

    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

fn take_text(content: &mut &[u8]) -> Option<String> {
    String::from_utf8(take(content)?.to_vec()).ok()
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
        let [uid, namespace, name] = ["u", "n", "s"].map(str::to_owned);
        let hash = CredentialHash::new(b"p").salted(&[7; 16]);
        let account = PullServiceAccount { uid: uid.clone(), namespace: namespace.clone(), name: name.clone() };
        let secret = PullCredential::Secret(PullSecret { uid, namespace, name, hash });
        let credentials = vec![secret, PullCredential::ServiceAccount(account)];
        let names = vec![("a".to_owned(), credentials), ("b".to_owned(), vec![PullCredential::Node])];
        let pulled = PulledImage { names: [names, vec![("c".to_owned(), Vec::new())]].concat() };
        assert_eq!(PulledImage::decode(&content(&pulled)[..20]), None);
        assert_eq!(PulledImage::decode(&content(&pulled)), Some(pulled));
    }

    #[test]
    fn no_two_types_share_a_tag() {
        let tags: Vec<u8> = TABLES.iter().flat_map(|table| [table.tag, table.removed]).collect();
        assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), tags.len(), "{tags:?}");
    }
}
