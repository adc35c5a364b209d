//! The node: configuration, manifests, other agents, the service.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Finding;
use super::runtime::same_mount_namespace;
use crate::config::{Config, ConfigError, RunFlags};
use limpet_cli::program_output::output_of;
use limpet_host::file_system::hides_changes;
use limpet_host::peer;
use limpet_node::OtherAgent;
use limpet_node::kernel_settings::{self, Deviation};
use limpet_server::settings::{AuthorizationMode, ServerSettings};

/// Settings that a systemd unit must not have, because they give the service its own mount namespace.
const PRIVATE: [&str; 9] = [
    "PrivateTmp",
    "PrivateMounts",
    "PrivateDevices",
    "ProtectSystem",
    "ProtectHome",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectControlGroups",
    "RootDirectory",
];

/// The file with which the unit in `deploy/` starts the agent. It is checked unless flags name another one.
const PACKAGED_CONFIG: &str = "/etc/limpet/config.yaml";

/// The configuration file in effect.
pub(super) fn config_file(flags: &RunFlags) -> Option<PathBuf> {
    let packaged = *flags == RunFlags::default() && Path::new(PACKAGED_CONFIG).exists();
    if packaged { Some(PACKAGED_CONFIG.into()) } else { flags.config.clone() }
}

/// The configuration in effect, and its findings. If it is invalid, the defaults are checked.
pub(super) fn configuration(flags: &RunFlags, socket: Option<PathBuf>) -> (Config, Vec<Finding>) {
    let flags = RunFlags { config: config_file(flags), socket, ..flags.clone() };
    match crate::config::load(&flags) {
        Ok((config, warnings)) => {
            let mut findings: Vec<Finding> = warnings
                .iter()
                .filter(|warning| warning.path != "staticPodPath")
                .map(|warning| Finding::degraded("configuration", warning.to_string(), ""))
                .collect();
            if findings.is_empty() {
                let from = flags.config.as_ref().map(|path| path.display().to_string());
                let text = from.unwrap_or_else(|| "defaults and flags; no --config given".to_owned());
                findings.push(Finding::ok("configuration", text));
            }
            (config, findings)
        }
        Err(ConfigError::Faults(faults)) => {
            let failed = |fault: &limpet_model::pod::Fault| Finding::failed("configuration", fault.to_string(), "");
            (Config::default(), faults.iter().map(failed).collect())
        }
        Err(error) => (Config::default(), vec![Finding::failed("configuration", error.to_string(), "")]),
    }
}

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let properties = PRIVATE.iter().chain(&["LoadState", "KillMode"]).map(|name| format!("--property={name}"));
    let arguments: Vec<String> =
        ["show".to_owned(), "limpet.service".to_owned()].into_iter().chain(properties).collect();
    let unit = match Path::new("/run/systemd/system").exists() {
        true => output_of("systemctl", &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await,
        false => None,
    };
    let mut findings = vec![
        manifests(config.sources.manifest_path.as_deref(), config.sources.manifest_url.is_some()),
        others(limpet_node::other_agent(&config.cgroups.root), config.node.ignore_other_agents),
    ];
    findings.extend(kernel(config));
    findings.push(api(&config.server));
    findings.extend(limpet_store::damaged(&config.database()).last().map(|path| damaged(path)));
    findings.extend(read_only(&config.root_dir));
    findings.extend(service(unit.as_deref().unwrap_or_default()));
    findings.extend(running(config));
    findings
}

/// What keeps limpet from starting.
fn kernel(config: &Config) -> Vec<Finding> {
    let swap = kernel_settings::forbidden_swap(&config.node.kernel);
    let swap = swap.map(|swap| {
        let text = format!("failSwapOn is true, and swap is in use: {swap}");
        Finding::failed("swap", text, "Turn it off, for example with swapoff -a, or set failSwapOn: false")
    });
    let remedy = "Set it with sysctl, or set protectKernelDefaults: false";
    let settings = kernel_settings::forbidden_settings(&config.node.kernel);
    let setting = |deviation: Deviation| Finding::failed("kernel settings", deviation.to_string(), remedy);
    swap.into_iter().chain(settings.into_iter().map(setting)).collect()
}

/// Where kubelet's API is served on the network, and who decides who may use it.
fn api(server: &ServerSettings) -> Finding {
    let Some(address) = server.api() else {
        return Finding::ok("kubelet's API", "not served on the network; root has it on limpet's socket");
    };
    let kinds = [
        (server.client_ca.is_some(), "certificates"),
        (server.takes_tokens(), "tokens"),
        (server.anonymous, "nothing at all"),
    ];
    let callers: Vec<&str> = kinds.into_iter().filter(|(taken, _)| *taken).map(|(_, kind)| kind).collect();
    let decision = match (server.mode, server.reviews) {
        (AuthorizationMode::AlwaysAllow, _) => "all of them may use every route",
        (AuthorizationMode::Webhook, true) => "the apiserver decides what they may use",
        (AuthorizationMode::Webhook, false) => "serverAllowedNames says who may use it",
    };
    Finding::ok("kubelet's API", format!("{address}, to callers with {}; {decision}", callers.join(" or ")))
}

