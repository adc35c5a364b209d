//! kubelet's file `cpu_manager_state`, which keeps assignments of processors over restarts. kubelet and limpet read
//! each other's.
//!
//! kubelet 1.37 writes its fourth form, whose content is a text with its own checksum, and beside it the second form
//! for older kubelets. All forms from the second on are read. A checksum is the 32-bit FNV-1a of what Go's spew
//! prints of the value.

use std::collections::BTreeMap;

use limpet_model::cpu_set::CpuSet;
use serde::{Deserialize, Serialize};

use super::CpuAssignments;

/// Its name in the root directory.
pub const FILE: &str = "cpu_manager_state";
/// How many bytes are read. A machine of 4,096 processors with as many containers needs less.
pub const MAX_SIZE: u64 = 4 << 20;

type Entries = BTreeMap<String, BTreeMap<String, String>>;

/// Why a file cannot be used, in kubelet's words.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("could not load v4 checkpoint: failed to deserialize cpu manager checkpoint data: {0}")]
    Data(#[source] serde_json::Error),
    #[error("failed to deserialize cpu manager checkpoint: {0}")]
    Json(#[source] serde_json::Error),
    #[error("checkpoint is corrupted")]
    Corrupted,
    #[error("configured policy {configured:?} differs from state checkpoint policy {kept:?}")]
    OtherPolicy { configured: String, kept: String },
    #[error("could not parse default CPU set {text:?}: {why}")]
    Shared { text: String, why: String },
    #[error("could not parse cpuset {text:?} for container {container:?} in pod {pod:?}: {why}")]
    Exclusive { text: String, container: String, pod: String, why: String },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    #[serde(default)]
    policy_name: String,
    // Go ignores the case of keys.
    #[serde(rename = "defaultCpuSet", alias = "defaultCPUSet", default)]
    shared: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: Entries,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(flatten)]
    content: Content,
    /// Only in the third form.
    #[serde(default, skip_serializing)]
    pod_entries: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    checksum: u64,
    #[serde(default)]
    data: String,
    #[serde(default)]
    data_checksum: u64,
}

/// The file's content, for the policy of that name.
pub fn write(policy: &str, assignments: &CpuAssignments) -> Vec<u8> {
    let texts = |containers: &BTreeMap<String, CpuSet>| {
        containers.iter().map(|(container, cpus)| (container.clone(), cpus.to_string())).collect()
    };
    let content = Content {
        policy_name: policy.to_owned(),
        shared: assignments.shared.to_string(),
        entries: assignments.exclusive.iter().map(|(pod, containers)| (pod.clone(), texts(containers))).collect(),
    };
    // Maps of texts can always be serialised.
    let data = serde_json::to_string(&content).unwrap_or_default();
    let (checksum, data_checksum) = (fnv(&printed("CPUManagerCheckpoint", &content, "")), of_data(&data));
    let file = File { content, pod_entries: BTreeMap::new(), checksum, data, data_checksum };
    serde_json::to_vec(&file).unwrap_or_default()
}

/// The assignments in a file, if it was written by the policy of that name.
///
/// # Errors
///
/// It is damaged, or of another policy.
pub fn read(bytes: &[u8], policy: &str) -> Result<CpuAssignments, CheckpointError> {
    let content = content(bytes)?;
    if content.policy_name != policy {
        return Err(CheckpointError::OtherPolicy { configured: policy.to_owned(), kept: content.policy_name });
    }
    let shared =
        CpuSet::parse(&content.shared).map_err(|why| CheckpointError::Shared { text: content.shared.clone(), why })?;
    let mut exclusive: BTreeMap<String, BTreeMap<String, CpuSet>> = BTreeMap::new();
    for (pod, containers) in content.entries {
        for (container, text) in containers {
            let cpus = CpuSet::parse(&text).map_err(|why| CheckpointError::Exclusive {
                text: text.clone(),
                container: container.clone(),
                pod: pod.clone(),
                why,
            })?;
            exclusive.entry(pod.clone()).or_default().insert(container, cpus);
        }
    }
    Ok(CpuAssignments { shared, exclusive })
}

fn content(bytes: &[u8]) -> Result<Content, CheckpointError> {
    let file: File = serde_json::from_slice(bytes).map_err(CheckpointError::Json)?;
    if !file.data.is_empty() || file.data_checksum != 0 {
        let content = serde_json::from_str(&file.data).map_err(CheckpointError::Data)?;
        let is_intact = of_data(&file.data) == file.data_checksum;
        return if is_intact { Ok(content) } else { Err(CheckpointError::Corrupted) };
    }
    if file.checksum != 0 && !is_earlier(&file) {
        return Err(CheckpointError::Corrupted);
    }
    Ok(file.content)
}

/// Whether the checksum is that of an earlier form, under each name that the form has had. Pods with their own
/// processors are not considered, because their feature gate is off.
fn is_earlier(file: &File) -> bool {
    let matches = |name: &str, pods: &str| fnv(&printed(name, &file.content, pods)) == file.checksum;
    let pods = " PodEntries:(state.PodCPUAssignments)map[]";
    let second = matches("CPUManagerCheckpoint", "") || matches("CPUManagerCheckpointV2", "");
    let third = matches("CPUManagerCheckpoint", pods) || matches("CPUManagerCheckpointV3", pods);
    file.pod_entries.is_empty() && (second || third)
}

