//! A Pod in Kubernetes' protobuf encoding, `v1.Pod#Marshal` in Go, which the Pods API serves.
//!
//! The Pod comes as the JSON of the Pod API and is written field by field, by a table that the build makes of Kubernetes'
//! own definitions: no second set of Pod types, and no conversion between the two to keep right.

use jiff::Timestamp;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Map, Value};

include!(concat!(env!("OUT_DIR"), "/pod_schema.rs"));

/// One field of a message: its name in JSON, and how protobuf has it.
struct Field {
    name: &'static str,
    number: u32,
    shape: Shape,
    kind: Kind,
}

/// How often a field's value is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    List,
    /// By strings.
    Map,
    /// A message whose fields are in the JSON object around it.
    Inline,
}

/// What one value of a field is.
#[derive(Clone, Copy)]
enum Kind {
    String,
    Bool,
    Integer,
    /// A string, alone in a message.
    Quantity,
    /// RFC 3339; seconds and nanoseconds in a message.
    Time,
    IntOrString,
    /// `FieldsV1`: JSON, as bytes in a message.
    Json,
    /// A message, by its place in the table.
    Message(usize),
}

/// Why a Pod could not be encoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{path}: {problem}")]
pub struct EncodeError {
    /// The field, from the Pod on.
    path: String,
    problem: &'static str,
}

/// The Pod `pod`, JSON of the Pod API, in protobuf. Fields that Kubernetes 1.37 does not have are left out.
pub fn encode_pod(pod: &Value) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::new();
    message(0, object(pod)?, &mut bytes)?;
    Ok(bytes)
}

fn wrong(problem: &'static str) -> EncodeError {
    EncodeError { path: String::new(), problem }
}

/// Puts a field's name before the path of an error.
fn within(name: &str, mut error: EncodeError) -> EncodeError {
    error.path = if error.path.is_empty() { name.to_owned() } else { format!("{name}.{}", error.path) };
    error
}

fn object(value: &Value) -> Result<&Map<String, Value>, EncodeError> {
    value.as_object().ok_or_else(|| wrong("not an object"))
}

fn message(index: usize, object: &Map<String, Value>, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    for field in MESSAGES[index] {
        if let (Shape::Inline, Kind::Message(inner)) = (field.shape, field.kind) {
            // Kubernetes decodes one without fields as one that is not there.
            delimited(field.number, bytes, |bytes| message(inner, object, bytes))?;
            continue;
        }
        match object.get(field.name) {
            None | Some(Value::Null) => {}
            Some(value) => entries(field, value, bytes).map_err(|error| within(field.name, error))?,
        }
    }
    Ok(())
}

/// A field that is there.
fn entries(field: &Field, value: &Value, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    match field.shape {
        Shape::List => {
            let values = value.as_array().ok_or_else(|| wrong("not a list"))?;
            values.iter().try_for_each(|value| encode_value(field.kind, field.number, value, bytes))
        }
        Shape::Map => object(value)?.iter().try_for_each(|(key, value)| {
            delimited(field.number, bytes, |bytes| {
                text(1, key, bytes);
                encode_value(field.kind, 2, value, bytes)
            })
        }),
        Shape::One | Shape::Inline => encode_value(field.kind, field.number, value, bytes),
    }
}

fn encode_value(kind: Kind, number: u32, value: &Value, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    match kind {
        Kind::String => text(number, value.as_str().ok_or_else(|| wrong("not a string"))?, bytes),
        Kind::Bool => integer(number, value.as_bool().ok_or_else(|| wrong("not a boolean"))?.into(), bytes),
        Kind::Integer => integer(number, value.as_i64().ok_or_else(|| wrong("not an integer"))?, bytes),
        Kind::Quantity => delimited(number, bytes, |bytes| encode_value(Kind::String, 1, value, bytes))?,
        Kind::Time => delimited(number, bytes, |bytes| time(value, bytes))?,
        Kind::IntOrString => delimited(number, bytes, |bytes| int_or_string(value, bytes))?,
        Kind::Json => delimited(number, bytes, |bytes| {
            text(1, &value.to_string(), bytes);
            Ok(())
        })?,
        Kind::Message(inner) => delimited(number, bytes, |bytes| message(inner, object(value)?, bytes))?,
    }
    Ok(())
}

fn time(value: &Value, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    let at = value.as_str().and_then(|value| value.parse::<Timestamp>().ok()).ok_or_else(|| wrong("not a time"))?;
    integer(1, at.as_second(), bytes);
    integer(2, at.subsec_nanosecond().into(), bytes);
    Ok(())
}

/// `type` is 0 for an integer, 1 for a string.
fn int_or_string(value: &Value, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    match value.as_str() {
        Some(value) => {
            integer(1, 1, bytes);
            text(3, value, bytes);
            Ok(())
        }
        None => encode_value(Kind::Integer, 2, value, bytes),
    }
}

/// Negative integers are as long as protobuf makes them, ten bytes.
#[allow(clippy::cast_sign_loss, reason = "two's complement is what protobuf writes")]
fn integer(number: u32, value: i64, bytes: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, bytes);
    encode_varint(value as u64, bytes);
}

fn text(number: u32, value: &str, bytes: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(value.len() as u64, bytes);
    bytes.extend_from_slice(value.as_bytes());
}

/// A message, after its length.
fn delimited(
    number: u32,
    bytes: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let mut inner = Vec::new();
    write(&mut inner)?;
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(inner.len() as u64, bytes);
    bytes.append(&mut inner);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_protobuf_has_them() {
        let table = [
            (json!({"metadata": {"name": "a"}}), vec![0x0a, 3, 0x0a, 1, b'a']),
            // A map: one entry per key.
            (json!({"metadata": {"labels": {"k": "v"}}}), vec![0x0a, 8, 0x5a, 6, 0x0a, 1, b'k', 0x12, 1, b'v']),
            (json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:02Z"}}), vec![0x0a, 6, 0x42, 4, 8, 2, 0x10, 0]),
            // A volume's source is inline in the volume.
            (json!({"spec": {"volumes": [{"emptyDir": {}}]}}), vec![0x12, 6, 0x0a, 4, 0x12, 2, 0x12, 0]),
            (json!({"spec": {"hostNetwork": true, "priority": 1}}), vec![0x12, 5, 0x58, 1, 0xc8, 1, 1]),
            (json!({"spec": null, "kind": "Pod"}), vec![]),
        ];
        for (pod, bytes) in table {
            assert_eq!(encode_pod(&pod).unwrap(), bytes, "{pod}");
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let error = encode_pod(&json!({"spec": {"containers": [{"name": 1}]}})).unwrap_err();
        assert_eq!(error.to_string(), "spec.containers.name: not a string");
    }
}
