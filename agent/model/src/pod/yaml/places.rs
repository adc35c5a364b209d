//! Where each field of a document stands, and which keys are written twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, Options, Spanned};

use crate::pod::Fault;
use crate::pod::yaml::{below, join, place};

/// Bytes of the path of a field whose place is kept.
const MAX_PATH: usize = 512;
/// Duplicated keys told of one document.
const MAX_DUPLICATES: usize = 20;

/// Where the fields of one document stand.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// `spec.containers[0].image` -> line and column, one-based.
    positions: BTreeMap<String, (u32, u32)>,
    /// Keys that are written twice.
    pub(super) duplicates: Vec<Fault>,
}

/// Reads a text that begins after `first_line` lines for the places in each of its documents.
pub(super) fn read(text: &str, first_line: u32, options: Options) -> Result<Vec<Places>, Error> {
    let documents = serde_saphyr::from_multiple_with_options::<Node>(text, options)?;
    let places = documents.into_iter().map(|document| {
        let mut places = Places::default();
        places.note(document, "", first_line);
        places
    });
    Ok(places.collect())
}

impl Places {
    /// Where `path` stands, or the nearest field above it. A key may stand in brackets or after a dot.
    pub(super) fn position(&self, path: &str) -> Option<(u32, u32)> {
        let mut path = path;
        loop {
            if let Some(position) = self.positions.get(path) {
                return Some(*position);
            }
            let end = path.rfind(['.', '['])?;
            let key = path[end..].strip_prefix('[').and_then(|key| key.strip_suffix(']'));
            if let Some(position) = key.and_then(|key| self.positions.get(&join(&path[..end], key))) {
                return Some(*position);
            }
            path = &path[..end];
        }
    }

    /// Takes in what stands at `path` and below. A key's place is the key's, an item's its own.
    fn note(&mut self, node: Node, path: &str, first_line: u32) {
        // Long paths are nobody's fields, and would make memory grow with the square of the file.
        let known = path.len() <= MAX_PATH;
        if known {
            self.positions.entry(path.to_owned()).or_insert(below(node.position, first_line));
        }
        match node.shape {
            Shape::Leaf => {}
            Shape::List(items) => {
                for (index, item) in items.into_iter().enumerate() {
                    let path = if known { format!("{path}[{index}]") } else { path.to_owned() };
                    self.note(item, &path, first_line);
                }
            }
            Shape::Map(entries) => {
                let mut keys = BTreeSet::new();
                for (key, position, node) in entries {
                    let path = if known { join(path, &key) } else { path.to_owned() };
                    let position = below(position, first_line);
                    if !keys.insert(key) {
                        self.duplicate(&path, position);
                    }
                    if path.len() <= MAX_PATH {
                        self.positions.insert(path.clone(), position);
                    }
                    self.note(node, &path, first_line);
                }
            }
        }
    }

    /// Notes a key that is written twice; beyond some, that there are more, of the document as a whole.
    fn duplicate(&mut self, path: &str, position: (u32, u32)) {
        let (path, message) = match self.duplicates.len() {
            count if count < MAX_DUPLICATES => (path, "Duplicate key"),
            MAX_DUPLICATES => ("", "more duplicated keys than are told"),
            _ => return,
        };
        let mut fault = Fault::error(path, message).with_remedy("write each once");
        fault.position = Some(position);
        self.duplicates.push(fault);
    }
}

/// A value's shape, without the value, and where it stands.
struct Node {
    position: (u32, u32),
    shape: Shape,
}

enum Shape {
    Leaf,
    List(Vec<Node>),
    Map(Vec<(String, (u32, u32), Node)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Shape>::deserialize(deserializer)?;
        Ok(Self { position: place(spanned.referenced), shape: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_none<E>(self) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        Shape::deserialize(deserializer)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = items.next_element()? {
            list.push(node);
        }
        Ok(Shape::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Shape, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            map.push((key.value, place(key.referenced), entries.next_value()?));
        }
        Ok(Shape::Map(map))
    }
}
