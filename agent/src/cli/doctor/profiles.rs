//! Security profiles that pods may name: seccomp files, AppArmor profiles, SELinux labels.

use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::config::Config;
use limpet_host::apparmor::{self, AppArmorError, DEFAULT_PROFILE};
use limpet_host::selinux::{self, ContextsError};
use limpet_model::selinux::ContainerContexts;

/// How many profiles are listed.
const MAX_NAMED_PROFILES: usize = 8;
/// How deep the seccomp directory is searched.
const MAX_SECCOMP_DEPTH: usize = 4;

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let directory = config.root_dir.join("seccomp");
    let mut names = Vec::new();
    list(&directory, "", MAX_SECCOMP_DEPTH, &mut names);
    names.sort();
    let loaded = apparmor::is_enabled().then(|| {
        apparmor::loaded().map(|mut names| {
            names.sort();
            names
        })
    });
    vec![
        seccomp(&directory, &names),
        app_armor(loaded, apparmor::parser().is_some()),
        labels(&find_labels(), selinux::is_enforcing()),
    ]
}

/// The files below `directory`, as `localhostProfile` names them.
fn list(directory: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 1 => list(&entry.path(), &format!("{name}/"), depth - 1, names),
            Ok(kind) if !kind.is_dir() => names.push(name),
            _ => {}
        }
    }
}

fn seccomp(directory: &Path, names: &[String]) -> Finding {
    let text = if names.is_empty() { "none".to_owned() } else { shown(names) };
    Finding::ok("seccomp profiles", format!("{text} in {}", directory.display()))
}

/// The first of the names, and how many more there are.
fn shown(names: &[String]) -> String {
    let (first, more) = names.split_at(names.len().min(MAX_NAMED_PROFILES));
    let first = first.join(", ");
    if more.is_empty() { first } else { format!("{first} and {} more", more.len()) }
}

/// `loaded` are the loaded profiles; `None` if there is no AppArmor.
fn app_armor(loaded: Option<Result<Vec<String>, AppArmorError>>, parser: bool) -> Finding {
    let name = "AppArmor";
    let remedy = "Install the package apparmor";
    let loaded = match loaded {
        None => return Finding::ok(name, "not enabled on this host; pods that name a profile are refused"),
        Some(Ok(loaded)) => loaded,
        Some(Err(error)) => {
            return Finding::degraded(name, format!("{error}; containers may run without a profile"), "");
        }
    };
    let there = if loaded.is_empty() { String::new() } else { format!("; loaded: {}", shown(&loaded)) };
    if loaded.iter().any(|profile| profile == DEFAULT_PROFILE) {
        Finding::ok(name, format!("containers get {DEFAULT_PROFILE}{there}"))
    } else if parser {
        Finding::ok(name, format!("{DEFAULT_PROFILE} is loaded when the first container needs it{there}"))
    } else {
        Finding::degraded(name, format!("{}; containers run without it{there}", AppArmorError::NoParser), remedy)
    }
}

/// SELinux on this host.
enum Labels {
    Off,
    /// It is on, with the labels of that file.
    Found {
        policy: String,
        file: PathBuf,
        contexts: Box<ContainerContexts>,
    },
    /// It is on, but its policy has no labels for containers.
    Missing(ContextsError),
}

fn find_labels() -> Labels {
    if !selinux::is_enabled() {
        return Labels::Off;
    }
    match selinux::contexts() {
        Ok((file, contexts)) => {
            let policy = selinux::policy().unwrap_or_else(|| "its".to_owned());
            Labels::Found { policy, file, contexts: Box::new(contexts) }
        }
        Err(error) => Labels::Missing(error),
    }
}

fn labels(state: &Labels, enforcing: bool) -> Finding {
    let name = "SELinux";
    let mode = if enforcing { "enforcing" } else { "permissive" };
    match state {
        Labels::Off => Finding::ok(name, "not enabled on this host; seLinuxOptions have no effect"),
        Labels::Found { policy, file, contexts } => {
            let ContainerContexts { process, file: files, .. } = &**contexts;
            let from = file.display();
            Finding::ok(
                name,
                format!("policy {policy}, {mode}: containers get {process}, their files {files} ({from})"),
            )
        }
        Labels::Missing(error) if enforcing => Finding::degraded(
            name,
            format!("{mode}, and {}: {error}", selinux::UNLABELLED),
            "Install the policy for containers (container-selinux), or set SELinux to permissive",
        ),
        Labels::Missing(error) => {
            Finding::ok(name, format!("{mode}; containers and volumes are not labelled: {error}"))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn seccomp_profiles_are_listed_as_pods_name_them() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("team/strict")).unwrap();
        for file in ["audit.json", "team/strict/web.json"] {
            fs::write(directory.path().join(file), "{}").unwrap();
        }
        let mut names = Vec::new();
        list(directory.path(), "", MAX_SECCOMP_DEPTH, &mut names);
        names.sort();
        assert_eq!(names, ["audit.json", "team/strict/web.json"]);
        let many: Vec<String> = (0..10).map(|number| format!("{number}.json")).collect();
        assert!(seccomp(Path::new("/p"), &many).text.ends_with("7.json and 2 more in /p"));
        assert_eq!(seccomp(Path::new("/p"), &[]).text, "none in /p");
    }

    #[test]
    fn security_modules_are_judged() {
        assert_eq!(app_armor(None, false).level, Level::Ok);
        let names = |names: &[&str]| Some(Ok(names.iter().map(|&name| name.to_owned()).collect()));
        let verdict = app_armor(names(&["camera", DEFAULT_PROFILE]), false);
        let text = "containers get cri-containerd.apparmor.d; loaded: camera, cri-containerd.apparmor.d";
        assert_eq!((verdict.level, verdict.text.as_str()), (Level::Ok, text));
        let later = app_armor(names(&["camera"]), true);
        assert!(later.level == Level::Ok && later.text.ends_with("needs it; loaded: camera"), "{later:?}");
        let without = app_armor(names(&[]), false);
        assert!(without.level == Level::Degraded && without.text.contains("no apparmor_parser"), "{without:?}");
        assert_eq!(labels(&Labels::Off, false).level, Level::Ok);
        let contexts = ContainerContexts::parse("process=u:r:container_t:s0\nfile=u:object_r:container_file_t:s0");
        let (policy, file) = ("default".to_owned(), PathBuf::from("/etc/selinux/c"));
        let state = Labels::Found { policy, file, contexts: Box::new(contexts.unwrap()) };
        let finding = labels(&state, true);
        let text = "policy default, enforcing: containers get u:r:container_t:s0, their files u:object_r:container_file_t:s0 (/etc/selinux/c)";
        assert_eq!((finding.level, finding.text.as_str()), (Level::Ok, text));
        let missing = Labels::Missing(ContextsError::NoPolicy);
        assert_eq!((labels(&missing, false).level, labels(&missing, true).level), (Level::Ok, Level::Degraded));
    }
}