fn manifests(path: Option<&Path>, url: bool) -> Finding {
    let Some(path) = path else {
        if url {
            return Finding::ok("manifests", "read from a URL; see limpet sources");
        }
        let remedy = "Set staticPodPath, or start with --pod-manifest-path";
        return Finding::degraded("manifests", "no directory is configured; no pods are read from files", remedy);
    };
    let place = path.display();
    let readable = if path.is_dir() { std::fs::read_dir(path).map(drop) } else { std::fs::File::open(path).map(drop) };
    match readable {
        Ok(()) => match hides_changes(path) {
            Some(system) => {
                let text = format!(
                    "{place} is on {system}: changes made elsewhere cause no events, and are found within 20 s"
                );
                Finding::degraded("manifests", text, "Put the manifests on a file system of this machine")
            }
            None => Finding::ok("manifests", place.to_string()),
        },
        Err(error) => Finding::degraded("manifests", format!("{place}: {error}"), "Create it; limpet waits for it"),
    }
}

/// A root directory that cannot be written.
fn read_only(root: &Path) -> Option<Finding> {
    // This is a query of the access, because the mount may be writable while its file system is not.
    let access = rustix::fs::access(root, rustix::fs::Access::WRITE_OK);
    (access == Err(rustix::io::Errno::ROFS)).then(|| {
        let text = format!(
            "the file system of {} is read-only: running pods stay, new ones cannot start, and nothing is saved",
            root.display()
        );
        let remedy = "Check the disk and its messages (dmesg), mount it read-write, then restart limpet";
        Finding::degraded("root directory", text, remedy)
    })
}

/// A database that was damaged and set aside.
fn damaged(path: &Path) -> Finding {
    let text = format!("was damaged and is set aside as {}; its intact records were salvaged", path.display());
    let remedy = "Check the disk. Once the pods are as they should be, remove the file: at its next start limpet then ends \
                  applied pods that it no longer knows";
    Finding::degraded("database", text, remedy)
}

fn others(other: Option<OtherAgent>, ignored: bool) -> Finding {
    match other {
        Some(other) if ignored => {
            let text = format!("{other}; ignoreOtherAgents is set, so both will run");
            Finding::degraded("other agents", text, "Make sure that each has its own containerd")
        }
        None => Finding::ok("other agents", "none runs here"),
        Some(other) => {
            let text = format!("{other}; two agents stop each other's pods");
            Finding::failed("other agents", text, "Stop it before limpet starts")
        }
    }
}

/// The state of limpet's systemd unit, if there is one.
fn service(properties: &str) -> Option<Finding> {
    let properties: BTreeMap<&str, &str> = properties.lines().filter_map(|line| line.split_once('=')).collect();
    if properties.get("LoadState") != Some(&"loaded") {
        return None;
    }
    let set = |name: &&&str| properties.get(**name).is_some_and(|value| !matches!(*value, "" | "no" | "false" | "/"));
    let private: Vec<&str> = PRIVATE.iter().filter(set).copied().collect();
    Some(if !private.is_empty() {
        let text = format!("the unit sets {}: containerd would not see the pods' mounts", private.join(", "));
        Finding::failed("service", text, "Remove them: systemctl edit limpet")
    } else if properties.get("KillMode").is_some_and(|mode| *mode != "process") {
        let text = format!("KillMode={} stops the pods with the agent", properties["KillMode"]);
        Finding::degraded("service", text, "Set KillMode=process: systemctl edit limpet")
    } else {
        Finding::ok("service", "limpet.service shares the host's mounts and leaves pods alone when it stops")
    })
}

/// A running agent must see the mounts that this command sees.
fn running(config: &Config) -> Option<Finding> {
    let socket = config.socket();
    // If no agent can be reached, there is nothing to compare.
    let pid = peer::pid(&socket).ok().flatten()?;
    let text = format!("limpet runs (pid {pid}), socket {}", socket.display());
    Some(match same_mount_namespace(pid) {
        Ok(false) => {
            let text = format!("{text}, in a mount namespace of its own");
            Finding::degraded("agent", text, "Start it where containerd sees its mounts")
        }
        Ok(true) | Err(_) => Finding::ok("agent", text),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn the_api_says_where_it_is_and_who_decides() {
        let mut server = ServerSettings::default();
        assert!(api(&server).text.starts_with("not served"));
        server.reviews = true;
        assert_eq!(api(&server).text, "0.0.0.0:10250, to callers with tokens; the apiserver decides what they may use");
        (server.reviews, server.client_ca) = (false, Some("/ca.crt".into()));
        assert_eq!(
            api(&server).text,
            "0.0.0.0:10250, to callers with certificates; serverAllowedNames says who may use it"
        );
    }

    #[test]
    fn other_agents_are_named() {
        assert_eq!(others(None, false).level, Level::Ok);
        let kubelet = others(Some(OtherAgent::Port { port: 10_250 }), false);
        assert!(kubelet.level == Level::Failed && kubelet.text.contains("10250"), "{kubelet:?}");
        assert_eq!(others(Some(OtherAgent::Port { port: 10_250 }), true).level, Level::Degraded);
    }

    #[test]
    fn the_unit_is_judged() {
        for (properties, level) in [
            ("LoadState=not-found\n", None),
            ("LoadState=loaded\nKillMode=process\nPrivateTmp=no\nProtectSystem=no\nRootDirectory=\n", Some(Level::Ok)),
            ("LoadState=loaded\nKillMode=control-group\n", Some(Level::Degraded)),
            ("LoadState=loaded\nKillMode=process\nProtectSystem=strict\n", Some(Level::Failed)),
        ] {
            assert_eq!(service(properties).map(|finding| finding.level), level, "{properties}");
        }
    }

    #[test]
    fn the_manifest_directory_is_checked() {
        assert_eq!(manifests(None, false).level, Level::Degraded);
        assert_eq!(manifests(None, true).level, Level::Ok);
        assert_eq!(manifests(Some(Path::new("/proc")), false).level, Level::Ok);
        assert_eq!(manifests(Some(Path::new("/nowhere/at/all")), false).level, Level::Degraded);
    }
}
