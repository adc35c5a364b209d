//! Volumes of CSI drivers as pods use them, and kubelet's names for them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{CSIVolumeSource, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::hex::hex;
use crate::pod::{PodRecord, is_dns_subdomain};

/// The longest handle of a volume, in bytes.
const MAX_HANDLE: usize = 4096;
/// A bound on the tokens that a driver gets.
const MAX_TOKENS: usize = 32;
/// The attribute of a volume, or the value of its Secret, with the tokens.
pub const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
/// The mode of a volume that is removed with its pod.
const EPHEMERAL: &str = "Ephemeral";
/// The mode of all other volumes.
const PERSISTENT: &str = "Persistent";

/// The mode of a volume that containers get as a device.
pub(super) const BLOCK: &str = "Block";

/// When a volume's files are given to the pod's `fsGroup`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FsGroupPolicy {
    /// If the volume has a file system type and only one node at a time writes to it.
    #[default]
    ReadWriteOnceWithFSType,
    File,
    None,
}

/// A driver's settings in the cluster: its CSIDriver object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverSettings {
    /// Whether volumes are attached to the node first, by a VolumeAttachment.
    pub attach: bool,
    /// Whether the driver gets information about the pod.
    pub pod_info: bool,
    /// `fsGroupPolicy`.
    pub fs_group: FsGroupPolicy,
    /// `tokenRequests`: the tokens of the pod's service account that the driver gets.
    #[serde(default)]
    pub tokens: Vec<DriverToken>,
    /// `serviceAccountTokenInSecrets`: whether it gets them among the values of the Secret.
    #[serde(default)]
    pub tokens_in_secrets: bool,
    /// `requiresRepublish`: whether it is called periodically, because it may have something new for the volume.
    #[serde(default)]
    pub republish: bool,
}

/// A token that a driver requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverToken {
    /// Whom it is for; empty for the apiserver.
    pub audience: String,
    /// Its requested lifetime in seconds; `None` for the apiserver's default.
    pub lifetime: Option<i64>,
}

impl Default for DriverSettings {
    /// The settings of a driver without a CSIDriver object.
    fn default() -> Self {
        Self {
            attach: true,
            pod_info: false,
            fs_group: FsGroupPolicy::default(),
            tokens: Vec::new(),
            tokens_in_secrets: false,
            republish: false,
        }
    }
}

impl DriverSettings {
    /// The settings of the driver `name` for a volume, which is removed with its pod if `ephemeral`.
    ///
    /// # Errors
    ///
    /// The driver has no such volumes, or requests too much; a message.
    pub fn for_volume(name: &str, driver: Option<&CSIDriver>, ephemeral: bool) -> Result<Self, String> {
        let mode = if ephemeral { EPHEMERAL } else { PERSISTENT };
        let Some(driver) = driver else {
            return match ephemeral {
                true => Err(format!("volume mode \"{mode}\" not supported by driver {name} (no CSIDriver object)")),
                false => Ok(Self::default()),
            };
        };
        let spec = &driver.spec;
        let modes = spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
        // An apiserver fills the list, so an empty one means the default mode.
        let has = if modes.is_empty() { !ephemeral } else { modes.iter().any(|listed| listed == mode) };
        if !has {
            return Err(format!("volume mode \"{mode}\" not supported by driver {name} (only supports {modes:?})"));
        }
        let requests = spec.token_requests.as_deref().unwrap_or_default();
        if requests.len() > MAX_TOKENS {
            return Err(format!(
                "CSIDriver {name} has {} tokenRequests; at most {MAX_TOKENS} are possible",
                requests.len()
            ));
        }
        let token = |request: &TokenRequest| DriverToken {
            audience: request.audience.clone(),
            lifetime: request.expiration_seconds,
        };
        let fs_group = match spec.fs_group_policy.as_deref().unwrap_or_default() {
            "File" => FsGroupPolicy::File,
            "None" => FsGroupPolicy::None,
            _ => FsGroupPolicy::ReadWriteOnceWithFSType,
        };
        let attach = !ephemeral && spec.attach_required.unwrap_or(true);
        Ok(Self {
            attach,
            pod_info: spec.pod_info_on_mount == Some(true),
            fs_group,
            tokens: requests.iter().map(token).collect(),
            tokens_in_secrets: spec.service_account_token_in_secrets == Some(true),
            republish: spec.requires_republish == Some(true),
        })
    }
}

/// A volume of a CSI driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsiVolume {
    /// The PersistentVolume's name, or the name in the pod of a volume that is removed with it.
    pub name: String,
    pub driver: String,
    /// The volume's name for the driver.
    pub handle: String,
    /// Whether it is removed with its pod.
    pub ephemeral: bool,
    /// Whether containers get it as a device (`volumeMode: Block`).
    #[serde(default)]
    pub block: bool,
    /// The type of file system; may be empty.
    pub fs_type: String,
    /// `volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// `accessModes`.
    pub access_modes: Vec<String>,
    /// `mountOptions`.
    pub mount_options: Vec<String>,
    pub read_only: bool,
    pub settings: DriverSettings,
    /// What the driver's controller reported when it attached the volume.
    pub publish_context: BTreeMap<String, String>,
}

