//! Deserializes a value into a type of the Kubernetes API. Reports a value of the wrong type with its path, and
//! collects unknown fields, each with a suggestion.
//!
//! `null` as an item of a list or as the value of a free key is the zero value of its type, as for Kubernetes'
//! decoder: an empty text, object or quantity, or 0.
//!
//! One deserializer serves the Pods of manifests and those of the agent's responses, because the types' code is
//! generated once for each deserializer, and it is large.

use std::cell::{Cell, RefCell};

use std::sync::LazyLock;

use serde::de::value::{BorrowedStrDeserializer, StrDeserializer, StringDeserializer};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Error, Map, Value, map};

use crate::pod::fault::MAX_FAULTS;
use crate::pod::field_path;

/// The minimum similarity of an unknown field to a field for a suggestion.
const SIMILARITY: f64 = 0.65;
/// The type of quantities, which may be written as numbers: `cpu: 1`.
const QUANTITY: &str = "Quantity";

/// How many nulls are read as zero values. Those beyond count as values of the wrong type.
const MAX_NULLS: usize = 10_000;

/// The names of an object's fields.
pub(super) type Fields = &'static [&'static str];

/// An unknown field of an object.
#[derive(Debug)]
pub struct UnknownField {
    /// Its path, with its name.
    pub path: String,
    name: String,
    /// The known fields of the object.
    pub(super) fields: Fields,
    /// The path of an enclosing object that has a field of this name.
    around: Option<String>,
}

impl UnknownField {
    /// What its author may have meant: an enclosing object with such a field, or a field with a similar name.
    pub fn suggestion(&self) -> Option<String> {
        if let Some(around) = &self.around {
            return Some(format!("it is a field of {around}"));
        }
        let name = self.name.to_ascii_lowercase();
        let similarity = |known: &str| strsim::normalized_damerau_levenshtein(&name, &known.to_ascii_lowercase());
        let known = self.fields.iter().map(|known| (similarity(known), *known));
        let closest = known.filter(|(similarity, _)| *similarity >= SIMILARITY).max_by(|(a, _), (b, _)| a.total_cmp(b));
        closest.map(|(_, known)| format!("did you mean {known}?"))
    }
}

/// The unknown fields of a document: the first ones, and the number of the others.
#[derive(Debug, Default)]
pub struct UnknownFields {
    pub first: Vec<UnknownField>,
    /// The number of those beyond.
    pub more: usize,
}

/// A value of the wrong type.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct TypeError {
    /// Its path: empty for the document itself.
    pub path: String,
    /// The same, step by step.
    pub(super) steps: Vec<Step>,
    /// serde's error, which may quote the value.
    pub(super) error: Error,
}

/// One step down into a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// To a field or key.
    Name(String),
    /// To an item of a list.
    Item(usize),
}

/// A null that was read as a zero value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReadNull {
    pub(super) steps: Vec<Step>,
    /// What it was read as.
    pub(super) zero: Value,
}

/// Reads a `T`, and the unknown fields of `value`. After a type error the list is incomplete.
pub fn read<'a, T: Deserialize<'a>>(value: &'a Value) -> (Result<T, TypeError>, UnknownFields) {
    let (read, unknown, _) = read_noting_nulls(value);
    (read, unknown)
}

/// The same, with the nulls that were read as zero values.
pub(super) fn read_noting_nulls<'a, T: Deserialize<'a>>(
    value: &'a Value,
) -> (Result<T, TypeError>, UnknownFields, Vec<ReadNull>) {
    let notes = Notes::default();
    let read = T::deserialize(Reader { value, location: &Location::Root, notes: &notes });
    let read = read.map_err(|error| {
        let (path, steps) = notes.type_error.take().unwrap_or_default();
        TypeError { path, steps, error }
    });
    (read, notes.unknown.take(), notes.nulls.take())
}

/// Findings collected while reading.
#[derive(Default)]
struct Notes {
    unknown: RefCell<UnknownFields>,
    nulls: RefCell<Vec<ReadNull>>,
    /// Path and steps of the first type error; it stops the reading.
    type_error: Cell<Option<(String, Vec<Step>)>>,
}

/// The location of a value in the document, linked to its enclosing locations.
enum Location<'p> {
    Root,
    /// `fields` are those of the enclosing object; a map of free keys has none.
    Field {
        parent: &'p Location<'p>,
        fields: Option<Fields>,
        name: &'p str,
    },
    Item {
        parent: &'p Location<'p>,
        index: usize,
    },
}

