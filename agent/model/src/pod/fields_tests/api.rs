//! The fields of the Pod API, as the generated types name them: a deserializer that yields every field once.

use std::cell::RefCell;

use k8s_openapi::api::core::v1::PodSpec;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

const CONTAINERS: &str = "spec.containers";
/// Lists whose items have the fields of [`CONTAINERS`]. Ephemeral containers differ only slightly.
const ALSO_CONTAINERS: &[&str] = &["spec.ephemeralContainers", "spec.initContainers"];

/// Every path below `spec`, in order of the names. `C` means containers and init containers.
pub(super) fn fields() -> Vec<String> {
    let fields = RefCell::new(Vec::new());
    PodSpec::deserialize(Walk { path: "spec".to_owned(), paths: &fields }).unwrap();
    fields.into_inner()
}

struct Walk<'f> {
    path: String,
    paths: &'f RefCell<Vec<String>>,
}

impl<'f> Walk<'f> {
    fn to(&self, path: String) -> Self {
        Self { path, paths: self.paths }
    }
}

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut fields: Vec<_> = fields.to_vec();
        fields.sort_unstable();
        visitor.visit_map(Fields { walk: self, fields: fields.into_iter(), field: "" })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(One(Some(self)))
    }

    /// A map of free keys has no fields.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(serde::de::value::MapDeserializer::<_, Error>::new(std::iter::empty::<(&str, &str)>()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        let text = if name == "Time" { "2026-01-01T00:00:00Z" } else { "1" };
        let value: StrDeserializer<'_, Error> = text.into_deserializer();
        visitor.visit_newtype_struct(value)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(false)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i32(0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(0)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str("")
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct tuple tuple_struct enum
        identifier ignored_any
    }
}

/// The fields of one object.
struct Fields<'f, I> {
    walk: Walk<'f>,
    fields: I,
    field: &'static str,
}

impl<'de, I: Iterator<Item = &'static str>> MapAccess<'de> for Fields<'_, I> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(field) = self.fields.next() else { return Ok(None) };
        self.field = field;
        let key: StrDeserializer<'_, Error> = field.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let path = format!("{}.{}", self.walk.path, self.field);
        self.walk.paths.borrow_mut().push(path.clone());
        let path = if path == CONTAINERS { "spec.C".to_owned() } else { path };
        seed.deserialize(self.walk.to(path))
    }
}

/// A list of one item.
struct One<'f>(Option<Walk<'f>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(walk) = self.0.take().filter(|walk| !ALSO_CONTAINERS.contains(&walk.path.as_str())) else {
            return Ok(None);
        };
        // Containers of all kinds are shown once; a list has its brackets where a pattern of the table has them.
        let path = if walk.path == "spec.C" { walk.path.clone() } else { format!("{}[]", walk.path) };
        seed.deserialize(walk.to(path)).map(Some)
    }
}
