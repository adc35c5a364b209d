//! Enabling v2 controllers for child cgroups, on plain files instead of the kernel's.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::cgroup::limits::GroupLimits;

#[test]
fn controllers_are_enabled_for_children_and_a_missing_one_is_named() {
    let root = std::env::temp_dir().join(format!("limpet-cgroup2-{}", std::process::id()));
    fs::create_dir_all(root.join("a")).unwrap();
    fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
    fs::write(root.join("cgroup.subtree_control"), "cpu\n").unwrap();
    fs::write(root.join("a/cgroup.controllers"), "cpu\n").unwrap();
    fs::write(root.join("a/cgroup.subtree_control"), "").unwrap();
    let hierarchies = Hierarchies::parse(&format!("30 25 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.display()));
    create(&hierarchies, Path::new("a/b")).unwrap();
    create(&hierarchies, Path::new("a/b")).unwrap();
    let passed = |path: &str| fs::read_to_string(root.join(path).join("cgroup.subtree_control")).unwrap();
    assert_eq!(passed(""), "+memory", "a controller that is enabled already is not enabled again");
    assert_eq!(passed("a"), "+cpu");

    let limit = |optional| Setting { controller: "memory", file: "memory.max".into(), value: "5".to_owned(), optional };
    set(&hierarchies, Path::new("a/b"), &[limit(true)]).unwrap();
    let error = set(&hierarchies, Path::new("a/b"), &[limit(false)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "set memory.max of cgroup a/b to 5: the kernel does not provide the memory controller here; boot with cgroup_enable=memory"
    );
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn huge_pages_are_limited_where_the_kernel_has_their_controller() {
    let huge = GroupLimits::default().with_huge_pages(vec![(2 << 20, 4 << 20), (1 << 30, 0)]);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (v1, v2) = (at("v1"), at("v2"));
    for (path, file) in [(&v1, "hugetlb.2MB.limit_in_bytes"), (&v2, "hugetlb.2MB.max")] {
        fs::create_dir_all(path.join("pod")).unwrap();
        fs::write(path.join("pod").join(file), "max").unwrap();
    }
    let hierarchies =
        |path: &Path, line: &str| Hierarchies::parse(&format!("30 25 0:26 / {} rw - {line}\n", path.display()));
    let (with_v1, two) = (hierarchies(&v1, "cgroup cgroup rw,hugetlb"), hierarchies(&v2, "cgroup2 cgroup2 rw"));
    set(&with_v1, Path::new("pod"), &huge.huge_page_settings(false)).unwrap();
    set(&two, Path::new("pod"), &huge.huge_page_settings(true)).unwrap();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(read(v1.join("pod/hugetlb.2MB.limit_in_bytes")), "4194304");
    assert_eq!(read(v2.join("pod/hugetlb.2MB.max")), "4194304");
    assert!(!v2.join("pod/hugetlb.1GB.max").exists(), "a size that the controller does not have");
}
