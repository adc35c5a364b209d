//! The position of each field of a document, and its duplicate keys.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, Options, Spanned};

use crate::pod::yaml::{join, line_column, shifted};
use crate::pod::{Fault, Reason};

/// Maximum length in bytes of a path whose position is kept.
const MAX_PATH: usize = 512;
/// Maximum number of duplicate keys reported per document.
const MAX_DUPLICATES: usize = 20;

/// The positions of the fields of one document.
#[derive(Debug, Clone, Default)]
pub(super) struct Positions {
    /// `spec.containers[0].image` -> line and column, one-based.
    positions: BTreeMap<String, (u32, u32)>,
    /// Duplicate keys.
    pub(super) duplicates: Vec<Fault>,
}

/// Parses a text that begins after `first_line` lines for the positions in each of its documents.
pub(super) fn read(text: &str, first_line: u32, options: Options) -> Result<Vec<Positions>, Error> {
    let documents = serde_saphyr::from_multiple_with_options::<Node>(text, options)?;
    let positions = documents.into_iter().map(|document| {
        let mut positions = Positions::default();
        positions.note(document, "", first_line);
        positions
    });
    Ok(positions.collect())
}

impl Positions {
    /// The position of `path`, or of the nearest field above it. A key may be in brackets or after a dot.
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

    /// Records the positions of `path` and everything below. A field's position is its key's, an item's its own.
    fn note(&mut self, node: Node, path: &str, first_line: u32) {
        // No real field has such a long path, and memory would grow with the square of the file size.
        let known = path.len() <= MAX_PATH;
        if known {
            self.positions.entry(path.to_owned()).or_insert(shifted(node.position, first_line));
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
                    let position = shifted(position, first_line);
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

    /// Records a duplicate key; beyond the limit, one fault stands for the whole document.
    fn duplicate(&mut self, path: &str, position: (u32, u32)) {
        let (path, message) = match self.duplicates.len() {
            count if count < MAX_DUPLICATES => (path, "Duplicate key"),
            MAX_DUPLICATES => ("", "more duplicate keys than are shown"),
            _ => return,
        };
        let mut fault = Fault::error(path, message).with_remedy("write each once").because(Reason::Strict);
        fault.position = Some(position);
        self.duplicates.push(fault);
    }
}

/// A value's shape, without the value, and its position.
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
        Ok(Self { position: line_column(spanned.referenced), shape: spanned.value })
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
            map.push((key.value, line_column(key.referenced), entries.next_value()?));
        }
        Ok(Shape::Map(map))
    }
}
