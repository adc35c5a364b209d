//! A pod's SELinux level, which separates its containers and files from those of other pods.
//!
//! The file `level` of a sandbox has it in its first line, followed by levels that containers of the pod request for
//! themselves. They belong to the pod until its sandbox is removed.

use std::collections::BTreeSet;
use std::path::Path;

use super::SandboxError;
use super::allocation_file::AllocationFile;
use crate::selinux;
use limpet_model::pod::PodUid;
use limpet_model::sandbox::Sandbox;
use limpet_model::selinux::PodLabelling;

/// The levels of sandboxes, one per line.
static LEVELS: AllocationFile = AllocationFile::new("level");

/// The level of the sandbox in `dir`: its current one, the one in its Pod, or one that no sandbox below `sandboxes`
/// has.
pub(super) fn allocate(
    sandboxes: &Path,
    dir: &Path,
    uid: &PodUid,
    labelling: &PodLabelling,
) -> Result<String, SandboxError> {
    let _guard = LEVELS.lock();
    if let Some(level) = read(dir)?.into_iter().next() {
        return Ok(level);
    }
    let level = match &labelling.level {
        Some(level) => level.clone(),
        None => free(sandboxes)?.ok_or_else(|| SandboxError::NoLevel { uid: uid.clone() })?,
    };
    let levels = [&level].into_iter().chain(&labelling.container_levels);
    LEVELS.write(dir, &levels.map(|level| format!("{level}\n")).collect::<String>())?;
    Ok(level)
}

/// A level that no sandbox has.
fn free(sandboxes: &Path) -> Result<Option<String>, SandboxError> {
    let used: BTreeSet<String> = LEVELS.read_all(sandboxes)?.iter().flat_map(|text| levels(text)).collect();
    let mut seed = [0; 4];
    let random = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    random.map_err(|errno| SandboxError::path("choose a level below", sandboxes, errno.into()))?;
    Ok(limpet_model::selinux::allocate(u32::from_ne_bytes(seed), &used))
}

/// The levels of the sandbox in `dir`, the pod's first; none if it is not labelled.
fn read(dir: &Path) -> Result<Vec<String>, SandboxError> {
    Ok(levels(&LEVELS.read(dir)?.unwrap_or_default()))
}

fn levels(text: &str) -> Vec<String> {
    text.lines().filter(|level| !level.is_empty()).map(str::to_owned).collect()
}

/// Releases the levels of the sandbox in `dir`; missing ones count as success.
pub(super) fn release(dir: &Path) -> Result<(), SandboxError> {
    LEVELS.remove(dir)
}

/// Labels the pod's shared memory, unless it is the host's, for a container that mounts it. Blocks.
///
/// # Errors
///
/// It cannot be labelled.
pub fn label_shared_memory(sandbox: &Sandbox, label: &str) -> Result<(), SandboxError> {
    if sandbox.namespaces.ipc.is_none() {
        return Ok(());
    }
    selinux::relabel(&sandbox.shm, label).map_err(|source| SandboxError::path("label", &sandbox.shm, source))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_model::selinux::ContainerContexts;

    use super::*;

    /// The labelling of a pod that requests no level.
    fn labelling() -> PodLabelling {
        let contexts = ContainerContexts::parse("process=u:r:t:s0\nfile=u:object_r:f:s0").unwrap();
        PodLabelling::new(&contexts, &Default::default()).unwrap()
    }

    #[test]
    fn a_level_is_a_pods_until_its_sandbox_is_gone() {
        let sandboxes = tempfile::tempdir().unwrap();
        let pod = |name: &str| {
            let dir = sandboxes.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        let level_of = |name: &str, labelling: &PodLabelling| {
            allocate(sandboxes.path(), &pod(name), &PodUid::new(name), labelling).unwrap()
        };
        let chosen = level_of("a", &labelling());
        assert_eq!(level_of("a", &labelling()), chosen, "it is found again");
        let mut named = labelling();
        (named.level, named.container_levels) = (Some("s0:c7,c9".to_owned()), vec!["s0:c3".to_owned()]);
        assert_eq!(level_of("b", &named), "s0:c7,c9");
        assert_eq!(read(&pod("b")).unwrap(), ["s0:c7,c9", "s0:c3"]);
        let others: BTreeSet<_> = (0..20).map(|number| level_of(&format!("p{number}"), &labelling())).collect();
        assert!(others.len() == 20 && !others.contains(&chosen), "{others:?}");
        release(&pod("a")).unwrap();
        release(&pod("a")).unwrap();
        assert_eq!(read(&pod("a")).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn no_pod_has_a_level_of_another() {
        let sandboxes = tempfile::tempdir().unwrap();
        let (full, new) = (sandboxes.path().join("full"), sandboxes.path().join("new"));
        for dir in [&full, &new] {
            std::fs::create_dir(dir).unwrap();
        }
        let all = (1..1_024).flat_map(|high| (0..high).map(move |low| format!("s0:c{low},c{high}\n")));
        let all: Vec<String> = all.collect();
        // The last pair belongs to no pod, so one is left.
        std::fs::write(full.join("level"), all[1..].concat()).unwrap();
        let given = allocate(sandboxes.path(), &new, &PodUid::new("new"), &labelling());
        assert_eq!(given.unwrap(), "s0:c0,c1");
        release(&new).unwrap();
        std::fs::write(full.join("level"), all.concat()).unwrap();
        let given = allocate(sandboxes.path(), &new, &PodUid::new("new"), &labelling());
        assert!(matches!(given, Err(SandboxError::NoLevel { .. })));
    }
}
