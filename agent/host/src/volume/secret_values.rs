//! The values of the Secret that a volume's target or driver is given.

use std::collections::BTreeMap;

use limpet_model::object::{ObjectKind, PodObjects, SecretBytes};

/// The values of a Secret; or its name if there is none, which matters only where the volume is still to be mounted.
pub(super) type SecretValues = Result<BTreeMap<String, SecretBytes>, String>;

/// The values of the Secret of that name, for the volume's target or driver.
pub(super) fn secret_values(name: Option<&str>, objects: &PodObjects) -> SecretValues {
    let Some(name) = name else { return Ok(BTreeMap::new()) };
    let secret = objects.get(ObjectKind::Secret, name).ok_or_else(|| name.to_owned())?;
    Ok(secret.data.iter().map(|(key, entry)| (key.clone(), entry.bytes.clone())).collect())
}
