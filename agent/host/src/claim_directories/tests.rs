use std::os::unix::fs::MetadataExt as _;

use super::*;

struct Node {
    dir: tempfile::TempDir,
    claims: ClaimDirectories,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        let claims = ClaimDirectories::new(&dir.path().join("volumes"), &dir.path().join("root"));
        Self { claims, dir }
    }

    fn data(&self, name: &str) -> PathBuf {
        self.dir.path().join("volumes/file/shop").join(name).join("data")
    }

    fn names(&self) -> Vec<(String, bool)> {
        let mut names: Vec<_> =
            self.claims.list().unwrap().into_iter().map(|claim| (claim.name, claim.retained)).collect();
        names.sort();
        names
    }
}

#[test]
fn a_directory_is_made_once_and_removed_whole() {
    let node = Node::new();
    assert_eq!(node.names(), []);
    assert!(!node.dir.path().join("volumes").exists(), "without a claim nothing is made");
    node.claims.make(&node.data("a"), 1 << 20, false).unwrap();
    node.claims.make(&node.data("b"), 1 << 20, true).unwrap();
    assert_eq!(node.data("a").metadata().unwrap().mode() & 0o7777, MODE);
    fs::write(node.data("a").join("file"), "text").unwrap();
    node.claims.make(&node.data("a"), 2 << 20, false).unwrap();
    assert_eq!(fs::read_to_string(node.data("a").join("file")).unwrap(), "text");
    assert_eq!(node.names(), [("a".to_owned(), false), ("b".to_owned(), true)]);
    node.claims.retain(&node.data("b"), false).unwrap();
    node.claims.retain(&node.data("c"), true).unwrap();
    node.claims.remove(&node.data("a")).unwrap();
    node.claims.remove(&node.data("c")).unwrap();
    assert_eq!(node.names(), [("b".to_owned(), false)]);
    assert!(!node.dir.path().join("volumes").join(REMOVED).exists());
}

#[test]
fn pods_that_begin_at_the_same_time_share_it() {
    let node = Node::new();
    let make = |claim: usize| node.claims.make(&node.data(["a", "b"][claim % 2]), 0, false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|claim| {
                scope.spawn({
                    let make = &make;
                    move || make(claim)
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
    assert_eq!(node.names().len(), 2);
}

#[test]
fn what_a_power_cut_interrupts_is_no_claims() {
    let node = Node::new();
    node.claims.make(&node.data("a"), 0, false).unwrap();
    let (base, claim_dir) = (node.dir.path().join("volumes"), node.data("b").parent().unwrap().to_owned());
    // In the middle of making one, and of removing another.
    fs::create_dir_all(claim_dir.join("new/half")).unwrap();
    fs::create_dir_all(base.join(REMOVED).join("some/data")).unwrap();
    assert_eq!(node.names(), [("a".to_owned(), false), ("b".to_owned(), false)]);
    assert!(!base.join(REMOVED).exists());
    node.claims.make(&node.data("b"), 0, false).unwrap();
    assert_eq!(fs::read_dir(node.data("b")).unwrap().count(), 0);
}

#[test]
fn a_file_system_that_is_not_mounted_is_not_an_empty_one() {
    let node = Node::new();
    node.claims.make(&node.data("a"), 0, false).unwrap();
    let (base, away) = (node.dir.path().join("volumes"), node.dir.path().join("away"));
    fs::rename(&base, &away).unwrap();
    fs::create_dir(&base).unwrap();
    let elsewhere = |error: ClaimDirectoryError| matches!(error, ClaimDirectoryError::Elsewhere { .. });
    assert!(elsewhere(node.claims.list().unwrap_err()));
    assert!(elsewhere(node.claims.make(&node.data("a"), 0, false).unwrap_err()));
    assert!(elsewhere(node.claims.remove(&node.data("a")).unwrap_err()));
    fs::remove_dir(&base).unwrap();
    fs::rename(&away, &base).unwrap();
    assert_eq!(node.names().len(), 1);
    // A new persistent directory of the agent finds it.
    fs::remove_file(node.dir.path().join("root/persistent-volumes-id")).unwrap();
    assert_eq!(node.names().len(), 1);
    assert!(node.dir.path().join("root/persistent-volumes-id").exists());
}
