//! The claims that a StatefulSet makes of its templates, as objects of its source.

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_model::object::local_claim::LocalClaim;
use limpet_model::object::workload::WorkloadSpec;
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord};

use crate::memory::Memory;
use crate::pods::set_pod_name;

/// The claims of a workload by key. Those that are as in `known` are taken from there.
pub(crate) fn records(
    owner: &ObjectRecord,
    memory: &Memory,
    known: &BTreeMap<ObjectKey, Arc<ObjectRecord>>,
) -> BTreeMap<ObjectKey, Arc<ObjectRecord>> {
    let Some(WorkloadSpec::StatefulSet(set)) = owner.workload.as_ref().map(|workload| &workload.spec) else {
        return BTreeMap::new();
    };
    let mut records = BTreeMap::new();
    for ordinal in &memory.claims {
        let pod = set_pod_name(&owner.key, *ordinal);
        let ends_with_pod = set.claims_end_with_replica && !set.is_replica(*ordinal);
        let retained = !set.claims_end_with_set && !ends_with_pod;
        for template in &set.claims {
            let (kind, namespace) = (ObjectKind::PersistentVolumeClaim, Arc::clone(&owner.key.namespace));
            let key = ObjectKey::new(kind, namespace, template.claim_name(&pod));
            let Some(claim) = LocalClaim::of_template(&template.claim, &key, retained) else { continue };
            let record = ObjectRecord::of_claim((key.clone(), claim), &owner.origin);
            let known = known.get(&key).filter(|known| ***known == record);
            records.insert(key, known.cloned().unwrap_or_else(|| Arc::new(record)));
        }
    }
    records
}
