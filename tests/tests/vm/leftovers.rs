//! Checks that nothing on the machine belongs to no pod that the agent knows, whatever happened before.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::vm::Guest;
use serde_json::Value;

use crate::pod::SOON;

/// The script that prints a line `kind name` for each thing that exists, whose name contains a pod's UID or a
/// container's id.
const INVENTORY: &str = r#"
for id in $(ctr -n k8s.io tasks ls -q); do echo container $id; done
for id in $(ctr -n k8s.io containers ls -q); do echo container $id; done
for id in $(ctr -n k8s.io snapshots ls | awk '$3 == "Active" { print $1 }'); do echo container $id; done
for ingest in $(ctr -n k8s.io content active | awk 'NR > 1 { print $1 }'); do echo ingest $ingest; done
for dir in /var/lib/limpet/pods/* /run/limpet/sandboxes/*; do test -e $dir && echo pod ${dir##*/}; done
for dir in $(find /sys/fs/cgroup/kubepods.slice -type d -name '*-pod*.slice'); do
    uid=${dir##*-pod}; echo pod $(echo ${uid%.slice} | tr _ -); done
awk '$2 ~ /limpet.*\/(pods|sandboxes)\// { print "mount", $2 }' /proc/mounts
for file in $(find /run/limpet/ipam -name '10.*'); do echo address ${file##*/}; done
true"#;

/// Waits until everything belongs to an existing pod, and every container exists once.
pub(crate) fn none(guest: &mut Guest) -> Result<()> {
    let last = guest.until(SOON, "nothing left over", &inventory(), |output| {
        let left = left_over(output);
        left.is_empty().then_some(())
    });
    last.with_context(|| {
        let output = guest.run(&inventory()).unwrap_or_default();
        format!("left over: {:?}", left_over(&output))
    })?;
    doubled(guest)
}

fn inventory() -> String {
    format!("limpet pods -A -o json | tr -d '\\n'; echo; {INVENTORY}")
}

/// Lines of the inventory that no pod explains.
fn left_over(output: &str) -> Vec<String> {
    let (pods, things) = output.split_once('\n').unwrap_or((output, ""));
    let Ok(list) = serde_json::from_str::<Value>(pods) else { return vec![format!("unreadable: {pods}")] };
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let known = Known::collect(&items);
    things.lines().filter(|line| !known.explains(line)).map(str::to_owned).collect()
}

/// The UIDs, addresses and containers of the known pods.
struct Known {
    uids: BTreeSet<String>,
    addresses: BTreeSet<String>,
    containers: BTreeSet<String>,
}

impl Known {
    fn collect(pods: &[Value]) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut containers = BTreeSet::new();
        for pod in pods {
            for kind in ["containerStatuses", "initContainerStatuses"] {
                for status in pod["status"][kind].as_array().into_iter().flatten() {
                    let ids = [&status["containerID"], &status["lastState"]["terminated"]["containerID"]];
                    containers.extend(
                        ids.into_iter().filter_map(text).map(|id| id.trim_start_matches("containerd://").to_owned()),
                    );
                }
            }
        }
        Self {
            uids: pods.iter().filter_map(|pod| text(&pod["metadata"]["uid"])).collect(),
            addresses: pods.iter().filter_map(|pod| text(&pod["status"]["podIP"])).collect(),
            containers,
        }
    }

    fn explains(&self, line: &str) -> bool {
        match line.split_once(' ') {
            Some(("container", id)) => self.containers.contains(id),
            Some(("pod", uid)) => self.uids.contains(uid),
            Some(("mount", path)) => self.uids.iter().any(|uid| path.contains(uid.as_str())),
            Some(("address", address)) => self.addresses.contains(address),
            Some(("ingest", _)) | None => false,
            Some(_) => line.is_empty(),
        }
    }
}

/// Checks that no container of a pod has two tasks.
fn doubled(guest: &mut Guest) -> Result<()> {
    let running = guest.run(
        "for id in $(ctr -n k8s.io tasks ls | awk '$3 == \"RUNNING\" { print $1 }'); do \
         ctr -n k8s.io containers info $id | grep -E '\"io.kubernetes.(pod.uid|container.name)\"' | xargs; done",
    )?;
    let lines: Vec<_> = running.lines().collect();
    let distinct: BTreeSet<_> = lines.iter().collect();
    ensure!(distinct.len() == lines.len(), "a container runs twice:\n{running}");
    Ok(())
}
