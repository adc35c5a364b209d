//! Cgroups: version, controllers, and whether the configured driver fits.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::Finding;
use limpet_host::cgroup::CgroupDriver;
use limpet_host::mount_table::{self, Mount};

/// The controllers that pod limits need.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

pub(super) fn examine(driver: CgroupDriver) -> Vec<Finding> {
    let mounted = Mounted::from_mounts(mount_table::mounts().unwrap_or_default());
    let offered = mounted.unified.as_deref().map(|root| fs::read_to_string(root.join("cgroup.controllers")));
    let systemd = Path::new("/run/systemd/system").exists();
    let mut findings = judge(&mounted, &offered.and_then(Result::ok).unwrap_or_default(), driver, systemd);
    findings.extend(mounted.places.iter().find_map(|place| make_group(place).err()).map(|(place, error)| {
        let text = format!("no cgroup can be created: {place}: {error}");
        Finding::failed("cgroups", text, "Mount cgroups writable, and start limpet as root")
    }));
    findings
}

/// Creates a cgroup where pods' cgroups are created, and removes it.
fn make_group(place: &Path) -> Result<(), (String, io::Error)> {
    let group = place.join(format!("limpet-doctor-{}", std::process::id()));
    fs::create_dir(&group).and_then(|()| fs::remove_dir(&group)).map_err(|error| (group.display().to_string(), error))
}

/// The cgroup mounts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mounted {
    /// The mount point of v2.
    unified: Option<PathBuf>,
    /// The options of the v1 mounts, controllers among them.
    v1: BTreeSet<String>,
    /// The mount points of the needed controllers.
    places: BTreeSet<PathBuf>,
}

impl Mounted {
    fn from_mounts(mounts: Vec<Mount>) -> Self {
        let mut mounted = Self::default();
        for mount in mounts {
            match mount.file_system.as_str() {
                "cgroup2" => {
                    mounted.places.insert(mount.point.clone());
                    mounted.unified = Some(mount.point);
                }
                "cgroup" => {
                    if mount.options.iter().any(|option| NEEDED.contains(&option.as_str())) {
                        mounted.places.insert(mount.point);
                    }
                    mounted.v1.extend(mount.options);
                }
                _ => {}
            }
        }
        mounted
    }

    fn has_v1(&self) -> bool {
        NEEDED.iter().any(|controller| self.v1.contains(*controller))
    }
}

fn judge(mounted: &Mounted, offered: &str, driver: CgroupDriver, systemd: bool) -> Vec<Finding> {
    let (version, there): (&str, BTreeSet<&str>) = match (mounted.has_v1(), &mounted.unified) {
        (true, None) => ("v1", mounted.v1.iter().map(String::as_str).collect()),
        (true, Some(_)) => ("v1 (hybrid)", mounted.v1.iter().map(String::as_str).collect()),
        (false, Some(_)) => ("v2", offered.split_whitespace().collect()),
        (false, None) => {
            let remedy = "Mount them, for example: mount -t cgroup2 cgroup2 /sys/fs/cgroup";
            return vec![Finding::failed("cgroups", "none are mounted", remedy)];
        }
    };
    let missing: Vec<&str> = NEEDED.into_iter().filter(|controller| !there.contains(controller)).collect();
    let finding = if missing.is_empty() {
        Finding::ok("cgroups", format!("{version}; {}", NEEDED.join(" ")))
    } else {
        let text = format!("{version} without {}; limits that need it are not enforced", missing.join(" "));
        let remedy = match missing.contains(&"memory") {
            true => "Add cgroup_enable=memory cgroup_memory=1 to the kernel's command line",
            false => "Use a kernel that has the controller",
        };
        Finding::degraded("cgroups", text, remedy)
    };
    vec![finding, judge_driver(version, driver, systemd)]
}

fn judge_driver(version: &str, driver: CgroupDriver, systemd: bool) -> Finding {
    let name = "cgroup driver";
    match (driver, systemd) {
        (CgroupDriver::Systemd, true) => Finding::ok(name, "systemd"),
        (CgroupDriver::Systemd, false) => {
            Finding::failed(name, "systemd is configured and does not run here", "Set cgroupDriver: cgroupfs")
        }
        (CgroupDriver::Cgroupfs, true) if version == "v2" => Finding::degraded(
            name,
            "cgroupfs next to systemd on v2: both write the same tree",
            "Set cgroupDriver: systemd before the first pod",
        ),
        (CgroupDriver::Cgroupfs, _) => Finding::ok(name, "cgroupfs"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const V1: &str = "30 24 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 24 0:28 / /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids\n";
    const V2: &str = "33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn cgroups_are_judged() {
        use CgroupDriver::{Cgroupfs, Systemd};
        let hybrid = format!("{V1}{V2}");
        for (mounts, offered, driver, systemd, levels, text) in [
            (V1, "", Cgroupfs, false, [Level::Ok, Level::Ok], "v1; cpu memory pids"),
            (&hybrid, "", Cgroupfs, true, [Level::Ok, Level::Ok], "v1 (hybrid); cpu memory pids"),
            (V2, "cpuset cpu io memory pids\n", Systemd, true, [Level::Ok, Level::Ok], "v2; cpu memory pids"),
            (
                V2,
                "cpu pids",
                Cgroupfs,
                false,
                [Level::Degraded, Level::Ok],
                "v2 without memory; limits that need it are not enforced",
            ),
            (V2, "cpu memory pids", Cgroupfs, true, [Level::Ok, Level::Degraded], "v2; cpu memory pids"),
            (V1, "", Systemd, false, [Level::Ok, Level::Failed], "v1; cpu memory pids"),
        ] {
            let findings =
                judge(&Mounted::from_mounts(mount_table::parse(mounts.as_bytes())), offered, driver, systemd);
            assert_eq!(findings.iter().map(|finding| finding.level).collect::<Vec<_>>(), levels, "{findings:?}");
            assert_eq!(findings[0].text, text);
        }
        assert_eq!(judge(&Mounted::default(), "", Cgroupfs, false)[0].level, Level::Failed);
    }
}
