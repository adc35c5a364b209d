//! Validation of the pod's volumes: each has a name and one source.

mod claim;
mod device;
mod file;
mod projected;
mod remote;

pub(super) use claim::claim_spec;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, Volume};

use crate::pod::name::is_dns_subdomain;
use crate::pod::validate::field::{At, Faults, items};

/// Maximum length in bytes of a volume's name and its portal, which form the name of an iSCSI interface.
const MAX_ISCSI_NAME: usize = 64;

/// Validates the volumes; returns the valid ones by name. `pod_name` is the name as authored, which is part of the
/// names of ephemeral claims.
pub(super) fn volumes<'a>(
    spec: &'a PodSpec,
    pod_name: &str,
    at: &At<'_>,
    faults: &mut Faults,
) -> BTreeMap<&'a str, &'a Volume> {
    let mut good = BTreeMap::new();
    for (index, volume) in items(&spec.volumes) {
        let item = at.index(index);
        let before = faults.error_count();
        source(&item, volume, faults);
        faults.required_dns_label(&item.field("name"), &volume.name);
        if good.contains_key(volume.name.as_str()) {
            faults.duplicate(&item.field("name"), &volume.name);
        }
        if volume.ephemeral.is_some() && !volume.name.is_empty() {
            let claim = format!("{pod_name}-{}", volume.name);
            if !is_dns_subdomain(&claim) {
                faults.invalid(
                    &item.field("name"),
                    &volume.name,
                    &format!("PVC name {claim:?}: must be a DNS subdomain"),
                );
            }
        }
        if faults.error_count() == before {
            good.insert(volume.name.as_str(), volume);
        }
    }
    let ephemeral = spec.volumes.iter().flatten().filter(|volume| volume.ephemeral.is_some());
    let made: BTreeSet<String> = ephemeral.map(|volume| format!("{pod_name}-{}", volume.name)).collect();
    for (index, volume) in items(&spec.volumes) {
        let Some(claim) = &volume.persistent_volume_claim else { continue };
        if made.contains(&claim.claim_name) {
            let item = at.index(index);
            let at = item.field("persistentVolumeClaim");
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            faults.invalid(&at.field("claimName"), &claim.claim_name, detail);
        }
    }
    good
}

/// Validates the only source of a volume; a second one is rejected unread.
struct Sources<'a> {
    at: &'a At<'a>,
    count: usize,
    faults: &'a mut Faults,
}

impl Sources<'_> {
    fn check<T>(&mut self, field: &str, source: &Option<T>, validate: impl FnOnce(&At<'_>, &T, &mut Faults)) {
        let Some(source) = source else { return };
        self.count += 1;
        let at = self.at.field(field);
        match self.count {
            1 => validate(&at, source, self.faults),
            _ => self.faults.forbidden(&at, "may not specify more than 1 volume type"),
        }
    }
}

fn source(at: &At<'_>, volume: &Volume, faults: &mut Faults) {
    let mut sources = Sources { at, count: 0, faults };
    sources.check("emptyDir", &volume.empty_dir, file::empty_dir);
    sources.check("hostPath", &volume.host_path, file::host_path);
    sources.check("gitRepo", &volume.git_repo, file::git_repo);
    sources.check("gcePersistentDisk", &volume.gce_persistent_disk, device::gce_persistent_disk);
    sources.check("awsElasticBlockStore", &volume.aws_elastic_block_store, device::aws_elastic_block_store);
    sources.check("secret", &volume.secret, file::secret);
    sources.check("nfs", &volume.nfs, remote::nfs);
    sources.check("iscsi", &volume.iscsi, device::iscsi);
    sources.check("glusterfs", &volume.glusterfs, remote::glusterfs);
    sources.check("flocker", &volume.flocker, remote::flocker);
    sources.check("persistentVolumeClaim", &volume.persistent_volume_claim, claim::persistent);
    sources.check("rbd", &volume.rbd, device::rbd);
    sources.check("cinder", &volume.cinder, device::cinder);
    sources.check("cephfs", &volume.cephfs, remote::cephfs);
    sources.check("quobyte", &volume.quobyte, remote::quobyte);
    sources.check("downwardAPI", &volume.downward_api, file::downward_api);
    sources.check("fc", &volume.fc, device::fc);
    sources.check("flexVolume", &volume.flex_volume, remote::flex);
    sources.check("configMap", &volume.config_map, file::config_map);
    sources.check("azureFile", &volume.azure_file, remote::azure_file);
    sources.check("vsphereVolume", &volume.vsphere_volume, device::vsphere);
    sources.check("photonPersistentDisk", &volume.photon_persistent_disk, device::photon);
    sources.check("portworxVolume", &volume.portworx_volume, remote::portworx);
    sources.check("azureDisk", &volume.azure_disk, device::azure_disk);
    sources.check("storageos", &volume.storageos, remote::storage_os);
    sources.check("projected", &volume.projected, projected::projected);
    sources.check("scaleIO", &volume.scale_io, remote::scale_io);
    sources.check("csi", &volume.csi, remote::csi);
    sources.check("ephemeral", &volume.ephemeral, claim::ephemeral);
    sources.check("image", &volume.image, file::image);
    if sources.count == 0 {
        faults.required(at, "must specify a volume type");
    }
    iscsi_interface_name(at, volume, faults);
}

/// iscsid names an interface by the volume and the portal if an initiator is specified.
fn iscsi_interface_name(at: &At<'_>, volume: &Volume, faults: &mut Faults) {
    let named = volume.iscsi.as_ref().filter(|iscsi| iscsi.initiator_name.is_some());
    if named.is_some_and(|iscsi| volume.name.len() + 1 + iscsi.target_portal.len() > MAX_ISCSI_NAME) {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
            iscsi.initiatorName is specified.";
        faults.invalid(&at.field("name"), &volume.name, detail);
    }
}
