//! Path resolution step by step: each directory passed and the name looked up in it, symlinks expanded.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

/// The kernel's limit of symlinks in one path (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// One name looked up in one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrailStep {
    /// The directory, free of symlinks.
    pub(super) directory: PathBuf,
    /// The name looked up.
    pub(super) name: OsString,
    /// The name is a symlink.
    pub(super) link: bool,
    /// The name is a directory: resolution can continue.
    pub(super) directory_follows: bool,
}

/// All steps of a path, as far as it resolves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trail {
    pub(super) steps: Vec<TrailStep>,
    /// The directory at the end, free of symlinks; `None` if the path resolves to nothing or to something else.
    pub(super) end: Option<PathBuf>,
}

impl Trail {
    /// Whether no symlink is on the way.
    pub(super) fn is_straight(&self) -> bool {
        self.steps.iter().all(|step| !step.link)
    }
}

/// Resolves an absolute `path`.
pub(super) fn resolve(path: &Path) -> Trail {
    walk(PathBuf::from("/"), path)
}

/// Resolves the file `name` of `directory`, beginning in it.
pub(super) fn from(directory: &Path, name: &OsStr) -> Trail {
    walk(directory.canonicalize().unwrap_or_else(|_| directory.to_owned()), Path::new(name))
}

fn walk(start: PathBuf, path: &Path) -> Trail {
    let mut here = start;
    let mut steps = Vec::new();
    let mut left: VecDeque<OsString> = parts(path).collect();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == "/" {
            here = PathBuf::from("/");
            continue;
        }
        if name == ".." {
            here.pop();
            continue;
        }
        let there = here.join(&name);
        let target = there.read_link().ok();
        let directory_follows = target.is_none() && there.is_dir();
        steps.push(TrailStep { directory: here.clone(), name, link: target.is_some(), directory_follows });
        match target {
            Some(target) if links < MAX_LINKS => {
                links += 1;
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(part);
                }
            }
            None if directory_follows => here = there,
            _ => return Trail { steps, end: None },
        }
    }
    Trail { steps, end: Some(here) }
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::RootDir => Some("/".into()),
        Component::ParentDir => Some("..".into()),
        Component::Normal(name) => Some(name.to_owned()),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(trail: &Trail, root: &Path) -> Vec<String> {
        let inside = trail.steps.iter().filter_map(|step| {
            let directory = step.directory.strip_prefix(root).ok()?;
            Some(format!("{}{}", directory.join(&step.name).display(), if step.link { "@" } else { "" }))
        });
        inside.collect()
    }

    #[test]
    fn every_symlink_on_the_path_is_a_step() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("real/..v1")).unwrap();
        std::fs::write(root.join("real/..v1/a.yaml"), "").unwrap();
        symlink("..v1", root.join("real/..data")).unwrap();
        symlink("..data/a.yaml", root.join("real/a.yaml")).unwrap();
        symlink("real", root.join("manifests")).unwrap();

        let directory = resolve(&root.join("manifests"));
        assert_eq!(directory.end, Some(root.join("real")));
        assert_eq!(names(&directory, &root), ["manifests@", "real"]);

        let file = from(&root.join("manifests"), OsStr::new("a.yaml"));
        assert_eq!(names(&file, &root), ["real/a.yaml@", "real/..data@", "real/..v1", "real/..v1/a.yaml"]);
    }

    #[test]
    fn a_symlink_loop_and_a_missing_name_resolve_to_nothing() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(resolve(&root.join("a")).end, None);
        let missing = resolve(&root.join("x/y/z"));
        assert_eq!((missing.end.clone(), names(&missing, &root)), (None, vec!["x".to_owned()]));
    }
}
