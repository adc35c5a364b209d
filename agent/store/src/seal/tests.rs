use std::fs::Permissions;

use jiff::Timestamp;
use limpet_model::source::SourceKind;

use super::*;
use crate::{Changes, Store, StoreError};

const SECRET: &[u8] =
    br#"{"apiVersion":"v1","data":{"password":"aHVudGVyMg=="},"kind":"Secret","metadata":{"name":"a"}}"#;
const POD: &[u8] = br#"{"kind":"Pod","metadata":{"name":"web"}}"#;

fn record() -> LastGood {
    LastGood::new(vec![Arc::from(POD), Arc::from(SECRET)], Timestamp::UNIX_EPOCH)
}

fn sealer(byte: u8) -> Sealer {
    Sealer::new(&[byte; KEY_SIZE])
}

const PLACE: Place<'_> = Place { table: "last-good", source: SourceKind::Push, name: "a" };

#[test]
fn secrets_and_tokens_alone_are_sealed_and_only_their_key_opens_them() {
    let sealed = sealer(1).sealed(&record(), PLACE).unwrap().into_owned();
    assert_eq!(&*sealed.manifests[0], POD);
    assert!(sealed.manifests[1].starts_with(SEALED) && !sealed.manifests[1].windows(8).any(|part| part == b"password"));
    assert_eq!(*sealer(1).sealed(&record(), PLACE).unwrap(), sealed, "the same again: nothing to write");
    assert_eq!(sealer(1).opened(sealed.clone(), PLACE), record());
    let pod_alone = LastGood::new(vec![Arc::from(POD)], Timestamp::UNIX_EPOCH);
    for other in [sealer(2), Sealer::Locked, Sealer::Off] {
        assert_eq!(other.opened(sealed.clone(), PLACE), pod_alone, "{other:?}");
    }
    for index in SEALED.len()..sealed.manifests[1].len() {
        let mut damaged = sealed.clone();
        let mut bytes = damaged.manifests[1].to_vec();
        bytes[index] ^= 1;
        damaged.manifests[1] = bytes.into();
        assert_eq!(sealer(1).opened(damaged, PLACE), pod_alone, "byte {index}");
    }
    assert_eq!(*Sealer::Off.sealed(&record(), PLACE).unwrap(), record());
    assert_eq!(Sealer::Locked.sealed(&record(), PLACE), None);
    assert_eq!(*Sealer::Locked.sealed(&pod_alone, PLACE).unwrap(), pod_alone);
    assert!(is_confidential(br#"{"kind":"ServiceAccountToken"}"#) && !is_confidential(br#"{"kind":"ConfigMap"}"#));
}

#[test]
fn a_sealed_secret_is_opened_at_its_place_alone() {
    let sealed = sealer(1).sealed(&record(), PLACE).unwrap().into_owned();
    for moved in [
        Place { table: "pulled-images", ..PLACE },
        Place { source: SourceKind::Http, ..PLACE },
        Place { name: "b", ..PLACE },
    ] {
        assert_eq!(sealer(1).opened(sealed.clone(), moved).manifests, [Arc::from(POD)], "{moved:?}");
        let there = sealer(1).sealed(&record(), moved).unwrap().into_owned();
        assert_ne!(there.manifests[1][..SEALED.len() + NONCE_LEN], sealed.manifests[1][..SEALED.len() + NONCE_LEN]);
    }
}

/// The record as earlier versions sealed it, without its place.
fn placeless(sealer: &Sealer, record: &LastGood) -> LastGood {
    let Sealer::Ready(keys) = sealer else { panic!("no key") };
    let sealed = keys.seal(&record.manifests[1], PLACELESS).unwrap();
    let sealed = [PLACELESS, sealed.strip_prefix(SEALED).unwrap()].concat();
    LastGood { manifests: vec![Arc::clone(&record.manifests[0]), sealed.into()], ..record.clone() }
}

#[test]
fn what_earlier_versions_sealed_is_renewed_at_the_start_and_read_no_more_then() {
    let root = tempfile::tempdir().unwrap();
    let open = || Store::open(&root.path().join("limpet.db")).unwrap().0;
    let stored = |store: &Store| store.stored::<LastGood>(SourceKind::Push).unwrap()["a"].clone();
    let earlier = placeless(&sealer(1), &record());
    assert_eq!(sealer(1).opened(earlier.clone(), PLACE).manifests, [Arc::from(POD)], "later it is from elsewhere");
    let mut changes = Changes::default();
    changes.put(Arc::from("a"), Some(earlier.clone()));
    open().apply(SourceKind::Push, &changes).unwrap();
    assert_eq!(stored(&open().sealed_by(sealer(2)).unwrap()), earlier, "another key loses nothing");
    let store = open().sealed_by(sealer(1)).unwrap();
    assert!(stored(&store).manifests[1].starts_with(SEALED));
    assert_eq!(store.load::<LastGood>(SourceKind::Push).unwrap().records["a"], record());
    drop(store);
    let sealed = stored(&open());
    assert_eq!(stored(&open().sealed_by(sealer(2)).unwrap()), sealed, "another key loses nothing");
}

/// A key that is configured later also seals what already exists, and one that is missing for a time loses nothing.
#[test]
fn a_database_is_sealed_from_the_start_with_a_key_on() {
    let root = tempfile::tempdir().unwrap();
    let open = |sealer| {
        let (store, _) = Store::open(&root.path().join("limpet.db")).unwrap();
        store.sealed_by(sealer).unwrap()
    };
    let change = |record| {
        let mut changes = Changes::default();
        changes.put(Arc::from("a"), Some(record));
        changes
    };
    let loaded = |store: &Store| store.load::<LastGood>(SourceKind::Push).unwrap().records.get("a").cloned();
    assert!(open(Sealer::Off).apply(SourceKind::Push, &change(record())).unwrap());
    let store = open(sealer(1));
    assert_eq!(loaded(&store), Some(record()));
    assert!(!store.apply(SourceKind::Push, &change(record())).unwrap(), "written again though nothing has changed");
    drop(store);

    let locked = open(Sealer::Locked);
    assert_eq!(loaded(&locked).unwrap().manifests, [Arc::from(POD)]);
    let mut both = change(record());
    both.put(Arc::from("pod"), Some(LastGood::new(vec![Arc::from(POD)], Timestamp::UNIX_EPOCH)));
    assert!(matches!(locked.apply(SourceKind::Push, &both), Err(StoreError::Locked)));
    assert!(locked.get::<LastGood>(SourceKind::Push, "pod").unwrap().is_some(), "the others are written");
    drop(locked);
    assert_eq!(loaded(&open(sealer(1))), Some(record()));
}

#[tokio::test]
async fn a_key_is_32_bytes_or_64_digits_that_its_owner_alone_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let opened = async |content: &[u8], mode| {
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Sealer::open(&KeyLocation::File(path.clone()), None).await.map_err(|error| error.to_string())
    };
    let sealed = opened(&[7; KEY_SIZE], 0o600).await.unwrap().sealed(&record(), PLACE).unwrap().into_owned();
    let digits = format!("{}\n", "07".repeat(KEY_SIZE));
    assert_eq!(opened(digits.as_bytes(), 0o400).await.unwrap().opened(sealed.clone(), PLACE), record());
    for wrong in [
        &[7; KEY_SIZE - 1][..],
        &[7; KEY_SIZE + 1],
        "0g".repeat(KEY_SIZE).as_bytes(),
        "07".repeat(KEY_SIZE + 1).as_bytes(),
        b"",
    ] {
        assert!(opened(wrong, 0o600).await.unwrap_err().contains("is not a key"), "{wrong:?}");
    }
    assert!(opened(&[7; KEY_SIZE], 0o640).await.unwrap_err().contains("chmod 600"));
    let credential = KeyLocation::Credential("key".to_owned());
    assert_eq!(
        Sealer::open(&credential, Some(dir.path())).await.unwrap().opened(sealed, PLACE),
        record(),
        "systemd decides who reads"
    );
    let failure = async |key: &KeyLocation| Sealer::open(key, None).await.unwrap_err().to_string();
    assert!(failure(&credential).await.contains("LoadCredentialEncrypted=key"));
    std::fs::remove_file(&path).unwrap();
    assert!(failure(&KeyLocation::File(path.clone())).await.contains("cannot read the key"));
    let encrypted = failure(&KeyLocation::Encrypted(path)).await;
    assert!(encrypted.contains("systemd-creds cannot decrypt the key"), "{encrypted}");
}
