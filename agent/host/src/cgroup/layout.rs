//! The names of cgroups (kubelet's), in either driver's form.

use std::path::{Path, PathBuf};

use super::CgroupOwner;
use crate::cgroup::CgroupDriver;
use limpet_model::pod::PodUid;
use limpet_model::pod::qos::QosClass;

/// Every QoS class, in the order in which a pod's group is searched.
pub(super) const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

/// The prefix of containers' scopes, with the systemd driver.
const SCOPE_PREFIX: &str = "limpet";

/// The group of the init of a pod's shared PID namespace; no container has such an id.
const INIT: &str = "init";

/// A group by its name at each level: `["kubepods", "burstable", "podX"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupName(Vec<String>);

impl GroupName {
    /// Splits an absolute path into levels.
    fn of_path(path: &Path) -> Self {
        Self(path.iter().map(|level| level.to_string_lossy().into_owned()).filter(|level| level != "/").collect())
    }

    fn child(mut self, name: impl Into<String>) -> Self {
        self.0.push(name.into());
        self
    }

    /// The slice with this name: levels joined by dashes, so a dash within a level becomes an underscore.
    pub(super) fn slice(&self) -> String {
        format!("{}.slice", self.escaped().join("-"))
    }

    fn escaped(&self) -> Vec<String> {
        self.0.iter().map(|level| escape(level)).collect()
    }

    /// The directory, from the root of the hierarchy. A slice is within the slices whose names are its prefixes.
    fn directory(&self, driver: CgroupDriver) -> PathBuf {
        match driver {
            CgroupDriver::Cgroupfs => self.0.iter().collect(),
            CgroupDriver::Systemd => {
                let levels = self.escaped();
                (1..=levels.len()).map(|depth| format!("{}.slice", levels[..depth].join("-"))).collect()
            }
        }
    }
}

/// Escapes a level for a unit name. kubelet writes `_` for `-`; characters that units may not contain become
/// hexadecimal.
fn escape(level: &str) -> String {
    let mut escaped = String::with_capacity(level.len());
    for byte in level.bytes() {
        match byte {
            b'-' => escaped.push('_'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b':' => escaped.push(char::from(byte)),
            other => escaped.push_str(&format!("\\x{other:02x}")),
        }
    }
    escaped
}

/// The naming of this node's groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    driver: CgroupDriver,
    root: GroupName,
}

impl Layout {
    /// The layout below `root`, an absolute path.
    pub(super) fn new(driver: CgroupDriver, root: &Path) -> Self {
        Self { driver, root: GroupName::of_path(root) }
    }

    /// A group that others created: at this path, or the slice with which the path ends, as kubelet reads it.
    pub(super) fn existing(&self, group: &Path) -> GroupName {
        match self.driver {
            CgroupDriver::Cgroupfs => GroupName::of_path(group),
            CgroupDriver::Systemd => {
                let unit = group.file_name().unwrap_or_default().to_string_lossy();
                GroupName(unit.trim_end_matches(".slice").split('-').map(str::to_owned).collect())
            }
        }
    }

    /// The group above the pods of a class; for guaranteed pods the one above all pods.
    pub(super) fn level(&self, class: QosClass) -> GroupName {
        let node = self.root.clone().child("kubepods");
        match class {
            QosClass::Guaranteed => node,
            QosClass::Burstable => node.child("burstable"),
            QosClass::BestEffort => node.child("besteffort"),
        }
    }

    /// A pod's group.
    pub(super) fn pod(&self, class: QosClass, uid: &PodUid) -> GroupName {
        self.level(class).child(format!("pod{uid}"))
    }

    /// A group's directory, from the root of a hierarchy.
    pub(super) fn directory(&self, group: &GroupName) -> PathBuf {
        group.directory(self.driver)
    }

