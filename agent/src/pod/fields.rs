//! Which fields there are at a place of a Pod: asked of the types themselves, which tell serde their fields.

use std::cell::Cell;

use k8s_openapi::api::core::v1::Pod;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// How like a field's name an unknown one must be to name that field.
const LIKENESS: f64 = 0.65;

/// One step of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// A field or a key.
    Name(&'a str),
    /// An item of a list.
    Item,
}

/// The steps of a path as serde tells it: `spec.containers[0].image`.
pub(super) fn steps(path: &str) -> Vec<Step<'_>> {
    let parts = path.split(['.', '[']).filter(|part| !part.is_empty());
    parts
        .map(|part| match part.strip_suffix(']') {
            Some(index) if index.bytes().all(|byte| byte.is_ascii_digit()) => Step::Item,
            Some(key) => Step::Name(key),
            None => Step::Name(part),
        })
        .collect()
}

/// What an author may have meant by the unknown field that ends `path`: the place around it that has a field of this
/// name, or a field of its own place whose name is like it.
pub(super) fn suggestion(path: &str) -> Option<String> {
    let steps = steps(path);
    let (Step::Name(name), around) = steps.split_last()? else { return None };
    let outer = (1..around.len()).rev().map(|length| &around[..length]).find(|outer| fields_at(outer).contains(name));
    if let Some(outer) = outer {
        return Some(format!("it is a field of {}", text(outer)));
    }
    let likeness =
        |known: &str| strsim::normalized_damerau_levenshtein(&name.to_ascii_lowercase(), &known.to_ascii_lowercase());
    let known = fields_at(around).iter().map(|known| (likeness(known), *known));
    let closest = known.filter(|(likeness, _)| *likeness >= LIKENESS).max_by(|(a, _), (b, _)| a.total_cmp(b));
    closest.map(|(_, known)| format!("did you mean {known}?"))
}

fn text(steps: &[Step<'_>]) -> String {
    steps.iter().fold(String::new(), |text, step| match step {
        Step::Name(name) if text.is_empty() => (*name).to_owned(),
        Step::Name(name) => format!("{text}.{name}"),
        Step::Item => format!("{text}[]"),
    })
}

/// The fields of the object that `steps` lead to; none when that is no object with fields.
pub(super) fn fields_at(steps: &[Step<'_>]) -> &'static [&'static str] {
    let found = Cell::new(&[][..]);
    // It ends in an error always: nothing is read but the names.
    Pod::deserialize(Guide { steps, found: &found }).ok();
    found.get()
}

/// Leads a type's deserialization down one path, to note what fields it asks for at the end of it.
#[derive(Clone, Copy)]
struct Guide<'a> {
    steps: &'a [Step<'a>],
    found: &'a Cell<&'static [&'static str]>,
}

impl<'a> Guide<'a> {
    fn below(self) -> Self {
        Self { steps: self.steps.get(1..).unwrap_or_default(), found: self.found }
    }

    fn walk<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.steps.first() {
            Some(Step::Name(_)) => visitor.visit_map(Entry { guide: self, told: false }),
            Some(Step::Item) => visitor.visit_seq(self),
            None => Err(ValueError::custom("arrived")),
        }
    }
}

impl<'de> Deserializer<'de> for Guide<'_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.walk(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        if self.steps.is_empty() {
            self.found.set(fields);
        }
        self.walk(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A map of one entry: the next step.
struct Entry<'a> {
    guide: Guide<'a>,
    told: bool,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ValueError> {
        match self.guide.steps.first() {
            Some(Step::Name(name)) if !std::mem::replace(&mut self.told, true) => {
                seed.deserialize(StrDeserializer::new(name)).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ValueError> {
        seed.deserialize(self.guide.below())
    }
}

impl<'de> SeqAccess<'de> for Guide<'_> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ValueError> {
        seed.deserialize(self.below()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_knows_its_own_fields() {
        for (path, known, unknown) in [
            ("metadata", "labels", "spec"),
            ("spec", "volumes", "image"),
            ("spec.containers[3]", "livenessProbe", "volumes"),
            ("spec.volumes[0].projected.sources[1].secret.items[2]", "mode", "name"),
            ("spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]", "topologyKey", "weight"),
        ] {
            let fields = fields_at(&steps(path));
            assert!(fields.contains(&known) && !fields.contains(&unknown), "{path}: {fields:?}");
        }
        for path in
            ["spec.containers", "spec.nodeSelector", "spec.nope.deeper", "spec.restartPolicy.x", "metadata.labels.a[0]"]
        {
            assert_eq!(fields_at(&steps(path)), &[] as &[&str], "{path}");
        }
    }

    #[test]
    fn a_suggestion_fits_its_place() {
        for (path, expected) in [
            ("spec.containers[0].imag", Some("did you mean image?")),
            ("spec.containers[0].imagePullpolicy", Some("did you mean imagePullPolicy?")),
            ("spec.containers[0].restartpolicy", Some("did you mean restartPolicy?")),
            ("spec.containers[0].nodeSelector", Some("it is a field of spec")),
            ("spec.containers[0].ports[0].readinessProbe", Some("it is a field of spec.containers[]")),
            ("spec.image", None),
            ("spec.containers[0]", None),
        ] {
            assert_eq!(suggestion(path).as_deref(), expected, "{path}");
        }
    }
}
