#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;

use rustix::mount::{MountFlags, UnmountFlags};

use super::*;

fn manifests(texts: &[&str]) -> Manifests {
    texts.iter().map(|text| Arc::from(text.as_bytes())).collect()
}

fn put(origin: &str, texts: &[&str]) -> Changes {
    Changes { last_good: BTreeMap::from([(Arc::from(origin), Some(manifests(texts)))]), directory: None }
}

#[test]
fn what_was_kept_is_there_after_reopening_and_by_source() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let id = DirectoryId { device: 7, inode: u64::MAX };
    {
        let (store, aside) = Store::open(&path).unwrap();
        assert_eq!(aside, None);
        assert!(store.last_good(SourceKind::File).unwrap().is_empty());
        assert!(store.apply(SourceKind::File, &put("a.yaml", &["{1}", "{2}"])).unwrap());
        assert!(store.apply(SourceKind::Http, &put("https://x", &["{3}"])).unwrap());
        let forget = Changes {
            last_good: BTreeMap::from([(Arc::from("gone.yaml"), None)]),
            directory: Some((Arc::from("/etc/manifests"), id)),
        };
        assert!(store.apply(SourceKind::File, &forget).unwrap());
    }
    let (store, _) = Store::open(&path).unwrap();
    let kept = store.last_good(SourceKind::File).unwrap();
    assert_eq!(kept, BTreeMap::from([(Arc::from("a.yaml"), manifests(&["{1}", "{2}"]))]));
    assert_eq!(store.last_good(SourceKind::Http).unwrap().len(), 1);
    assert_eq!(store.directory("/etc/manifests").unwrap(), Some(id));
    let forget = Changes { last_good: BTreeMap::from([(Arc::from("a.yaml"), None)]), directory: None };
    assert!(store.apply(SourceKind::File, &forget).unwrap());
    assert!(store.last_good(SourceKind::File).unwrap().is_empty());
    assert_eq!(store.last_good(SourceKind::Http).unwrap().len(), 1);
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let (store, _) = Store::open(&path).unwrap();
    let nothing = Changes { last_good: BTreeMap::from([(Arc::from("x.yaml"), None)]), directory: None };
    assert!(!store.apply(SourceKind::File, &nothing).unwrap());
    let mut changes = put("a.yaml", &["{1}"]);
    changes.directory = Some((Arc::from("/m"), DirectoryId { device: 1, inode: 2 }));
    assert!(store.apply(SourceKind::File, &changes).unwrap());
    let written = fs::read(&path).unwrap();
    assert!(!store.apply(SourceKind::File, &changes).unwrap());
    assert!(!store.apply(SourceKind::File, &nothing).unwrap());
    assert!(fs::read(&path).unwrap() == written);
    assert!(store.apply(SourceKind::File, &put("a.yaml", &["{2}"])).unwrap());
}

#[test]
fn what_is_no_database_is_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    for (n, content) in [(1, b"not a database".to_vec()), (2, vec![0x5a; 1 << 20])] {
        fs::write(&path, &content).unwrap();
        let (store, aside) = Store::open(&path).unwrap();
        let aside = aside.expect("set aside");
        assert_eq!(aside.path, root.path().join(format!("limpet.db.damaged-{n}")));
        assert_eq!(fs::read(&aside.path).unwrap(), content);
        assert!(store.apply(SourceKind::File, &put("a.yaml", &["{1}"])).unwrap());
        drop(store);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_database_cut_short_is_set_aside_or_read() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let (store, _) = Store::open(&path).unwrap();
    store.apply(SourceKind::File, &put("a.yaml", &["{1}"])).unwrap();
    drop(store);
    let whole = fs::read(&path).unwrap();
    for length in [1, 100, 4096, 5000, whole.len() / 2] {
        fs::write(&path, &whole[..length]).unwrap();
        let (store, aside) = Store::open(&path).unwrap();
        assert!(aside.is_some(), "cut at {length}");
        assert!(store.last_good(SourceKind::File).unwrap().is_empty());
    }
}

#[test]
fn a_full_disk_is_told_and_overcome() {
    let root = tempfile::tempdir().unwrap();
    let disk = root.path().join("disk");
    fs::create_dir(&disk).unwrap();
    if let Err(error) = rustix::mount::mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(c"size=6m")) {
        println!("skipped: needs the right to mount: {error}");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let (store, _) = Store::open(&disk.join("limpet.db")).unwrap();
        store.apply(SourceKind::File, &put("a.yaml", &["{1}"])).unwrap();
        let filler = disk.join("filler");
        assert!(fs::write(&filler, vec![0; 8 << 20]).is_err());
        let change = put("b.yaml", &[&"x".repeat(1 << 20)]);
        let error = store.apply(SourceKind::File, &change).unwrap_err();
        assert!(matches!(error, StoreError::Transaction { operation: "write", .. }), "{error:?}");
        assert_eq!(store.last_good(SourceKind::File).unwrap().len(), 1);
        fs::remove_file(&filler).unwrap();
        assert!(store.apply(SourceKind::File, &change).unwrap());
        assert_eq!(store.last_good(SourceKind::File).unwrap().len(), 2);
    });
    rustix::mount::unmount(&disk, UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

/// A worn card may leave any bytes. redb reports most of them and panics at some: then the next start is clean.
#[test]
fn damaged_pages_end_the_agent_at_most_once() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let (store, _) = Store::open(&path).unwrap();
    for n in 0..20 {
        store.apply(SourceKind::File, &put(&format!("{n}.yaml"), &["{\"kind\":\"Pod\"}"])).unwrap();
    }
    drop(store);
    let whole = fs::read(&path).unwrap();
    let use_it = || {
        let (store, _) = Store::open(&path).unwrap();
        let _ = store.last_good(SourceKind::File);
        let _ = store.apply(SourceKind::File, &put("new.yaml", &["{}"]));
    };
    let mut panics = 0;
    for start in (0..whole.len()).step_by(1_531) {
        let mut damaged = whole.clone();
        damaged.iter_mut().skip(start).take(16).for_each(|byte| *byte ^= 0xa5);
        fs::write(&path, &damaged).unwrap();
        if std::panic::catch_unwind(use_it).is_err() {
            panics += 1;
            assert!(!path.exists(), "damage at {start}");
            use_it();
        }
        fs::remove_file(&path).unwrap();
    }
    println!("{panics} panics");
}

#[test]
fn nobody_else_reads_what_is_kept_also_where_it_was_made_readable() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    for _ in 0..2 {
        drop(Store::open(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    }
}