impl Location<'_> {
    fn path(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Field { parent, name, .. } => field_path(&parent.path(), name),
            Self::Item { parent, index } => format!("{}[{index}]", parent.path()),
        }
    }

    fn steps(&self) -> Vec<Step> {
        let (parent, step) = match self {
            Self::Root => return Vec::new(),
            Self::Field { parent, name, .. } => (parent, Step::Name((*name).to_owned())),
            Self::Item { parent, index } => (parent, Step::Item(*index)),
        };
        let mut steps = parent.steps();
        steps.push(step);
        steps
    }

    /// The path without indices: `spec.containers[]`.
    fn kind(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Field { parent, name, .. } => field_path(&parent.kind(), name),
            Self::Item { parent, .. } => format!("{}[]", parent.kind()),
        }
    }

    /// The nearest enclosing object, except the document itself, that has a field called `name`.
    fn around_with(&self, name: &str) -> Option<&Location<'_>> {
        match self {
            Self::Root => None,
            Self::Item { parent, .. } => parent.around_with(name),
            Self::Field { parent: Location::Root, .. } => None,
            Self::Field { parent, fields: Some(fields), .. } if fields.contains(&name) => Some(*parent),
            Self::Field { parent, .. } => parent.around_with(name),
        }
    }
}

/// Reads one value.
struct Reader<'a, 'p> {
    value: &'a Value,
    location: &'p Location<'p>,
    notes: &'p Notes,
}

impl<'a, 'p> Reader<'a, 'p> {
    /// Reads it with `seed`. The innermost value notes its location first.
    fn read<S: DeserializeSeed<'a>>(self, seed: S) -> Result<S::Value, Error> {
        let (location, notes) = (self.location, self.notes);
        seed.deserialize(self).inspect_err(|_| {
            let known = notes.type_error.take();
            notes.type_error.set(known.or_else(|| Some((location.path(), location.steps()))));
        })
    }

    fn entries(self, map: &'a Map<String, Value>, fields: Option<Fields>) -> Entries<'a, 'p> {
        Entries { parent: self.location, notes: self.notes, fields, rest: map.iter(), value: None }
    }

    /// Whether it is a null that is read as `zero`. If so, it is recorded.
    fn is_zero(&self, zero: impl FnOnce() -> Value) -> bool {
        let is_element = matches!(self.location, Location::Item { .. } | Location::Field { fields: None, .. });
        let mut nulls = self.notes.nulls.borrow_mut();
        let is_zero = self.value.is_null() && is_element && nulls.len() < MAX_NULLS;
        if is_zero {
            nulls.push(ReadNull { steps: self.location.steps(), zero: zero() });
        }
        is_zero
    }

    fn deserialize_text<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.is_zero(|| Value::String(String::new())) {
            true => visitor.visit_borrowed_str(""),
            false => self.deserialize_any(visitor),
        }
    }

    fn deserialize_integer<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.is_zero(|| Value::from(0)) {
            true => visitor.visit_i64(0),
            false => self.deserialize_any(visitor),
        }
    }
}

impl<'a> Deserializer<'a> for Reader<'a, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Object(map) => visitor.visit_map(self.entries(map, None)),
            Value::Array(items) => {
                visitor.visit_seq(Items { parent: self.location, notes: self.notes, rest: items.iter().enumerate() })
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        fields: Fields,
        visitor: V,
    ) -> Result<V::Value, Error> {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        match self.value {
            Value::Object(map) => visitor.visit_map(self.entries(map, Some(fields))),
            _ if self.is_zero(|| Value::Object(Map::new())) => visitor.visit_map(self.entries(&EMPTY, Some(fields))),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Number(amount) if name == QUANTITY => {
                visitor.visit_newtype_struct(StringDeserializer::new(amount.to_string()))
            }
            Value::Null if name == QUANTITY && self.is_zero(|| Value::from("0")) => {
                visitor.visit_newtype_struct(StrDeserializer::new("0"))
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_str<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_text(visitor)
    }

    fn deserialize_string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_text(visitor)
    }

    fn deserialize_i32<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_i64<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_integer(visitor)
    }

    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        bool i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}

/// The entries of an object or map.
struct Entries<'a, 'p> {
    parent: &'p Location<'p>,
    notes: &'p Notes,
    fields: Option<Fields>,
    rest: map::Iter<'a>,
    /// The entry whose key was read last.
    value: Option<(&'a str, &'a Value)>,
}

