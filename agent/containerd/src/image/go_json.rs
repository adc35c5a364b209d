//! Reads JSON as Go's `encoding/json` reads it into structs, so that documents that containerd or kubelet accepts are
//! accepted here.
//!
//! A [`Shape`] describes a Go type. Member names are compared case-insensitively, the last of several counts, and
//! null leaves a member unset. Unknown members are skipped. The result contains no null and only the shape's members,
//! under their exact names; serde's strict types then read it.

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

/// A Go type, as far as documents need it.
#[derive(Debug)]
pub(super) enum Shape {
    /// `string`.
    Text,
    /// `int64`.
    Integer,
    /// `[]T`.
    List(&'static Shape),
    /// `map[string]T`.
    Map(&'static Shape),
    /// `struct`.
    Struct(&'static [Member]),
}

/// A member of a struct.
#[derive(Debug)]
pub(super) struct Member {
    name: &'static str,
    shape: Shape,
    /// Whether a missing member gets its zero value.
    always: bool,
}

/// An optional member.
pub(super) const fn may(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, always: false }
}

/// A member that gets its zero value if it is missing.
pub(super) const fn always(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, always: true }
}

/// Reads a document of this shape.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8], shape: &'static Shape) -> Result<T, serde_json::Error> {
    T::deserialize(value(bytes, shape)?)
}

/// The shape's members in a document.
pub(super) fn value(bytes: &[u8], shape: &'static Shape) -> Result<Value, serde_json::Error> {
    // Like Go, replaces invalid UTF-8.
    let text = String::from_utf8_lossy(bytes);
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let value = shape.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value.unwrap_or_else(|| shape.zero()))
}

impl Shape {
    fn zero(&self) -> Value {
        match self {
            Self::Text => Value::String(String::new()),
            Self::Integer => Value::from(0),
            Self::List(_) => Value::Array(Vec::new()),
            Self::Map(_) => Value::Object(Map::new()),
            Self::Struct(members) => Value::Object(complete(Map::new(), members)),
        }
    }
}

/// Adds the members that a struct always has.
fn complete(mut object: Map<String, Value>, members: &'static [Member]) -> Map<String, Value> {
    for member in members.iter().filter(|member| member.always) {
        object.entry(member.name).or_insert_with(|| member.shape.zero());
    }
    object
}

/// Deserializes to `None` for null.
impl<'de> DeserializeSeed<'de> for &'static Shape {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for &'static Shape {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Shape::Text => "a string",
            Shape::Integer => "an integer",
            Shape::List(_) => "a list",
            Shape::Map(_) | Shape::Struct(_) => "an object",
        })
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self {
            // Read as bytes, because Go accepts half of a surrogate pair.
            Shape::Text => deserializer.deserialize_bytes(self),
            _ => deserializer.deserialize_any(self),
        }
    }

    fn visit_bytes<E>(self, text: &[u8]) -> Result<Self::Value, E> {
        Ok(Some(Value::String(String::from_utf8_lossy(text).into_owned())))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
        match (self, i64::try_from(number)) {
            (Shape::Integer, Ok(number)) => Ok(Some(Value::from(number))),
            _ => Err(E::invalid_value(serde::de::Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self::Value, E> {
        match self {
            Shape::Integer => Ok(Some(Value::from(number))),
            _ => Err(E::invalid_type(serde::de::Unexpected::Signed(number), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Shape::List(element) = self else { return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self)) };
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(*element)? {
            values.push(value.unwrap_or_else(|| element.zero()));
        }
        Ok(Some(Value::Array(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        match self {
            Shape::Map(element) => {
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value_seed(*element)?;
                    object.insert(key, value.unwrap_or_else(|| element.zero()));
                }
            }
            Shape::Struct(members) => {
                while let Some(key) = map.next_key::<String>()? {
                    let named = members.iter().find(|member| member.name.eq_ignore_ascii_case(&key));
                    let Some(member) = named else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    match (map.next_value_seed(&member.shape)?, &member.shape) {
                        (Some(value), _) => drop(object.insert(member.name.to_owned(), value)),
                        (None, Shape::List(_) | Shape::Map(_)) => drop(object.remove(member.name)),
                        (None, _) => {}
                    }
                }
                object = complete(object, members);
            }
            _ => return Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self)),
        }
        Ok(Some(Value::Object(object)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    static INNER: Shape = Shape::Struct(&[always("a", Shape::Text), may("n", Shape::Integer)]);
    static OUTER: Shape = Shape::Struct(&[
        may("Text", Shape::Text),
        may("list", Shape::List(&Shape::Text)),
        may("map", Shape::Map(&INNER)),
    ]);

    #[test]
    fn documents_are_read_as_by_go() {
        let table = [
            (r#"{"Text": "x", "other": [1, {"Text": 2}]}"#, r#"{"Text": "x"}"#),
            (r#"{"text": "x", "TEXT": "y"}"#, r#"{"Text": "y"}"#),
            (r#"{"Text": "x", "Text": null, "list": ["a"], "LIST": null}"#, r#"{"Text": "x"}"#),
            (r#"{"list": [null, "b"]}"#, r#"{"list": ["", "b"]}"#),
            (
                r#"{"map": {"k": null, "l": {"A": "1", "n": -2}}}"#,
                r#"{"map": {"k": {"a": ""}, "l": {"a": "1", "n": -2}}}"#,
            ),
            ("{\"Text\": \"\\ud800x\"}", "{\"Text\": \"\u{fffd}\u{fffd}\u{fffd}x\"}"),
            ("null", "{}"),
        ];
        for (text, wanted) in table {
            let wanted: Value = serde_json::from_str(wanted).unwrap();
            assert_eq!(value(text.as_bytes(), &OUTER).unwrap(), wanted, "{text}");
        }
        assert_eq!(value(b"{\"Text\": \"\xff\"}", &OUTER).unwrap()["Text"], "\u{fffd}");
    }

    #[test]
    fn what_go_refuses_is_refused() {
        let table = [
            r#"{"Text": 1}"#,
            r#"{"Text": ["a"]}"#,
            r#"{"list": "a"}"#,
            r#"{"list": {}}"#,
            r#"{"map": []}"#,
            r#"{"map": {"k": {"n": 1.5}}}"#,
            r#"{"map": {"k": {"n": "1"}}}"#,
            r#"{"map": {"k": {"n": 9223372036854775808}}}"#,
            r#"{"Text": "x"} trailing"#,
            "[]",
            "",
        ];
        for text in table {
            assert!(value(text.as_bytes(), &OUTER).is_err(), "{text}");
        }
    }
}
