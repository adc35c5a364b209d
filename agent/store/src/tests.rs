#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;

use rustix::mount::{MountFlags, UnmountFlags};

use super::table::MAX_REMOVED;
use super::*;
use jiff::Timestamp;
use limpet_core::last_good::{LastGood, Manifests};
use limpet_model::directory_id::DirectoryId;

fn manifests(texts: &[&str]) -> Manifests {
    texts.iter().map(|text| Arc::from(text.as_bytes())).collect()
}

fn changed(origin: &str, record: Option<LastGood>) -> Changes {
    let mut changes = Changes::default();
    changes.put(Arc::from(origin), record);
    changes
}

fn put(origin: &str, texts: &[&str]) -> Changes {
    let kept = LastGood { mark: format!("mark of {origin}"), ..LastGood::new(manifests(texts), Timestamp::now()) };
    changed(origin, Some(kept))
}

fn remove(origin: &str) -> Changes {
    changed(origin, None)
}

fn last_good(store: &Store, source: SourceKind) -> BTreeMap<Arc<str>, LastGood> {
    store.load(source).unwrap().records
}

fn directory(store: &Store, path: &str) -> Option<DirectoryId> {
    store.get(SourceKind::File, path).unwrap()
}

/// `origin manifest…` of everything stored for a source.
fn kept(store: &Store, source: SourceKind) -> Vec<String> {
    let text = |manifests: &Manifests| -> String {
        manifests.iter().map(|manifest| format!(" {}", String::from_utf8_lossy(manifest))).collect()
    };
    let all = last_good(store, source);
    all.iter().map(|(origin, kept)| format!("{origin}{}", text(&kept.manifests))).collect()
}

#[test]
fn last_good_manifests_survive_reopening_by_source() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let id = DirectoryId { device: 7, inode: u64::MAX };
    {
        let (store, aside) = Store::open(&path).unwrap();
        assert_eq!(aside, None);
        assert!(last_good(&store, SourceKind::File).is_empty());
        assert!(store.apply(SourceKind::File, &put("a.yaml", &["{1}", "{2}"])).unwrap());
        assert!(store.apply(SourceKind::Http, &put("https://x", &["{3}"])).unwrap());
        let mut forget = remove("gone.yaml");
        forget.put(Arc::from("/etc/manifests"), Some(id));
        assert!(store.apply(SourceKind::File, &forget).unwrap());
    }
    let (store, _) = Store::open(&path).unwrap();
    assert_eq!(kept(&store, SourceKind::File), ["a.yaml {1} {2}"]);
    assert_eq!(last_good(&store, SourceKind::File)["a.yaml"].mark, "mark of a.yaml");
    assert_eq!(last_good(&store, SourceKind::Http).len(), 1);
    assert_eq!(directory(&store, "/etc/manifests"), Some(id));
    assert!(store.apply(SourceKind::File, &remove("a.yaml")).unwrap());
    assert!(last_good(&store, SourceKind::File).is_empty());
    assert_eq!(last_good(&store, SourceKind::Http).len(), 1);
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let (store, _) = Store::open(&path).unwrap();
    let nothing = remove("x.yaml");
    assert!(!store.apply(SourceKind::File, &nothing).unwrap());
    let mut changes = put("a.yaml", &["{1}"]);
    changes.put(Arc::from("/m"), Some(DirectoryId { device: 1, inode: 2 }));
    assert!(store.apply(SourceKind::File, &changes).unwrap());
    let written = fs::read(&path).unwrap();
    assert!(!store.apply(SourceKind::File, &changes).unwrap());
    assert!(!store.apply(SourceKind::File, &nothing).unwrap());
    assert!(fs::read(&path).unwrap() == written);
    assert!(store.apply(SourceKind::File, &put("a.yaml", &["{2}"])).unwrap());
}

