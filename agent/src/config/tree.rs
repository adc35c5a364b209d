//! YAML as a tree with the position of every key and value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// A place in one of the files, or among the flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The file, as an index into the reader's origins.
    pub(super) origin: usize,
    /// Line and column, counted from one; `None` for flags.
    pub(super) at: Option<(u32, u32)>,
}

/// A value and its position.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) position: Position,
    pub(super) value: Value,
}

/// A YAML value of the core schema.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a map, and its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) position: Position,
    pub(super) node: Node,
}

impl Value {
    /// The type's name for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    /// The value as JSON; null for a number that does not exist in JSON, such as infinity.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Float(value) => (*value).into(),
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Text(text) => text.as_str().into(),
            Self::List(nodes) => nodes.iter().map(|node| node.value.to_json()).collect(),
            Self::Map(entries) => entries.iter().map(|entry| (entry.key.clone(), entry.node.value.to_json())).collect(),
        }
    }
}

/// A value and its position.
type Found<T> = Option<(T, Position)>;

/// A document's keys by name. Values of the wrong type are skipped: they have been reported already.
#[derive(Clone, Copy)]
pub(super) struct Map<'a> {
    pub(super) entries: &'a [Entry],
}

impl<'a> Map<'a> {
    fn get(&self, key: &str) -> Option<&'a Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    pub(super) fn text(&self, key: &str) -> Found<&'a str> {
        let node = self.get(key)?;
        if let Value::Text(text) = &node.value { Some((text, node.position)) } else { None }
    }

    pub(super) fn int(&self, key: &str) -> Found<i64> {
        let node = self.get(key)?;
        if let Value::Int(number) = node.value { Some((number, node.position)) } else { None }
    }

    #[allow(clippy::cast_precision_loss)] // a whole number in a configuration is small
    pub(super) fn float(&self, key: &str) -> Found<f64> {
        let node = self.get(key)?;
        match node.value {
            Value::Float(number) => Some((number, node.position)),
            Value::Int(number) => Some((number as f64, node.position)),
            _ => None,
        }
    }

    pub(super) fn bool(&self, key: &str) -> Found<bool> {
        let node = self.get(key)?;
        if let Value::Bool(value) = node.value { Some((value, node.position)) } else { None }
    }

    /// The map at `key`: name, position and value of each entry.
    pub(super) fn map(&self, key: &str) -> &'a [Entry] {
        match self.get(key).map(|node| &node.value) {
            Some(Value::Map(entries)) => entries,
            _ => &[],
        }
    }

    /// Whether there is a map at `key`, even an empty one.
    pub(super) fn has_map(&self, key: &str) -> bool {
        matches!(self.get(key).map(|node| &node.value), Some(Value::Map(_)))
    }

    /// The maps of the list at `key`, each with its position.
    pub(super) fn maps(&self, key: &str) -> Vec<(Map<'a>, Position)> {
        let Some(Value::List(nodes)) = self.get(key).map(|node| &node.value) else { return Vec::new() };
        let maps = nodes.iter().filter_map(|node| match &node.value {
            Value::Map(entries) => Some((Map { entries }, node.position)),
            _ => None,
        });
        maps.collect()
    }

    /// The numbers of the list at `key`, each with its position.
    pub(super) fn ints(&self, key: &str) -> Vec<(i64, Position)> {
        let Some(Value::List(nodes)) = self.get(key).map(|node| &node.value) else { return Vec::new() };
        let numbers = nodes.iter().filter_map(|node| match node.value {
            Value::Int(number) => Some((number, node.position)),
            _ => None,
        });
        numbers.collect()
    }

    pub(super) fn texts(&self, key: &str) -> Vec<(&'a str, Position)> {
        self.list(key).unwrap_or_default()
    }

    /// The same, but it distinguishes an empty list from none.
    pub(super) fn list(&self, key: &str) -> Option<Vec<(&'a str, Position)>> {
        let Value::List(nodes) = &self.get(key)?.value else { return None };
        let texts = nodes.iter().filter_map(|node| match &node.value {
            Value::Text(text) => Some((text.as_str(), node.position)),
            _ => None,
        });
        Some(texts.collect())
    }
}

pub(super) fn position(location: Location) -> Position {
    let bounded = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Position { origin: 0, at: Some((bounded(location.line()), bounded(location.column()))) }
}

impl Node {
    /// Sets the origin of the whole subtree.
    pub(super) fn set_origin(&mut self, origin: usize) {
        self.position.origin = origin;
        match &mut self.value {
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.set_origin(origin)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.position.origin = origin;
                    entry.node.set_origin(origin);
                }
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => {}
        }
    }
}

/// Puts `later` over `earlier`, as a JSON merge patch does (RFC 7386): maps are merged, anything else is
/// replaced, and null removes the key.
pub(super) fn put_over(earlier: &mut Vec<Entry>, later: Vec<Entry>) {
    for entry in later {
        let known = earlier.iter().position(|known| known.key == entry.key);
        match (known.map(|index| &mut earlier[index].node.value), entry.node.value) {
            (Some(Value::Map(known)), Value::Map(more)) => put_over(known, more),
            (_, value) => {
                known.into_iter().for_each(|index| _ = earlier.remove(index));
                earlier.push(Entry { node: Node { value, ..entry.node }, ..entry });
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { position: position(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        i64::try_from(value).map(Value::Int).map_err(|_| E::custom("the number is too large"))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = items.next_element()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let node = entries.next_value()?;
            map.push(Entry { position: position(key.referenced), key: key.value, node });
        }
        Ok(Value::Map(map))
    }
}
