//! The pods' network: a CNI configuration, its plugins, and the host's resolver file.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Finding;
use crate::config::Config;
use limpet_host::network::{Network, NetworkStatus};

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = vec![cni(config)];
    if let Some(path) = &config.volumes.resolv_conf {
        findings.push(match fs::read_to_string(path) {
            Ok(text) => resolver(path, &text),
            Err(error) => {
                let remedy = "Set resolvConf; pods follow the file once it is there";
                Finding::degraded("resolver", format!("{}: {error}; pods cannot resolve names", path.display()), remedy)
            }
        });
    }
    findings
}

fn cni(config: &Config) -> Finding {
    // The network module checks the configuration; nothing is written until a pod is attached.
    let network = Network::new(config.network.clone(), config.root_dir.join("network"));
    match network.status() {
        NetworkStatus::NotReady { reason } => {
            let remedy = "Install one; pods with hostNetwork do not need it";
            Finding::failed("CNI", format!("{reason}; pods without hostNetwork wait"), remedy)
        }
        NetworkStatus::Ready { name } => {
            let types = chosen(&config.network.config_dir).map(|path| plugins(&path)).unwrap_or_default();
            binaries(&name, &types, &config.network.binary_dirs)
        }
    }
}

/// The configuration file in use: the first in byte order, as in libcni.
fn chosen(directory: &Path) -> Option<PathBuf> {
    let known = |path: &PathBuf| {
        matches!(path.extension().and_then(|extension| extension.to_str()), Some("conflist" | "conf" | "json"))
    };
    fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).filter(known).min()
}

/// The plugins that a configuration calls, including IPAM.
fn plugins(path: &Path) -> Vec<String> {
    let read: Option<Value> = fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let document = read.unwrap_or_default();
    let single = [document.clone()];
    let all = document["plugins"].as_array().map_or(&single[..], Vec::as_slice);
    let types = all.iter().flat_map(|plugin| [&plugin["type"], &plugin["ipam"]["type"]]);
    types.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn binaries(network: &str, types: &[String], directories: &[PathBuf]) -> Finding {
    let there = |name: &&String| directories.iter().any(|directory| directory.join(name).is_file());
    let missing: Vec<&str> = types.iter().filter(|name| !there(name)).map(String::as_str).collect();
    if missing.is_empty() {
        return Finding::ok("CNI", format!("network {network}: {}", types.join(" ")));
    }
    let places: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
    let text = format!("network {network} calls {}, which is not in {}", missing.join(" "), places.join(" or "));
    Finding::failed("CNI", text, "Install the plugins, or set cniBinaryDirectories")
}

fn resolver(path: &Path, text: &str) -> Finding {
    let servers: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")).map(str::trim).collect();
    let file = path.display();
    if servers.is_empty() {
        let text = format!("{file} has no name server; pods cannot resolve names");
        return Finding::degraded("resolver", text, "Pods follow the file once it does");
    }
    // systemd-resolved's address is the host's own loopback, not the pods'.
    if servers.iter().all(|server| server.starts_with("127.") || *server == "::1") {
        let text =
            format!("{file} names only {}, which pods with a network of their own cannot reach", servers.join(" "));
        return Finding::degraded("resolver", text, "Set resolvConf, for example: /run/systemd/resolve/resolv.conf");
    }
    Finding::ok("resolver", format!("{} in {file}", servers.join(" ")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_host::network::CniSettings;

    use super::super::Level;
    use super::*;

    #[test]
    fn the_network_is_judged() {
        let path = Path::new("/etc/resolv.conf");
        for (text, level) in [
            ("nameserver 192.0.2.1\nnameserver 127.0.0.53\n", Level::Ok),
            ("nameserver 127.0.0.53\n", Level::Degraded),
            ("# empty\n", Level::Degraded),
        ] {
            assert_eq!(resolver(path, text).level, level, "{text}");
        }

        let dir = std::env::temp_dir().join(format!("limpet-doctor-cni-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let config = Config {
            network: CniSettings { config_dir: dir.clone(), binary_dirs: vec![dir.clone()] },
            ..Config::default()
        };
        assert_eq!(cni(&config).level, Level::Failed);
        let conflist =
            r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}"#;
        fs::write(dir.join("10-pods.conflist"), conflist).unwrap();
        fs::write(dir.join("bridge"), "").unwrap();
        let missing = cni(&config);
        assert!(missing.level == Level::Failed && missing.text.contains("calls host-local"), "{missing:?}");
        fs::write(dir.join("host-local"), "").unwrap();
        assert_eq!(cni(&config), Finding::ok("CNI", "network pods: bridge host-local"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