#[test]
fn a_foreign_file_is_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    for content in [b"not a database".to_vec(), vec![0x5a; 1 << 20]] {
        fs::write(&path, &content).unwrap();
        let (store, aside) = Store::open(&path).unwrap();
        let aside = aside.expect("set aside");
        assert!(aside.path.to_str().unwrap().contains("/limpet.db.salvaged-2"), "{aside:?}");
        assert_eq!((aside.recovered, store.damaged().last()), (0, Some(&aside.path)));
        assert_eq!(fs::read(&aside.path).unwrap(), content);
        assert!(store.apply(SourceKind::File, &put("a.yaml", &["{1}"])).unwrap());
        drop(store);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_truncated_database_is_set_aside_and_its_intact_records_are_salvaged() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let (store, _) = Store::open(&path).unwrap();
    store.apply(SourceKind::File, &put("a.yaml", &["{1}"])).unwrap();
    drop(store);
    let whole = fs::read(&path).unwrap();
    let record = whole.windows(record::MAGIC.len()).position(|window| window == record::MAGIC).unwrap();
    for length in [1, 100, 4096, 5000, record + 8, record + 200, whole.len() / 2] {
        fs::write(&path, &whole[..length]).unwrap();
        let (store, aside) = Store::open(&path).unwrap();
        assert!(aside.is_some(), "cut at {length}");
        let expected: &[&str] = if length > record + 100 { &["a.yaml {1}"] } else { &[] };
        assert_eq!(kept(&store, SourceKind::File), expected, "cut at {length}");
    }
}

#[test]
fn a_salvage_takes_the_newest_records_and_no_removed_origins() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    let (store, _) = Store::open(&path).unwrap();
    for version in 0..20 {
        store.apply(SourceKind::Push, &put("web", &[&version.to_string()])).unwrap();
        store.apply(SourceKind::Push, &put("gone", &[&version.to_string()])).unwrap();
    }
    store.apply(SourceKind::Http, &put("https://x", &["{1}", "{2}"])).unwrap();
    store.apply(SourceKind::Push, &remove("gone")).unwrap();
    let (place, newest) = (Arc::<str>::from("/etc/manifests"), DirectoryId { device: 7, inode: 2 });
    for id in [DirectoryId { device: 7, inode: 1 }, newest] {
        let mut changes = Changes::default();
        changes.put(Arc::clone(&place), Some(id));
        store.apply(SourceKind::File, &changes).unwrap();
    }
    drop(store);
    let mut damaged = fs::read(&path).unwrap();
    damaged[..64].fill(0);
    fs::write(&path, &damaged).unwrap();
    let (store, aside) = Store::open(&path).unwrap();
    assert_eq!(aside.unwrap().recovered, 2);
    assert_eq!(kept(&store, SourceKind::Push), ["web 19"]);
    assert_eq!(
        directory(&store, &place),
        Some(newest),
        "an empty card is still distinguished from an empty mount point"
    );
    assert_eq!(kept(&store, SourceKind::Http), ["https://x {1} {2}"]);
    assert_eq!(last_good(&store, SourceKind::Http)["https://x"].mark, "mark of https://x");
    // Records written from now on are newer than all salvaged ones, also for the next salvage.
    store.apply(SourceKind::Push, &put("web", &["20"])).unwrap();
    drop(store);
    let mut damaged = fs::read(&path).unwrap();
    damaged[..64].fill(0);
    fs::write(&path, &damaged).unwrap();
    let (store, _) = Store::open(&path).unwrap();
    assert_eq!(kept(&store, SourceKind::Push), ["web 20"]);
    assert_eq!(store.damaged().len(), 2);
}

#[test]
fn a_start_after_a_crash_salvages_the_database_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    Store::open(&path).unwrap().0.apply(SourceKind::Push, &put("web", &["1"])).unwrap();
    quarantine::set_aside(&path).unwrap();
    let (store, aside) = Store::open(&path).unwrap();
    assert_eq!(aside.unwrap().recovered, 1);
    assert_eq!(kept(&store, SourceKind::Push), ["web 1"]);
    drop(store);
    // If the file is removed manually, nothing is salvaged.
    fs::remove_file(&path).unwrap();
    let (store, aside) = Store::open(&path).unwrap();
    assert_eq!((aside, last_good(&store, SourceKind::Push).len()), (None, 0));
}

