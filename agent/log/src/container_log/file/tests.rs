//! The file: losses, rotation with a clock that jumps, and symlinks in place of directories.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

fn rotated(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "0.log")
        .collect();
    names.sort();
    names
}

#[test]
fn lost_lines_are_counted_and_reported_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut file = LogFile::open(path.clone(), LogRotation { max_size: 1 << 20, max_files: 5 });
    let stamp = Stamp::new(0, 0);
    // A directory at its path cannot be opened as a file.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    file.append(b"one\ntwo\n", &stamp);
    file.append(b"three\n", &stamp);
    assert!(file.has_losses());
    fs::remove_dir(&path).unwrap();
    file.append(b"four\n", &stamp);
    assert!(!file.has_losses());
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "1970-01-01T00:00:00.000000000Z stderr F limpet: lost 3 lines of this log: the file cannot be written\nfour\n"
    );
}

#[test]
fn names_of_rotated_files_sort_by_age_even_when_the_clock_is_set_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = LogFile::open(directory.path().join("0.log"), LogRotation { max_size: 1, max_files: 10 });
    for seconds in [100, 100, 200, 150, 150, 201] {
        file.append(format!("{seconds}\n").as_bytes(), &Stamp::new(seconds, 0));
    }
    let contents: Vec<_> =
        rotated(directory.path()).iter().map(|name| fs::read_to_string(directory.path().join(name)).unwrap()).collect();
    assert_eq!(contents.concat(), "100\n100\n200\n150\n150\n201\n");
}

#[test]
fn the_oldest_files_go_when_the_clock_was_set_back_for_long() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = LogFile::open(directory.path().join("0.log"), LogRotation { max_size: 1, max_files: 3 });
    file.append(b"before\n", &Stamp::new(9_000, 0));
    for number in 0..2_100 {
        file.append(format!("{number}\n").as_bytes(), &Stamp::new(100, 0));
    }
    let contents = || -> Vec<_> {
        let names = rotated(directory.path()).into_iter();
        names.map(|name| fs::read_to_string(directory.path().join(name)).unwrap()).collect()
    };
    assert_eq!(contents(), ["2098\n", "2099\n"]);
    // Another logger takes over.
    drop(file);
    let mut file = LogFile::open(directory.path().join("0.log"), LogRotation { max_size: 1, max_files: 3 });
    file.append(b"after\n", &Stamp::new(100, 0));
    assert_eq!(contents(), ["2099\n", "after\n"]);
}

#[test]
fn a_symlink_instead_of_a_pods_directory_is_not_followed() {
    for replaced in ["pods/web", "pods/web/main"] {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = directory.path().join("elsewhere");
        fs::create_dir_all(elsewhere.join("main")).unwrap();
        // Only the part below the directory of all pods matters; that directory may be on another disk.
        fs::create_dir(directory.path().join("disk")).unwrap();
        symlink("disk", directory.path().join("pods")).unwrap();
        let path = directory.path().join("pods/web/main/0.log");
        let mut file = LogFile::open(path.clone(), LogRotation { max_size: 1 << 20, max_files: 3 });
        file.append(b"one\n", &Stamp::new(0, 0));
        assert!(path.is_file());
        fs::remove_dir_all(directory.path().join(replaced)).unwrap();
        symlink(&elsewhere, directory.path().join(replaced)).unwrap();
        file.append(b"two\n", &Stamp::new(0, 0));
        assert!(file.has_losses());
        let mut directories = vec![elsewhere];
        while let Some(place) = directories.pop() {
            for entry in fs::read_dir(place).unwrap().map(Result::unwrap) {
                assert!(entry.file_type().unwrap().is_dir(), "{entry:?}");
                directories.push(entry.path());
            }
        }
    }
}
