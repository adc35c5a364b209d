//! Checks that a value has the type of its key.

use super::keys::Shape;
use super::tree::{Node, Position, Value};

/// The position and type of the value, when it does not have the type `shape`.
pub(super) fn misfit(shape: Shape, node: &Node) -> Option<(Position, &'static str)> {
    let items = |fits: fn(&Value) -> bool| match &node.value {
        Value::List(nodes) => {
            nodes.iter().find(|item| !fits(&item.value)).map(|item| (item.position, item.value.kind()))
        }
        other => Some((node.position, other.kind())),
    };
    let fits = match (shape, &node.value) {
        (Shape::Texts, _) => return items(|value| matches!(value, Value::Text(_))),
        (Shape::Ints, _) => return items(|value| matches!(value, Value::Int(_))),
        (Shape::Bool, Value::Bool(_))
        | (Shape::Int, Value::Int(_))
        | (Shape::DurationOrInt, Value::Int(_) | Value::Text(_))
        | (Shape::Float, Value::Int(_) | Value::Float(_))
        | (Shape::Text | Shape::Duration | Shape::Switch, Value::Text(_))
        | (Shape::Switch, Value::Bool(_))
        | (Shape::Map | Shape::Object(_), Value::Map(_))
        | (Shape::List, Value::List(_)) => true,
        _ => false,
    };
    (!fits).then(|| (node.position, node.value.kind()))
}

/// The name of a type for messages.
pub(super) fn expected(shape: Shape) -> &'static str {
    match shape {
        Shape::Bool => "true or false",
        Shape::Int => "a whole number",
        Shape::Float => "a number",
        Shape::Text | Shape::Switch => "text",
        Shape::Duration | Shape::DurationOrInt => "a duration such as 1m30s",
        Shape::Texts => "a list of texts",
        Shape::Ints => "a list of whole numbers",
        Shape::Map | Shape::Object(_) => "a map",
        Shape::List => "a list",
    }
}