impl<'a> MapAccess<'a> for Entries<'a, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        for (key, value) in self.rest.by_ref() {
            match self.fields {
                Some(fields) if !fields.contains(&key.as_str()) => {
                    let mut unknown = self.notes.unknown.borrow_mut();
                    if unknown.first.len() == MAX_FAULTS {
                        unknown.more += 1;
                        continue;
                    }
                    let path = field_path(&self.parent.path(), key);
                    let around = self.parent.around_with(key).map(Location::kind);
                    unknown.first.push(UnknownField { path, name: key.clone(), fields, around });
                }
                _ => {
                    self.value = Some((key.as_str(), value));
                    return seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'a>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (name, value) = self.value.take().unwrap_or(("", &Value::Null));
        let location = Location::Field { parent: self.parent, fields: self.fields, name };
        Reader { value, location: &location, notes: self.notes }.read(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// The items of a list.
struct Items<'a, 'p> {
    parent: &'p Location<'p>,
    notes: &'p Notes,
    rest: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'a> SeqAccess<'a> for Items<'a, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'a>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((index, value)) = self.rest.next() else { return Ok(None) };
        let location = Location::Item { parent: self.parent, index };
        Reader { value, location: &location, notes: self.notes }.read(seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use crate::pod::strict::*;

    #[test]
    fn a_suggestion_fits_its_location() {
        let container = |field: &str| json!({"spec": {"containers": [{field: 0}]}});
        for (value, path, expected) in [
            (container("imag"), "spec.containers[0].imag", Some("did you mean image?")),
            (container("imagePullpolicy"), "spec.containers[0].imagePullpolicy", Some("did you mean imagePullPolicy?")),
            (container("restartpolicy"), "spec.containers[0].restartpolicy", Some("did you mean restartPolicy?")),
            (container("nodeSelector"), "spec.containers[0].nodeSelector", Some("it is a field of spec")),
            (
                json!({"spec": {"containers": [{}, {"ports": [{"readinessProbe": 0}]}]}}),
                "spec.containers[1].ports[0].readinessProbe",
                Some("it is a field of spec.containers[]"),
            ),
            (json!({"spec": {"image": 0}}), "spec.image", None),
            (json!({"sepc": {}}), "sepc", Some("did you mean spec?")),
        ] {
            let (read, unknown) = read::<Pod>(&value);
            read.unwrap();
            let [unknown] = &unknown.first[..] else { panic!("{path}: {unknown:?}") };
            assert_eq!((unknown.path.as_str(), unknown.suggestion().as_deref()), (path, expected));
        }
    }

    #[test]
    fn every_location_knows_its_own_fields_and_a_map_of_free_keys_has_none() {
        let pod = json!({
            "metadata": {"labels": {"anything": "goes", "with.a/slash": "too"}},
            "spec": {
                "volumes": [{"projected": {"sources": [{}, {"secret": {"items": [{"qqq": 0}]}}]}}],
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
            },
        });
        let (_, unknown) = read::<Pod>(&pod);
        let paths: Vec<_> = unknown.first.iter().map(|unknown| unknown.path.as_str()).collect();
        let [term, item] = &unknown.first[..] else { panic!("{paths:?}") };
        let terms = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution";
        assert_eq!(
            paths,
            [format!("{terms}[0].weight").as_str(), "spec.volumes[0].projected.sources[1].secret.items[0].qqq"]
        );
        assert!(term.fields.contains(&"topologyKey") && !term.fields.contains(&"mode"), "{:?}", term.fields);
        assert!(item.fields.contains(&"mode") && !item.fields.contains(&"topologyKey"), "{:?}", item.fields);
    }

    #[test]
    fn a_type_error_is_reported_at_its_innermost_location() {
        for (value, expected) in [
            (json!(7), ": invalid type: integer `7`, expected Pod"),
            (json!([]), ": invalid type: sequence, expected Pod"),
            (
                json!({"spec": {"containers": [{}, 5]}}),
                "spec.containers[1]: invalid type: integer `5`, expected Container",
            ),
            (
                json!({"spec": {"hostNetwork": "yes"}}),
                "spec.hostNetwork: invalid type: string \"yes\", expected a boolean",
            ),
            (
                json!({"metadata": {"labels": {"a.b/c": 1}}}),
                "metadata.labels[a.b/c]: invalid type: integer `1`, expected a string",
            ),
            (
                json!({"spec": {"terminationGracePeriodSeconds": 1.5}}),
                "spec.terminationGracePeriodSeconds: invalid type: floating point `1.5`, expected i64",
            ),
        ] {
            assert_eq!(read::<Pod>(&value).0.unwrap_err().to_string(), expected);
        }
    }
}