#[test]
fn records_of_removed_origins_are_limited() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&root.path().join("limpet.db")).unwrap();
    for n in 0..MAX_REMOVED + 20 {
        store.apply(SourceKind::Push, &put(&n.to_string(), &["{}"])).unwrap();
        store.apply(SourceKind::Push, &remove(&n.to_string())).unwrap();
    }
    let state = store.state.lock().unwrap();
    let transaction = state.database.as_ref().unwrap().begin_read().unwrap();
    let definition = redb::TableDefinition::<(&str, &str), &[u8]>::new(LastGood::TABLE);
    let table = transaction.open_table(definition).unwrap();
    assert_eq!(redb::ReadableTableMetadata::len(&table).unwrap(), MAX_REMOVED as u64);
}

#[test]
fn a_full_disk_is_reported_and_recovered_from() {
    let root = tempfile::tempdir().unwrap();
    let disk = root.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = rustix::mount::mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(c"size=6m"));
    let mounted = mounted.map_err(|error| format!("the right to mount: {error}"));
    let Some(()) = limpet_tests::need::need(mounted) else { return };
    let outcome = std::panic::catch_unwind(|| {
        let (store, _) = Store::open(&disk.join("limpet.db")).unwrap();
        store.apply(SourceKind::File, &put("a.yaml", &["{1}"])).unwrap();
        let filler = disk.join("filler");
        assert!(fs::write(&filler, vec![0; 8 << 20]).is_err());
        let change = put("b.yaml", &[&"x".repeat(1 << 20)]);
        let error = store.apply(SourceKind::File, &change).unwrap_err();
        assert!(matches!(error, StoreError::Transaction { operation: "write", .. }), "{error:?}");
        assert_eq!(last_good(&store, SourceKind::File).len(), 1);
        fs::remove_file(&filler).unwrap();
        assert!(store.apply(SourceKind::File, &change).unwrap());
        assert_eq!(last_good(&store, SourceKind::File).len(), 2);
    });
    rustix::mount::unmount(&disk, UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

/// A power cut during the very first start leaves this. It must not count as damage, because orphans would then not be
/// removed.
#[test]
fn a_database_whose_creation_was_interrupted_is_not_there() {
    let root = tempfile::tempdir().unwrap();
    let disk = root.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = rustix::mount::mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(c"size=8k"));
    let mounted = mounted.map_err(|error| format!("the right to mount: {error}"));
    let Some(()) = limpet_tests::need::need(mounted) else { return };
    let outcome = std::panic::catch_unwind(|| {
        let path = disk.join("limpet.db");
        Store::open(&path).unwrap_err();
        let remains: Vec<_> = fs::read_dir(&disk).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(remains, ["limpet.db.new"]);
        rustix::mount::mount_remount(&disk, MountFlags::empty(), c"size=6m").unwrap();
        let (store, set_aside) = Store::open(&path).unwrap();
        assert!(set_aside.is_none() && store.damaged().is_empty());
        assert!(store.apply(SourceKind::File, &put("a.yaml", &["{1}"])).unwrap());
    });
    rustix::mount::unmount(&disk, UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

/// A worn card may return any bytes. redb reports most of them and panics on some: then the next start is clean.
#[test]
fn damaged_pages_crash_the_agent_at_most_once() {
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
        let _ = store.load::<LastGood>(SourceKind::File);
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
fn the_database_is_private_even_if_it_was_made_readable() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    for _ in 0..2 {
        drop(Store::open(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    }
}

fn change(pod: &str, kind: limpet_core::source::ChangeKind, what: &str) -> Arc<ManifestChange> {
    let text = serde_json::json!({
        "at": "2026-01-01T00:00:00Z", "source": "file", "origin": "a.yaml", "change": kind, "pod": pod, "uid": "u",
        "touched": [what],
    });
    Arc::new(serde_json::from_value(text).unwrap())
}

fn touched(store: &Store, pod: &str) -> Vec<String> {
    store.history(&PodKey::new("default", pod)).unwrap().into_iter().flat_map(|change| change.touched).collect()
}

#[test]
fn history_is_stored_with_the_manifest_in_order_and_survives_reopening() {
    use limpet_core::source::ChangeKind::{Edited, Rejected};
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    {
        let (store, _) = Store::open(&path).unwrap();
        assert!(touched(&store, "web").is_empty());
        let mut changes = put("a.yaml", &["{1}"]);
        changes.remember(&[change("default/web", Edited, "1"), change("default/we", Edited, "other")]);
        changes.remember(&[change("default/web", Edited, "2")]);
        assert!(store.apply(SourceKind::File, &changes).unwrap());
    }
    let (store, _) = Store::open(&path).unwrap();
    assert_eq!(touched(&store, "web"), ["1", "2"]);
    let alone = |change: Arc<ManifestChange>| {
        let mut changes = Changes::default();
        changes.remember(&[change]);
        changes
    };
    assert!(store.apply(SourceKind::File, &alone(change("default/web", Rejected, "3"))).unwrap());
    // This happens at each start with a rejected manifest, and must not write.
    assert!(!store.apply(SourceKind::File, &alone(change("default/web", Rejected, "3"))).unwrap());
    assert!(store.apply(SourceKind::File, &alone(change("default/web", Rejected, "4"))).unwrap());
    assert_eq!(touched(&store, "web"), ["1", "2", "3", "4"]);
}

#[test]
fn history_is_limited_per_pod_and_in_total() {
    use limpet_core::source::ChangeKind::Edited;
    let (_root, store) = {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(&root.path().join("limpet.db")).unwrap().0;
        (root, store)
    };
    let apply = |changes: Vec<Arc<ManifestChange>>| {
        let mut all = Changes::default();
        all.remember(&changes);
        assert!(store.apply(SourceKind::File, &all).unwrap());
    };
    apply((0..50).map(|number| change("default/web", Edited, &number.to_string())).collect());
    let kept = touched(&store, "web");
    assert_eq!((kept.len(), kept[0].as_str()), (history::MOST_OF_POD, "30"));
    for round in 0..3 {
        apply(
            (0..history::MAX_CHANGES / 2).map(|pod| change(&format!("default/p{round}-{pod}"), Edited, "x")).collect(),
        );
    }
    assert!(kept.len() > touched(&store, "web").len(), "the oldest of all go first");
    let last = format!("p2-{}", history::MAX_CHANGES / 2 - 1);
    assert_eq!(touched(&store, &last).len(), 1);
    assert!(touched(&store, "p0-0").is_empty());
}

/// A database in the first version of the format, which every later version can open. It is never rewritten.
fn golden(path: &Path) {
    let packed = &include_bytes!("golden/limpet.db.gz")[..];
    std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut fs::File::create(path).unwrap()).unwrap();
}

fn assert_golden(store: &Store) {
    let accepted = Timestamp::from_millisecond(1_767_225_600_123).unwrap();
    assert_eq!(kept(store, SourceKind::File), [r#"a.yaml {"kind":"Pod"} {}"#, "empty.yaml"]);
    let url = &last_good(store, SourceKind::Http)["https://example.com/pods"];
    let pods = manifests(&[r#"{"kind":"List"}"#]);
    assert_eq!(*url, LastGood { manifests: pods, mark: "etag".to_owned(), accepted });
    assert_eq!(kept(store, SourceKind::Push), ["default/web {3}"], "and not the removed one");
    assert_eq!(directory(store, "/etc/kubernetes/manifests"), Some(DirectoryId { device: 7, inode: u64::MAX }));
}

#[test]
fn a_database_of_the_first_format_opens() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    golden(&path);
    let (store, aside) = Store::open(&path).unwrap();
    assert_eq!(aside, None);
    assert_golden(&store);
    assert_eq!(touched(&store, "web"), ["1", "2"]);
    // What is already stored is not written again, and a newer record replaces it.
    assert!(!store.apply(SourceKind::Push, &remove("default/gone")).unwrap());
    assert!(store.apply(SourceKind::Push, &remove("default/web")).unwrap());
    assert!(kept(&store, SourceKind::Push).is_empty());
}

#[test]
fn a_damaged_database_of_the_first_format_is_salvaged() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("limpet.db");
    golden(&path);
    let mut damaged = fs::read(&path).unwrap();
    damaged[..64].fill(0);
    fs::write(&path, &damaged).unwrap();
    let (store, aside) = Store::open(&path).unwrap();
    assert_eq!(aside.unwrap().recovered, 4);
    assert_golden(&store);
    assert!(touched(&store, "web").is_empty(), "the history is not salvaged");
}