fn of_data(data: &str) -> u64 {
    fnv(&format!("(string){data}"))
}

/// What Go's spew prints of the second form, or of the third with its `pods`.
fn printed(name: &str, content: &Content, pods: &str) -> String {
    let joined = |parts: Vec<String>| format!("map[{}]", parts.join(" "));
    let containers = |texts: &BTreeMap<String, String>| {
        joined(texts.iter().map(|(container, cpus)| format!("{container}:{cpus}")).collect())
    };
    let entries = content.entries.iter().map(|(pod, texts)| format!("{pod}:{}", containers(texts)));
    format!(
        "(*state.{name}){{PolicyName:(string){} DefaultCPUSet:(string){} Entries:(map[string]map[string]string){}{pods} \
         Checksum:(checksum.Checksum)0}}",
        content.policy_name,
        content.shared,
        joined(entries.collect())
    )
}

/// FNV-1a in 32 bits.
fn fnv(text: &str) -> u64 {
    u64::from(text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn assignments() -> CpuAssignments {
        let cpus = |text| CpuSet::parse(text).unwrap();
        let containers = [("container1", "4-6"), ("container2", "1-3")];
        let containers = containers.map(|(container, text)| (container.to_owned(), cpus(text)));
        CpuAssignments { shared: cpus("7-9"), exclusive: [("pod".to_owned(), containers.into())].into() }
    }

    fn read_json(file: &Value, policy: &str) -> Result<CpuAssignments, String> {
        read(file.to_string().as_bytes(), policy).map_err(|error| error.to_string())
    }

    /// The files of kubelet's `state_checkpoint_test.go`, with their checksums.
    #[test]
    fn kubelets_files_are_read() {
        let data = r#"{"policyName":"static","defaultCPUSet":"7-9","entries":{"pod":{"container1":"4-6","container2":"1-3"}}}"#;
        // The part for older kubelets is damaged on purpose.
        let newest = json!({"policyName": "other", "defaultCPUSet": "1-9", "checksum": 1234, "data": data,
            "dataChecksum": 1420829534_u64});
        assert_eq!(read_json(&newest, STATIC), Ok(assignments()));
        let entries = json!({"pod": {"container1": "4-6", "container2": "1-3"}});
        let third = json!({"policyName": "static", "defaultCPUSet": "7-9", "entries": entries, "checksum": 1942532442});
        assert_eq!(read_json(&third, STATIC), Ok(assignments()));
        let none = json!({"policyName": "none", "defaultCPUSet": "1-9", "checksum": 1234,
            "data": r#"{"policyName":"none","defaultCPUSet":"4-6"}"#, "dataChecksum": 657950972});
        assert_eq!(read_json(&none, "none").unwrap().shared.to_string(), "4-6");
        let table = [
            (json!({"data": data, "dataChecksum": 0}), "checkpoint is corrupted"),
            (json!({"data": data, "dataChecksum": 1234}), "checkpoint is corrupted"),
            (json!({"dataChecksum": 1234}), "could not load v4 checkpoint"),
            (json!({"policyName": "none", "defaultCPUSet": "1-3", "checksum": 1694838852}), "checkpoint is corrupted"),
            (none.clone(), "configured policy \"static\" differs from state checkpoint policy \"none\""),
            (
                json!({"data": r#"{"policyName":"none","defaultCPUSet":"1.3"}"#, "dataChecksum": 3033143655_u64}),
                "configured policy",
            ),
            (json!({"entries": {"containerID1": "4-6"}}), "failed to deserialize cpu manager checkpoint"),
            (json!([]), "failed to deserialize cpu manager checkpoint"),
        ];
        for (file, why) in table {
            let error = read_json(&file, STATIC).unwrap_err();
            assert!(error.contains(why), "{file}: {error}");
        }
        let wrong = json!({"data": r#"{"policyName":"none","defaultCPUSet":"1.3"}"#, "dataChecksum": 3033143655_u64});
        assert!(read_json(&wrong, "none").unwrap_err().contains("could not parse default CPU set \"1.3\""));
    }

    #[test]
    fn what_is_written_is_read_by_both_forms() {
        let written = write(STATIC, &assignments());
        assert_eq!(read(&written, STATIC).unwrap(), assignments());
        let mut file: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(
            file["data"],
            r#"{"policyName":"static","defaultCpuSet":"7-9","entries":{"pod":{"container1":"4-6","container2":"1-3"}}}"#
        );
        for key in ["data", "dataChecksum"] {
            file.as_object_mut().unwrap().remove(key);
        }
        assert_eq!(read_json(&file, STATIC), Ok(assignments()), "a kubelet before 1.37");
        file["defaultCpuSet"] = "7-8".into();
        assert_eq!(read_json(&file, STATIC), Err("checkpoint is corrupted".to_owned()));
        let empty = write(STATIC, &CpuAssignments::default());
        assert_eq!(read(&empty, STATIC).unwrap(), CpuAssignments::default());
    }

    use super::super::STATIC;
}
