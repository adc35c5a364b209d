//! Turns the definitions of a Pod into the table that `src/pod.rs` encodes by: one array of fields per message.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// The fields that are messages of their own in protobuf and part of the object around them in JSON.
const INLINE: [&str; 4] = ["volumeSource", "handler", "localObjectReference", "ephemeralContainerCommon"];

/// The Rust source of the table, `static MESSAGES`; the Pod is its first message.
pub(crate) fn table(definitions: &FileDescriptorSet) -> Result<String, String> {
    let messages: Vec<&DescriptorProto> = definitions.file.iter().flat_map(|file| &file.message_type).collect();
    if messages.first().map(|pod| pod.name()) != Some("Pod") {
        return Err("the first message of pod.proto is not Pod".to_owned());
    }
    let mut source = String::from("static MESSAGES: &[&[Field]] = &[\n");
    for message in &messages {
        source.push_str(&format!("    // {}\n    &[\n", message.name()));
        for field in &message.field {
            source.push_str(&format!("        {},\n", entry(message, field, &messages)?));
        }
        source.push_str("    ],\n");
    }
    source.push_str("];\n");
    Ok(source)
}

fn entry(
    parent: &DescriptorProto,
    field: &FieldDescriptorProto,
    messages: &[&DescriptorProto],
) -> Result<String, String> {
    let map = parent.nested_type.iter().find(|nested| field.type_name().ends_with(&format!(".{}", nested.name())));
    let shape = match map {
        Some(_) => "Shape::Map",
        None if field.label() == Label::Repeated => "Shape::List",
        None if INLINE.contains(&field.name()) => "Shape::Inline",
        None => "Shape::One",
    };
    let value = match map {
        Some(entry) => entry.field.get(1).ok_or("a map has no value")?,
        None => field,
    };
    let kind = kind(value, messages).ok_or_else(|| format!("{}.{}: of unknown type", parent.name(), field.name()))?;
    Ok(format!("Field {{ name: {:?}, number: {}, shape: {shape}, kind: {kind} }}", field.name(), field.number()))
}

fn kind(field: &FieldDescriptorProto, messages: &[&DescriptorProto]) -> Option<String> {
    let kind = match field.r#type() {
        Type::String => "Kind::String",
        Type::Bool => "Kind::Bool",
        Type::Int32 | Type::Int64 => "Kind::Integer",
        Type::Message => match field.type_name().rsplit('.').next()? {
            "Quantity" => "Kind::Quantity",
            "Time" => "Kind::Time",
            "IntOrString" => "Kind::IntOrString",
            "FieldsV1" => "Kind::Json",
            name => {
                return Some(format!("Kind::Message({})", messages.iter().position(|message| message.name() == name)?));
            }
        },
        // Only FieldsV1 has it, whose fields are not read from the table.
        Type::Bytes => "Kind::Json",
        _ => return None,
    };
    Some(kind.to_owned())
}
