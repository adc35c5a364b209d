//! Enabling v2 controllers for child cgroups, on plain files instead of the kernel's.
#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn controllers_are_enabled_for_children_and_a_missing_one_is_named() {
    let root = std::env::temp_dir().join(format!("limpet-cgroup2-{}", std::process::id()));
    fs::create_dir_all(root.join("a")).unwrap();
    fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
    fs::write(root.join("cgroup.subtree_control"), "cpu\n").unwrap();
    fs::write(root.join("a/cgroup.controllers"), "cpu\n").unwrap();
    fs::write(root.join("a/cgroup.subtree_control"), "").unwrap();
    let hierarchies = Hierarchies::of(&format!("30 25 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.display()));
    create(&hierarchies, Path::new("a/b")).unwrap();
    create(&hierarchies, Path::new("a/b")).unwrap();
    let passed = |path: &str| fs::read_to_string(root.join(path).join("cgroup.subtree_control")).unwrap();
    assert_eq!(passed(""), "+memory", "a controller that is enabled already is not enabled again");
    assert_eq!(passed("a"), "+cpu");

    let limit = |unlimited| Setting { controller: "memory", file: "memory.max", value: "5".to_owned(), unlimited };
    set(&hierarchies, Path::new("a/b"), &[limit(true)]).unwrap();
    let error = set(&hierarchies, Path::new("a/b"), &[limit(false)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "set memory.max of cgroup a/b to 5: the kernel offers no memory controller here; boot with cgroup_enable=memory"
    );
    fs::remove_dir_all(&root).unwrap();
}
