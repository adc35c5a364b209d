use std::fs::Permissions;

use jiff::Timestamp;
use limpet_model::source::SourceKind;

use super::*;
use crate::store::{Changes, Store, StoreError};

const SECRET: &[u8] =
    br#"{"apiVersion":"v1","data":{"password":"aHVudGVyMg=="},"kind":"Secret","metadata":{"name":"a"}}"#;
const POD: &[u8] = br#"{"kind":"Pod","metadata":{"name":"web"}}"#;

fn record() -> LastGood {
    LastGood::new(vec![Arc::from(POD), Arc::from(SECRET)], Timestamp::UNIX_EPOCH)
}

fn sealer(byte: u8) -> Sealer {
    Sealer::of(&[byte; KEY_SIZE])
}

#[test]
fn secrets_and_tokens_alone_are_sealed_and_only_their_key_opens_them() {
    let sealed = sealer(1).sealed(&record()).unwrap().into_owned();
    assert_eq!(&*sealed.manifests[0], POD);
    assert!(sealed.manifests[1].starts_with(SEALED) && !sealed.manifests[1].windows(8).any(|part| part == b"password"));
    assert_eq!(*sealer(1).sealed(&record()).unwrap(), sealed, "the same again: nothing to write");
    assert_eq!(sealer(1).opened(sealed.clone()), record());
    let pod_alone = LastGood::new(vec![Arc::from(POD)], Timestamp::UNIX_EPOCH);
    for other in [sealer(2), Sealer::Locked, Sealer::Off] {
        assert_eq!(other.opened(sealed.clone()), pod_alone, "{other:?}");
    }
    for index in SEALED.len()..sealed.manifests[1].len() {
        let mut damaged = sealed.clone();
        let mut bytes = damaged.manifests[1].to_vec();
        bytes[index] ^= 1;
        damaged.manifests[1] = bytes.into();
        assert_eq!(sealer(1).opened(damaged), pod_alone, "byte {index}");
    }
    assert_eq!(*Sealer::Off.sealed(&record()).unwrap(), record());
    assert_eq!(Sealer::Locked.sealed(&record()), None);
    assert_eq!(*Sealer::Locked.sealed(&pod_alone).unwrap(), pod_alone);
    assert!(is_confidential(br#"{"kind":"ServiceAccountToken"}"#) && !is_confidential(br#"{"kind":"ConfigMap"}"#));
}

/// A key that is configured later counts for what is there already; one that is missing for a time loses nothing.
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
    let found = |store: &Store| store.load::<LastGood>(SourceKind::Push).unwrap().records.get("a").cloned();
    assert!(open(Sealer::Off).apply(SourceKind::Push, &change(record())).unwrap());
    let store = open(sealer(1));
    assert_eq!(found(&store), Some(record()));
    assert!(!store.apply(SourceKind::Push, &change(record())).unwrap(), "written again though nothing has changed");
    drop(store);

    let locked = open(Sealer::Locked);
    assert_eq!(found(&locked).unwrap().manifests, [Arc::from(POD)]);
    let mut both = change(record());
    both.put(Arc::from("pod"), Some(LastGood::new(vec![Arc::from(POD)], Timestamp::UNIX_EPOCH)));
    assert!(matches!(locked.apply(SourceKind::Push, &both), Err(StoreError::Locked)));
    assert!(locked.get::<LastGood>(SourceKind::Push, "pod").unwrap().is_some(), "the others are written");
    drop(locked);
    assert_eq!(found(&open(sealer(1))), Some(record()));
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
    let sealed = opened(&[7; KEY_SIZE], 0o600).await.unwrap().sealed(&record()).unwrap().into_owned();
    let digits = format!("{}\n", "07".repeat(KEY_SIZE));
    assert_eq!(opened(digits.as_bytes(), 0o400).await.unwrap().opened(sealed.clone()), record());
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
        Sealer::open(&credential, Some(dir.path())).await.unwrap().opened(sealed),
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
