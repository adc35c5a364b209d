#![allow(clippy::unwrap_used)]
//! Written volumes on disk, without root. Volumes on a tmpfs are tested with the pods' directories.

use std::os::unix::fs::PermissionsExt;

use super::*;
use limpet_model::object::SecretBytes;

fn volume(dir: &Path, files: &[(&str, &str, u32)]) -> WrittenVolume {
    let file = |(path, text, mode): &(&str, &str, u32)| {
        ((*path).to_owned(), PayloadFile { bytes: SecretBytes::new(text.as_bytes().to_vec()), mode: *mode, user: None })
    };
    WrittenVolume { path: dir.join("v"), memory: None, group: None, payload: files.iter().map(file).collect() }
}

/// The names in the volume, those of versions without their time.
fn names(dir: &Path) -> Vec<String> {
    let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let names = dir.join("v").read_dir().unwrap().map(name);
    let mut names: Vec<String> =
        names.map(|name| if name.starts_with("..2") { "..time".to_owned() } else { name }).collect();
    names.sort();
    names
}

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join("v").join(name)).unwrap()
}

#[test]
fn files_are_replaced_atomically() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path();
    assert!(volume(dir, &[("a", "1", 0o644), ("sub/b", "1", 0o400), ("old", "1", 0o644)]).set_up().unwrap());
    assert_eq!(names(dir), ["..data", "..time", "a", "old", "sub"]);
    assert_eq!(std::fs::read_link(dir.join("v/a")).unwrap(), Path::new("..data/a"));
    assert_eq!(dir.join("v/sub/b").metadata().unwrap().permissions().mode() & 0o7777, 0o400);
    let first = std::fs::read_link(dir.join("v/..data")).unwrap();

    // A process that has a version's directory open still reads that version.
    let open = std::fs::File::open(dir.join("v/a")).unwrap();
    assert!(volume(dir, &[("a", "2", 0o644), ("sub/b", "2", 0o400), ("new", "2", 0o644)]).set_up().unwrap());
    assert_eq!((read(dir, "a"), read(dir, "sub/b"), read(dir, "new")), ("2".into(), "2".into(), "2".into()));
    assert_eq!(io::read_to_string(open).unwrap(), "1");
    assert_eq!(names(dir), ["..data", "..time", "a", "new", "sub"]);
    assert_ne!(std::fs::read_link(dir.join("v/..data")).unwrap(), first);
}

#[test]
fn a_volume_that_is_up_to_date_is_not_changed() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path();
    let same = volume(dir, &[("a", "1", 0o644)]);
    assert!(same.set_up().unwrap());
    let before = std::fs::read_link(dir.join("v/..data")).unwrap();
    assert!(!same.set_up().unwrap());
    assert_eq!(std::fs::read_link(dir.join("v/..data")).unwrap(), before);
    let table: [&[(&str, &str, u32)]; 4] =
        [&[("a", "1", 0o600)], &[("a", "2", 0o600)], &[("a", "2", 0o600), ("b", "", 0o600)], &[]];
    for files in table {
        assert!(volume(dir, files).set_up().unwrap(), "{files:?}");
        assert!(!volume(dir, files).set_up().unwrap(), "{files:?}");
    }
    assert_eq!(names(dir), ["..data", "..time"]);
}

#[test]
fn incomplete_versions_of_a_crash_are_removed() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path();
    volume(dir, &[("a", "1", 0o644)]).set_up().unwrap();
    std::fs::create_dir_all(dir.join("v/..2001_01_01_00_00_00.1/x")).unwrap();
    symlink("..2001_01_01_00_00_00.1", dir.join("v/..data_tmp")).unwrap();
    std::fs::remove_file(dir.join("v/a")).unwrap();
    assert!(!volume(dir, &[("a", "1", 0o644)]).set_up().unwrap());
    assert_eq!(read(dir, "a"), "1");
    assert!(volume(dir, &[("a", "2", 0o644)]).set_up().unwrap());
    assert_eq!((read(dir, "a").as_str(), names(dir)), ("2", vec!["..data".into(), "..time".into(), "a".into()]));
    // A volume with a dangling `..data` was never written.
    std::fs::remove_dir_all(dir.join("v").join(std::fs::read_link(dir.join("v/..data")).unwrap())).unwrap();
    assert!(volume(dir, &[("a", "2", 0o644)]).set_up().unwrap());
    assert_eq!(read(dir, "a"), "2");
}

#[test]
fn a_group_may_read_and_owns() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path();
    let group_id = dir.metadata().unwrap().gid();
    let grouped = WrittenVolume { group: Some(group_id), ..volume(dir, &[("s/a", "1", 0o400)]) };
    assert!(grouped.set_up().unwrap());
    assert!(!grouped.set_up().unwrap());
    let mode = |path: &str| dir.join("v").join(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("."), mode("..data"), mode("s"), mode("s/a")), (0o2777, 0o2755, 0o2755, 0o440));
}