impl CsiVolume {
    /// The volume of the PersistentVolume of that name; `None` if that is of another kind.
    ///
    /// # Errors
    ///
    /// The driver cannot provide it; a message.
    pub fn persistent(
        name: &str,
        spec: &PersistentVolumeSpec,
        driver: Option<&CSIDriver>,
    ) -> Option<Result<Self, String>> {
        let source = spec.csi.as_ref()?;
        let volume = || -> Result<Self, String> {
            let settings = DriverSettings::for_volume(&source.driver, driver, false)?;
            check(name, &source.driver, &source.volume_handle)?;
            Ok(Self {
                name: name.to_owned(),
                driver: source.driver.clone(),
                handle: source.volume_handle.clone(),
                ephemeral: false,
                block: spec.volume_mode.as_deref() == Some(BLOCK),
                fs_type: source.fs_type.clone().unwrap_or_default(),
                attributes: source.volume_attributes.clone().unwrap_or_default(),
                access_modes: spec.access_modes.clone().unwrap_or_default(),
                mount_options: spec.mount_options.clone().unwrap_or_default(),
                read_only: source.read_only == Some(true),
                settings,
                publish_context: BTreeMap::new(),
            })
        };
        Some(volume().map_err(|why| format!("PV {name}: {why}")))
    }

    /// The volume `name` that the pod itself defines.
    ///
    /// # Errors
    ///
    /// The driver does not have such volumes; a message.
    pub fn inline(
        pod: &PodRecord,
        name: &str,
        source: &CSIVolumeSource,
        driver: Option<&CSIDriver>,
    ) -> Result<Self, String> {
        let settings = DriverSettings::for_volume(&source.driver, driver, true)?;
        let handle = format!("csi-{}", sha256(&format!("{}{name}", pod.uid)));
        check(name, &source.driver, &handle)?;
        Ok(Self {
            name: name.to_owned(),
            driver: source.driver.clone(),
            handle,
            ephemeral: true,
            block: false,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            access_modes: Vec::new(),
            mount_options: Vec::new(),
            read_only: source.read_only == Some(true),
            settings,
            publish_context: BTreeMap::new(),
        })
    }

    /// The name of the VolumeAttachment with the state of its attachment to the node.
    pub fn attachment(&self, node: &str) -> String {
        format!("csi-{}", sha256(&format!("{}{}{node}", self.handle, self.driver)))
    }

    /// Its name in the Node's status.
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// The attributes that its driver gets for the pod.
    pub fn attributes_for(&self, pod: &PodRecord) -> BTreeMap<String, String> {
        let mut attributes = self.attributes.clone();
        if self.settings.pod_info {
            let account = pod.spec().service_account_name.clone().unwrap_or_default();
            attributes.extend(
                [
                    ("pod.name", pod.key.name().to_owned()),
                    ("pod.namespace", pod.key.namespace().to_owned()),
                    ("pod.uid", pod.uid.to_string()),
                    ("serviceAccount.name", account),
                    ("ephemeral", self.ephemeral.to_string()),
                ]
                .map(|(name, value)| (format!("csi.storage.k8s.io/{name}"), value)),
            );
        }
        attributes
    }

    /// Whether the node gives its files to the pod's `fsGroup`, by kubelet's rule.
    pub fn takes_fs_group(&self, read_only: bool) -> bool {
        let of_one_node = || {
            self.ephemeral || self.access_modes.iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod")
        };
        match self.settings.fs_group {
            _ if read_only || self.block => false,
            FsGroupPolicy::None => false,
            FsGroupPolicy::File => true,
            FsGroupPolicy::ReadWriteOnceWithFSType => !self.fs_type.is_empty() && of_one_node(),
        }
    }
}

/// A volume's name in the Node's status (`volumesInUse`, `volumesAttached`).
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The directory of a staged volume, below that of its driver.
pub fn staging_directory(handle: &str) -> String {
    sha256(handle)
}

/// Refuses names that cannot be a directory, or are too long for a request.
pub(super) fn check(name: &str, driver: &str, handle: &str) -> Result<(), String> {
    if !is_dns_subdomain(name) {
        return Err(format!("{name:?} is not the name of a volume"));
    }
    let plain = driver.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    if driver.is_empty() || driver.starts_with('.') || !plain {
        return Err(format!("{driver:?} is not the name of a CSI driver"));
    }
    if handle.is_empty() || handle.len() > MAX_HANDLE {
        return Err(format!("its volumeHandle has {} bytes; it must have 1 to {MAX_HANDLE}", handle.len()));
    }
    Ok(())
}

fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn driver(spec: Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    }

    fn volume(change: Value, driver: Option<&CSIDriver>) -> Result<CsiVolume, String> {
        let mut spec =
            json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4"}});
        for (field, value) in change.as_object().unwrap() {
            spec[field] = value.clone();
        }
        CsiVolume::persistent("pv", &serde_json::from_value(spec).unwrap(), driver).unwrap()
    }

    #[test]
    fn names_are_kubelets() {
        let volume = volume(json!({}), None).unwrap();
        // The SHA-256 of "hdn", and of "h".
        assert_eq!(volume.attachment("n"), format!("csi-{}", sha256("hdn")));
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d^h");
        assert_eq!(staging_directory("h"), "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123");
    }

    #[test]
    fn a_driver_is_what_its_object_says() {
        let settings_of =
            |spec: Value, ephemeral: bool| DriverSettings::for_volume("d", Some(&driver(spec)), ephemeral);
        assert_eq!(DriverSettings::for_volume("d", None, false), Ok(DriverSettings::default()));
        let none = DriverSettings::for_volume("d", None, true).unwrap_err();
        assert_eq!(none, "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)");
        let both = json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"], "attachRequired": true, "podInfoOnMount": true,
            "fsGroupPolicy": "File"});
        let settings = |attach| DriverSettings {
            attach,
            pod_info: true,
            fs_group: FsGroupPolicy::File,
            ..DriverSettings::default()
        };
        assert_eq!(settings_of(both.clone(), false), Ok(settings(true)));
        assert_eq!(settings_of(both, true), Ok(settings(false)));
        let persistent = json!({"volumeLifecycleModes": ["Persistent"], "attachRequired": false});
        assert!(!settings_of(persistent.clone(), false).unwrap().attach);
        assert!(settings_of(persistent, true).unwrap_err().contains("(only supports [\"Persistent\"])"));
        let wants = json!({"tokenRequests": [{"audience": ""}, {"audience": "a", "expirationSeconds": 600}],
            "requiresRepublish": true, "serviceAccountTokenInSecrets": true});
        let settings = settings_of(wants, false).unwrap();
        assert!(settings.republish && settings.tokens_in_secrets);
        let token = |audience: &str, lifetime| DriverToken { audience: audience.to_owned(), lifetime };
        assert_eq!(settings.tokens, [token("", None), token("a", Some(600))]);
        let many = json!({"tokenRequests": vec![json!({"audience": "a"}); 33]});
        assert!(settings_of(many, false).unwrap_err().contains("33 tokenRequests"));
        // As an earlier agent has stored it.
        let kept = r#"{"attach":true,"pod_info":false,"fs_group":"ReadWriteOnceWithFSType"}"#;
        assert_eq!(serde_json::from_str::<DriverSettings>(kept).unwrap(), DriverSettings::default());
    }

    #[test]
    fn the_group_of_a_pod_owns_files_by_the_drivers_policy() {
        let with = |policy: &str| driver(json!({"fsGroupPolicy": policy}));
        for (change, policy, read_only, owns) in [
            (json!({}), "ReadWriteOnceWithFSType", false, true),
            (json!({}), "ReadWriteOnceWithFSType", true, false),
            (json!({"accessModes": ["ReadWriteMany"]}), "ReadWriteOnceWithFSType", false, false),
            (json!({"accessModes": ["ReadWriteMany"]}), "File", false, true),
            (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "ReadWriteOnceWithFSType", false, false),
            (json!({}), "None", false, false),
        ] {
            let volume = volume(change, Some(&with(policy))).unwrap();
            assert_eq!(volume.takes_fs_group(read_only), owns, "{volume:?}");
        }
    }

    #[test]
    fn a_volume_without_a_usable_name_is_refused() {
        for (name, handle) in [("../etc", "h"), ("", "h"), ("d", "")] {
            let csi = json!({"csi": {"driver": name, "volumeHandle": handle}});
            assert!(volume(csi, None).unwrap_err().starts_with("PV pv: "), "{name:?} {handle:?}");
        }
        let spec: PersistentVolumeSpec =
            serde_json::from_value(json!({"csi": {"driver": "d", "volumeHandle": "h"}})).unwrap();
        for name in ["..", "../../etc", "/etc", ""] {
            assert!(CsiVolume::persistent(name, &spec, None).unwrap().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_driver_gets_the_pod_where_it_requires_it() {
        let pod = crate::fixtures::record_of_spec(json!({"containers": [], "serviceAccountName": "robot"}));
        let pod_context = |pod_info: bool| {
            volume(json!({}), Some(&driver(json!({"podInfoOnMount": pod_info})))).unwrap().attributes_for(&pod)
        };
        assert!(pod_context(false).is_empty());
        assert_eq!(pod_context(true)["csi.storage.k8s.io/pod.namespace"], "shop");
        assert_eq!(pod_context(true)["csi.storage.k8s.io/ephemeral"], "false");
    }
}
