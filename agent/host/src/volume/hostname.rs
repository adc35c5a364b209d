//! A pod's hostname. Pure; the rules are kubelet's (`GeneratePodHostNameAndDomain`).

use super::VolumeError;
use limpet_model::pod::PodRecord;

/// The length of a DNS label, to which a pod's name is truncated.
const MAX_LABEL: usize = 63;

/// The kernel's limit for a hostname.
const MAX_KERNEL: usize = 64;

/// A pod's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodHostname {
    /// `spec.hostname`, or the pod's name.
    pub short: String,
    /// `<subdomain>.<namespace>.svc.<cluster domain>`; empty without `spec.subdomain`.
    pub domain: String,
    /// The name set in the pod's UTS namespace: the short one, or the full one with `setHostnameAsFQDN`.
    pub kernel: String,
}

/// The names of `pod` in a cluster with that domain. A `hostNetwork` pod has them too (in `/etc/hosts` of others),
/// but its kernel hostname is the host's.
///
/// # Errors
/// The full name of `setHostnameAsFQDN` is too long for the kernel.
pub fn pod_hostname(pod: &PodRecord, cluster_domain: &str) -> Result<PodHostname, VolumeError> {
    let spec = pod.spec();
    let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    if let Some(name) = given(&spec.hostname_override) {
        return Ok(PodHostname { short: name.clone(), domain: String::new(), kernel: name });
    }
    let mut short = given(&spec.hostname).unwrap_or_else(|| pod.key.name().to_owned());
    if short.len() > MAX_LABEL {
        short.truncate((0..=MAX_LABEL).rev().find(|&end| short.is_char_boundary(end)).unwrap_or(0));
        short.truncate(short.trim_end_matches(['-', '.']).len());
    }
    let domain = given(&spec.subdomain)
        .map(|subdomain| format!("{subdomain}.{}.svc.{cluster_domain}", pod.key.namespace()))
        .unwrap_or_default();
    let mut kernel = short.clone();
    if spec.set_hostname_as_fqdn.unwrap_or(false) && !domain.is_empty() {
        kernel = format!("{short}.{domain}");
        if kernel.len() > MAX_KERNEL {
            return Err(VolumeError::Hostname { length: kernel.len(), fqdn: kernel });
        }
    }
    Ok(PodHostname { short, domain, kernel })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::tests::record;
    use super::*;

    #[test]
    fn kubelets_names() {
        let long = "a".repeat(62) + "-b";
        let table = [
            (json!({}), ("web-node", "", "web-node")),
            (json!({"hostname": "h"}), ("h", "", "h")),
            (json!({"hostname": "h", "subdomain": "s"}), ("h", "s.default.svc.cluster.local", "h")),
            (
                json!({"subdomain": "s", "setHostnameAsFQDN": true}),
                ("web-node", "s.default.svc.cluster.local", "web-node.s.default.svc.cluster.local"),
            ),
            (json!({"setHostnameAsFQDN": true}), ("web-node", "", "web-node")),
            (
                json!({"hostname": "h", "subdomain": "s", "hostnameOverride": "o.example"}),
                ("o.example", "", "o.example"),
            ),
            (json!({"hostname": long}), (&long[..62], "", &long[..62])),
        ];
        for (spec, (short, domain, kernel)) in table {
            let hostname = pod_hostname(&record(spec.clone()), "cluster.local").unwrap();
            assert_eq!(
                (hostname.short.as_str(), hostname.domain.as_str(), hostname.kernel.as_str()),
                (short, domain, kernel),
                "{spec}"
            );
        }
    }

    #[test]
    fn a_full_name_too_long_for_the_kernel_is_an_error() {
        let spec = json!({"hostname": "h".repeat(40), "subdomain": "s", "setHostnameAsFQDN": true});
        let error = pod_hostname(&record(spec), "cluster.local").unwrap_err().to_string();
        assert!(error.contains("is too long (64 is the max, 68 characters requested)"), "{error}");
    }
}
