//! Decodes answers in Kubernetes' protobuf encoding, as far as limpet requests them: an object's metadata, and
//! refusals.
//!
//! An answer is the four bytes `k8s\0` and a `runtime.Unknown` around the object
//! (`k8s.io/apimachinery/pkg/runtime/generated.proto`, `pkg/apis/meta/v1/generated.proto`).

use prost::Message as _;
use serde_json::{Value, json};

pub(crate) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";

#[derive(prost::Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(prost::Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(prost::Message)]
struct PartialObjectMetadata {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

#[derive(prost::Message)]
struct ObjectMeta {
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<ManagedFieldsEntry>,
}

/// The entries are only counted; none of their fields is read.
#[derive(prost::Message)]
struct ManagedFieldsEntry {}

#[derive(prost::Message)]
struct Status {
    #[prost(string, tag = "2")]
    status: String,
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<StatusDetails>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(prost::Message)]
struct StatusDetails {
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
}

/// The answer as JSON.
///
/// # Errors
///
/// The answer is not protobuf, or is truncated.
pub(crate) fn read(answer: &[u8]) -> Result<Value, String> {
    let unknown = answer.strip_prefix(MAGIC).ok_or("the answer is not in Kubernetes' protobuf encoding")?;
    decode(unknown).map_err(|error| error.to_string())
}

fn decode(unknown: &[u8]) -> Result<Value, prost::DecodeError> {
    let Unknown { type_meta, raw } = Unknown::decode(unknown)?;
    if type_meta.is_some_and(|type_meta| type_meta.kind == "Status") {
        let Status { status, message, reason, details, code } = Status::decode(&*raw)?;
        let retry_after = details.map(|details| json!({ "retryAfterSeconds": details.retry_after_seconds }));
        return Ok(json!({
            "kind": "Status",
            "status": status,
            "message": message,
            "reason": reason,
            "details": retry_after,
            "code": code,
        }));
    }
    let metadata = PartialObjectMetadata::decode(&*raw)?.metadata.unwrap_or_default();
    let mut answer = json!({ "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version } });
    if !metadata.managed_fields.is_empty() {
        answer["metadata"]["managedFields"] = metadata.managed_fields.iter().map(|_| json!({})).collect();
    }
    Ok(answer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// An answer of a kube-apiserver 1.37 with this kind and raw object.
    fn answer(kind: &str, raw: Vec<u8>) -> Vec<u8> {
        let unknown = Unknown { type_meta: Some(TypeMeta { kind: kind.to_owned() }), raw };
        [MAGIC, &unknown.encode_to_vec()].concat()
    }

    #[test]
    fn metadata_and_refusals_read_as_in_json() {
        let metadata = |managed_fields| {
            let (uid, resource_version) = ("u-1".to_owned(), "17".to_owned());
            ObjectMeta { uid, resource_version, managed_fields }
        };
        let object = |metadata| PartialObjectMetadata { metadata: Some(metadata) }.encode_to_vec();
        let read_object = |metadata| read(&answer("PartialObjectMetadata", object(metadata))).unwrap();
        assert_eq!(read_object(metadata(vec![])), json!({ "metadata": { "uid": "u-1", "resourceVersion": "17" } }));
        assert_eq!(
            read_object(metadata(vec![ManagedFieldsEntry {}])),
            json!({ "metadata": { "uid": "u-1", "resourceVersion": "17", "managedFields": [{}] } })
        );
        let refusal = Status {
            status: "Failure".to_owned(),
            message: "wait".to_owned(),
            reason: "TooManyRequests".to_owned(),
            details: Some(StatusDetails { retry_after_seconds: 3 }),
            code: 429,
        };
        let refusal = read(&answer("Status", refusal.encode_to_vec())).unwrap();
        assert_eq!((&refusal["code"], &refusal["details"]["retryAfterSeconds"]), (&json!(429), &json!(3)));
        assert!(read(b"k8s\0\xff").is_err() && read(b"").is_err() && read(b"<html>").is_err());
    }
}
