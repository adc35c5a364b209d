//! A pod's level of SELinux, which keeps its containers and files apart from those of other pods.
//!
//! The file `level` of a sandbox has it in its first line, and then the levels that containers of the pod name for themselves.
//! They are the pod's until its sandbox is gone.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{SandboxError, ignore_not_found};
use crate::selinux;
use limpet_model::pod::PodUid;
use limpet_model::sandbox::Sandbox;
use limpet_model::selinux::{PodLabelling, allocate};

/// The file with the levels.
const FILE: &str = "level";
/// Pods are given levels one after the other. It guards no data.
static GIVING: Mutex<()> = Mutex::new(());

/// The level of the sandbox in `dir`: the one it has, the one that its Pod names, or one that no sandbox below `sandboxes` has.
pub(super) fn give(
    sandboxes: &Path,
    dir: &Path,
    uid: &PodUid,
    labelling: &PodLabelling,
) -> Result<String, SandboxError> {
    let _guard = GIVING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(level) = read(dir)?.into_iter().next() {
        return Ok(level);
    }
    let level = match &labelling.level {
        Some(level) => level.clone(),
        None => free(sandboxes)?.ok_or_else(|| SandboxError::NoLevel { uid: uid.clone() })?,
    };
    let lines: String =
        [&level].into_iter().chain(&labelling.container_levels).map(|level| format!("{level}\n")).collect();
    let file = dir.join(FILE);
    std::fs::write(&file, lines).map_err(|source| failed("write", &file, source))?;
    Ok(level)
}

/// A level that no sandbox has.
fn free(sandboxes: &Path) -> Result<Option<String>, SandboxError> {
    let mut used = BTreeSet::new();
    let list = |source| failed("list", sandboxes, source);
    for entry in std::fs::read_dir(sandboxes).map_err(list)? {
        used.extend(read(&entry.map_err(list)?.path())?);
    }
    let mut seed = [0; 4];
    let random = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    random.map_err(|errno| failed("choose a level below", sandboxes, errno.into()))?;
    Ok(allocate(u32::from_ne_bytes(seed), &used))
}

/// The levels of the sandbox in `dir`, the pod's first; none: it is not labelled.
fn read(dir: &Path) -> Result<Vec<String>, SandboxError> {
    let file = dir.join(FILE);
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(text.lines().filter(|level| !level.is_empty()).map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(failed("read", &file, source)),
    }
}

/// Gives the pod's shared memory, unless it is the host's, the label of a container that mounts it. Blocks.
///
/// # Errors
/// It cannot be labelled.
pub fn label_shared_memory(sandbox: &Sandbox, label: &str) -> Result<(), SandboxError> {
    if sandbox.namespaces.ipc.is_none() {
        return Ok(());
    }
    selinux::relabel(&sandbox.shm, label).map_err(|source| failed("label", &sandbox.shm, source))
}

/// Takes the levels of the sandbox in `dir` back; none is success.
pub(super) fn take_back(dir: &Path) -> Result<(), SandboxError> {
    let file = dir.join(FILE);
    ignore_not_found(std::fs::remove_file(&file)).map_err(|source| failed("remove", &file, source))
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> SandboxError {
    SandboxError::Path { operation, path: path.to_owned(), source }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_model::selinux::ContainerContexts;

    use super::*;

    /// Of a pod that names no level.
    fn labelling() -> PodLabelling {
        let contexts = ContainerContexts::parse("process=u:r:t:s0\nfile=u:object_r:f:s0").unwrap();
        PodLabelling::of(&contexts, &Default::default()).unwrap()
    }

    #[test]
    fn a_level_is_a_pods_until_its_sandbox_is_gone() {
        let sandboxes = tempfile::tempdir().unwrap();
        let pod = |name: &str| {
            let dir = sandboxes.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        let give = |name: &str, labelling: &PodLabelling| {
            give(sandboxes.path(), &pod(name), &PodUid::new(name), labelling).unwrap()
        };
        let chosen = give("a", &labelling());
        assert_eq!(give("a", &labelling()), chosen, "it is found again");
        let mut named = labelling();
        (named.level, named.container_levels) = (Some("s0:c7,c9".to_owned()), vec!["s0:c3".to_owned()]);
        assert_eq!(give("b", &named), "s0:c7,c9");
        assert_eq!(read(&pod("b")).unwrap(), ["s0:c7,c9", "s0:c3"]);
        let others: BTreeSet<_> = (0..20).map(|number| give(&format!("p{number}"), &labelling())).collect();
        assert!(others.len() == 20 && !others.contains(&chosen), "{others:?}");
        take_back(&pod("a")).unwrap();
        take_back(&pod("a")).unwrap();
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
        // The last pair is of no pod, so one is left.
        std::fs::write(full.join(FILE), all[1..].concat()).unwrap();
        let given = give(sandboxes.path(), &new, &PodUid::new("new"), &labelling());
        assert_eq!(given.unwrap(), "s0:c0,c1");
        take_back(&new).unwrap();
        std::fs::write(full.join(FILE), all.concat()).unwrap();
        let given = give(sandboxes.path(), &new, &PodUid::new("new"), &labelling());
        assert!(matches!(given, Err(SandboxError::NoLevel { .. })));
    }
}