    /// `linux.cgroupsPath`: `/parent/id`, or `slice:prefix:id` for systemd.
    pub(super) fn container_path(&self, class: QosClass, uid: &PodUid, id: &str) -> String {
        let pod = self.pod(class, uid);
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}/{id}", self.directory(&pod).display()),
            CgroupDriver::Systemd => format!("{}:{SCOPE_PREFIX}:{id}", pod.slice()),
        }
    }

    /// A container's directory, from the root of a hierarchy.
    pub(super) fn container_directory(&self, class: QosClass, uid: &PodUid, id: &str) -> PathBuf {
        let pod = self.directory(&self.pod(class, uid));
        match self.driver {
            CgroupDriver::Cgroupfs => pod.join(id),
            CgroupDriver::Systemd => pod.join(format!("{SCOPE_PREFIX}-{id}.scope")),
        }
    }

    /// The unit, and the directory from the root of a hierarchy, for the group of a pod's own process.
    pub(super) fn init(&self, class: QosClass, uid: &PodUid) -> (String, PathBuf) {
        let pod = self.directory(&self.pod(class, uid));
        let unit = format!("{SCOPE_PREFIX}-{INIT}-{uid}.scope");
        match self.driver {
            CgroupDriver::Cgroupfs => (unit, pod.join(INIT)),
            CgroupDriver::Systemd => (unit.clone(), pod.join(unit)),
        }
    }

    /// The owner of the group that is or contains `path`, from the root of a hierarchy. Recognizes the names of both
    /// drivers, because what was started with the other one keeps its group.
    pub(super) fn owner(&self, path: &str) -> Option<CgroupOwner> {
        let driver = match self.driver {
            CgroupDriver::Cgroupfs => CgroupDriver::Systemd,
            CgroupDriver::Systemd => CgroupDriver::Cgroupfs,
        };
        self.exact_owner(path).or_else(|| Self { driver, root: self.root.clone() }.exact_owner(path))
    }

    fn exact_owner(&self, path: &str) -> Option<CgroupOwner> {
        let path = Path::new(path.trim_start_matches('/'));
        CLASSES.into_iter().find_map(|class| {
            let inside = path.strip_prefix(self.directory(&self.level(class))).ok()?;
            let mut names = inside.iter().filter_map(|name| name.to_str());
            let pod = self.pod_named(class, names.next()?)?;
            let container = names.next().and_then(|name| match self.driver {
                CgroupDriver::Cgroupfs => Some(name),
                CgroupDriver::Systemd => name.strip_prefix(SCOPE_PREFIX)?.strip_prefix('-')?.strip_suffix(".scope"),
            });
            Some(CgroupOwner { pod, container: container.map(str::to_owned) })
        })
    }

    /// The pod whose group is called `name` in the level of `class`. As in kubelet, an underscore in a slice's name
    /// is read as a dash: UIDs contain dashes and no underscores.
    pub(super) fn pod_named(&self, class: QosClass, name: &str) -> Option<PodUid> {
        let uid = match self.driver {
            CgroupDriver::Cgroupfs => name.strip_prefix("pod")?.to_owned(),
            CgroupDriver::Systemd => {
                let level = self.level(class).escaped().join("-");
                let uid = name.strip_prefix(&level)?.strip_prefix("-pod")?.strip_suffix(".slice")?;
                uid.replace('_', "-")
            }
        };
        PodUid::parse(uid).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kubelets() {
        let uid = PodUid::new("12-ab");
        let cases = [
            (CgroupDriver::Cgroupfs, "/", QosClass::Guaranteed, "kubepods/pod12-ab", "/kubepods/pod12-ab/c1"),
            (
                CgroupDriver::Cgroupfs,
                "/edge/box",
                QosClass::BestEffort,
                "edge/box/kubepods/besteffort/pod12-ab",
                "/edge/box/kubepods/besteffort/pod12-ab/c1",
            ),
            (
                CgroupDriver::Systemd,
                "/",
                QosClass::Guaranteed,
                "kubepods.slice/kubepods-pod12_ab.slice",
                "kubepods-pod12_ab.slice:limpet:c1",
            ),
            (
                CgroupDriver::Systemd,
                "/",
                QosClass::Burstable,
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice",
                "kubepods-burstable-pod12_ab.slice:limpet:c1",
            ),
            (
                CgroupDriver::Systemd,
                "/my-box",
                QosClass::Guaranteed,
                "my_box.slice/my_box-kubepods.slice/my_box-kubepods-pod12_ab.slice",
                "my_box-kubepods-pod12_ab.slice:limpet:c1",
            ),
        ];
        for (driver, root, class, directory, container) in cases {
            let layout = Layout::new(driver, Path::new(root));
            assert_eq!(layout.directory(&layout.pod(class, &uid)), Path::new(directory));
            assert_eq!(layout.container_path(class, &uid, "c1"), container);
            let name = directory.rsplit('/').next().unwrap();
            assert_eq!(layout.pod_named(class, name), Some(uid.clone()), "{name}");
        }
    }

    #[test]
    fn containers_lie_in_their_pod() {
        let uid = PodUid::new("u");
        let directory =
            |driver| Layout::new(driver, Path::new("/")).container_directory(QosClass::Guaranteed, &uid, "c1");
        assert_eq!(directory(CgroupDriver::Cgroupfs), Path::new("kubepods/podu/c1"));
        assert_eq!(directory(CgroupDriver::Systemd), Path::new("kubepods.slice/kubepods-podu.slice/limpet-c1.scope"));
    }

    #[test]
    fn the_owner_of_a_group_is_known_from_its_path() {
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            let layout = Layout::new(driver, Path::new("/edge"));
            for class in CLASSES {
                let uid = PodUid::new("12-ab");
                let container = layout.container_directory(class, &uid, "c1");
                let whole = Some(CgroupOwner { pod: uid.clone(), container: Some("c1".to_owned()) });
                assert_eq!(layout.owner(&format!("/{}", container.display())), whole);
                assert_eq!(layout.owner(&format!("/{}/inner/x", container.display())), whole);
                let pod = layout.directory(&layout.pod(class, &uid));
                assert_eq!(
                    layout.owner(&format!("/{}", pod.display())),
                    Some(CgroupOwner { pod: uid, container: None })
                );
                let level = layout.directory(&layout.level(class));
                assert_eq!(layout.owner(&format!("/{}", level.display())), None);
            }
            let other = [
                "/edge/kubepods/burstable/pod12-ab/c1",
                "/edge.slice/edge-kubepods.slice/edge-kubepods-pod12_ab.slice",
            ];
            for path in other {
                assert_eq!(layout.owner(path).unwrap().pod, PodUid::new("12-ab"), "{driver:?} {path}");
            }
            for path in ["/", "", "/system.slice/ssh.service", "/other/kubepods/pod1/c", "/podx"] {
                assert_eq!(layout.owner(path), None, "{path}");
            }
        }
    }

    #[test]
    fn other_groups_are_no_pods() {
        let fs = Layout::new(CgroupDriver::Cgroupfs, Path::new("/"));
        let systemd = Layout::new(CgroupDriver::Systemd, Path::new("/"));
        for name in ["burstable", "pod", "xpod1", ""] {
            assert_eq!(fs.pod_named(QosClass::Guaranteed, name), None, "{name}");
        }
        for name in ["kubepods-burstable.slice", "kubepods-pod.slice", "kubepods-podx.scope", "system.slice"] {
            assert_eq!(systemd.pod_named(QosClass::Guaranteed, name), None, "{name}");
        }
        assert_eq!(systemd.pod_named(QosClass::Burstable, "kubepods-podx.slice"), None);
    }

    #[test]
    fn groups_of_others_are_paths_or_slices() {
        let directory = |driver, group: &str| {
            let layout = Layout::new(driver, Path::new("/edge"));
            layout.directory(&layout.existing(Path::new(group)))
        };
        assert_eq!(directory(CgroupDriver::Cgroupfs, "/system.slice/a-b"), Path::new("system.slice/a-b"));
        for named in ["/system.slice", "system.slice", "system"] {
            assert_eq!(directory(CgroupDriver::Systemd, named), Path::new("system.slice"), "{named}");
        }
        let nested = "/edge.slice/edge-node_tools.slice";
        assert_eq!(directory(CgroupDriver::Systemd, nested), Path::new(&nested[1..]));
    }

    #[test]
    fn odd_characters_are_escaped() {
        assert_eq!(escape("a-b_c.d:e"), "a_b_c.d:e");
        assert_eq!(escape("a b@"), "a\\x20b\\x40");
    }
}
