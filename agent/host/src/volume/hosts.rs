//! `/etc/hosts` in kubelet's format.
//!
//! A pod with its own network gets the well-known names, its addresses with its hostname, and its
//! `hostAliases`; one with `hostNetwork` gets the node's file and its aliases below, as it is at each start of one of its
//! containers. The file is the pod's, shared by its containers, mounted writable, and not given to a container that mounts
//! `/etc/hosts` itself.

use std::fmt::Write;
use std::path::Path;

use k8s_openapi::api::core::v1::HostAlias;

use super::hostname::PodHostname;
use super::{VolumeError, files, in_place};
use limpet_model::sandbox::PodAddresses;

/// The file's name in a pod's directory.
pub(super) const FILE: &str = "etc-hosts";

/// Writes the file of a pod with `hostNetwork` from the node's, which need not exist. As in kubelet, lines that a
/// container has added are lost.
pub(super) fn write_host_network(pod_dir: &Path, nodes: &Path, aliases: &[HostAlias]) -> Result<(), VolumeError> {
    let text = host_network(&files::read(nodes)?.unwrap_or_default(), aliases);
    in_place::write(&pod_dir.join(FILE), &text, false)
}

/// The file of a pod with its own network.
pub(super) fn own_network(addresses: &PodAddresses, hostname: &PodHostname, aliases: &[HostAlias]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    for ip in &addresses.ips {
        // Writing to a String cannot fail.
        let _ = match (hostname.short.as_str(), hostname.domain.as_str()) {
            (short, "") => writeln!(text, "{ip}\t{short}"),
            (short, domain) => writeln!(text, "{ip}\t{short}.{domain}\t{short}"),
        };
    }
    text + &entries(aliases)
}

/// The file of a pod with `hostNetwork`, from the node's own.
fn host_network(nodes_file: &str, aliases: &[HostAlias]) -> String {
    format!("# Kubernetes-managed hosts file (host network).\n{nodes_file}{}", entries(aliases))
}

fn entries(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(text, "{}\t{names}", alias.ip);
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn aliases() -> Vec<HostAlias> {
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        vec![
            HostAlias { ip: "10.0.0.9".to_owned(), hostnames: names(&["db", "db.local"]) },
            HostAlias { ip: "::9".to_owned(), hostnames: names(&["six"]) },
        ]
    }

    const HEAD: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
        ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
        fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
    const ALIASES: &str = "\n# Entries added by HostAliases.\n10.0.0.9\tdb\tdb.local\n::9\tsix\n";

    #[test]
    fn kubelets_file() {
        let name = |domain: &str| PodHostname { short: "web".into(), domain: domain.into(), kernel: "web".into() };
        let ips = |list: &[&str]| PodAddresses { ips: list.iter().map(|ip| ip.parse().unwrap()).collect() };
        let table = [
            (ips(&["10.1.0.5"]), name(""), vec![], format!("{HEAD}10.1.0.5\tweb\n")),
            (ips(&["10.1.0.5", "fd00::5"]), name(""), vec![], format!("{HEAD}10.1.0.5\tweb\nfd00::5\tweb\n")),
            (ips(&["10.1.0.5"]), name("s.ns.svc.c"), vec![], format!("{HEAD}10.1.0.5\tweb.s.ns.svc.c\tweb\n")),
            (ips(&["10.1.0.5"]), name(""), aliases(), format!("{HEAD}10.1.0.5\tweb\n{ALIASES}")),
        ];
        for (addresses, hostname, aliases, wanted) in table {
            assert_eq!(own_network(&addresses, &hostname, &aliases), wanted);
        }
    }

    #[test]
    fn the_nodes_file_with_aliases() {
        let node = "127.0.0.1 localhost\n10.0.0.1 node\n";
        let head = "# Kubernetes-managed hosts file (host network).\n";
        assert_eq!(host_network(node, &[]), format!("{head}{node}"));
        assert_eq!(host_network(node, &aliases()), format!("{head}{node}{ALIASES}"));
        assert_eq!(host_network("", &[]), head);
    }
}
