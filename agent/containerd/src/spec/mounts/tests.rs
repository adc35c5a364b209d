#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::spec::tests::Fixture;

fn volume(container: &str, read_only: bool) -> volume::Mount {
    volume::Mount {
        host_path: "/host".into(),
        container_path: container.into(),
        read_only,
        propagation: Propagation::Private,
    }
}

fn destinations(volumes: Vec<volume::Mount>) -> Vec<String> {
    let mut fixture = Fixture::new(json!({}), json!({}));
    fixture.mounts = volumes;
    mounts(&fixture.input(), false).iter().map(|mount| mount.destination().display().to_string()).collect()
}

#[test]
fn volumes_follow_the_defaults_parents_first() {
    assert_eq!(
        destinations(vec![volume("/a/b/c", false), volume("/z", false), volume("/a", false)]),
        ["/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/sys/fs/cgroup", "/z", "/a", "/dev/shm", "/a/b/c"]
    );
}

#[test]
fn a_volume_replaces_a_default() {
    assert_eq!(
        destinations(vec![volume("/dev", false)]),
        ["/proc", "/sys", "/sys/fs/cgroup", "/dev", "/dev/shm"],
        "all mounts below /dev are replaced with it"
    );
    let own_shm = destinations(vec![volume("/dev/./shm/", false)]);
    assert_eq!(own_shm.iter().filter(|path| path.starts_with("/dev/") && path.contains("shm")).count(), 1);
    assert!(!destinations(vec![volume("/x/../sys/fs//cgroup", true)]).contains(&"/sys/fs/cgroup".to_owned()));
}

#[test]
fn options_contain_access_and_propagation() {
    let cases = [
        (false, Propagation::Private, ["rbind", "rprivate", "rw"]),
        (true, Propagation::HostToContainer, ["rbind", "rslave", "ro"]),
        (true, Propagation::Bidirectional, ["rbind", "rshared", "ro"]),
    ];
    for (read_only, propagation, wanted) in cases {
        let made = bind(&volume::Mount { propagation, ..volume("/c", read_only) });
        assert_eq!(made.options().as_ref().unwrap(), &wanted);
        assert_eq!(made.typ().as_deref(), Some("bind"));
        assert_eq!(made.source().as_deref(), Some(Path::new("/host")));
    }
}
