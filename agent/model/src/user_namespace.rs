//! The ids of pods with user namespaces of their own (`hostUsers: false`): which block of the node's each has.

use std::fmt;

/// How many ids a pod has, as kubelet gives them. No pod has the first block: it has the node's own users.
pub const IDS_PER_POD: u32 = 65_536;

/// A block of the node's user and group ids: those from 0 on that a pod's processes see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdRange {
    /// What the pod's root is on the node.
    pub first: u32,
    /// How many there are.
    pub length: u32,
}

impl IdRange {
    /// Parses the text of [`fmt::Display`]; `None`: it is not a range that a pod may have.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, length) = text.trim().split_once(' ')?;
        let range = Self { first: first.parse().ok()?, length: length.parse().ok()? };
        (range.first >= IDS_PER_POD && range.length > 0 && range.first.checked_add(range.length - 1).is_some())
            .then_some(range)
    }

    /// The line of `uid_map` and `gid_map`.
    pub fn id_map(self) -> String {
        format!("0 {} {}\n", self.first, self.length)
    }

    /// The node's id for an id of the pod; `None`: the pod does not have that id.
    pub fn on_node(self, id: u32) -> Option<u32> {
        (id < self.length).then(|| self.first + id)
    }

    /// Whether it is among the node's ids of this block.
    pub fn contains(self, id: u32) -> bool {
        id.checked_sub(self.first).is_some_and(|offset| offset < self.length)
    }

    fn overlaps(self, other: Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.first, self.length)
    }
}

/// The lowest block that overlaps none of those in `used`; `None`: all are used. As kubelet, of all ids but those below the
/// first block.
pub fn allocate(used: &[IdRange]) -> Option<IdRange> {
    let blocks = (IDS_PER_POD..=u32::MAX - (IDS_PER_POD - 1)).step_by(IDS_PER_POD as usize);
    let mut ranges = blocks.map(|first| IdRange { first, length: IDS_PER_POD });
    ranges.find(|range| !used.iter().any(|other| other.overlaps(*range)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u32) -> IdRange {
        IdRange { first: number * IDS_PER_POD, length: IDS_PER_POD }
    }

    #[test]
    fn each_pod_has_the_lowest_free_block() {
        let odd = IdRange { first: IDS_PER_POD + 10, length: IDS_PER_POD };
        for (used, given) in [
            (vec![], 1),
            (vec![block(1)], 2),
            (vec![block(2)], 1),
            (vec![block(3), block(1), block(2)], 4),
            (vec![odd], 3),
        ] {
            assert_eq!(allocate(&used), Some(block(given)), "{used:?}");
        }
        let all: Vec<_> = (1..IDS_PER_POD).map(block).collect();
        assert_eq!(allocate(&all), None);
        assert_eq!(allocate(&all[..all.len() - 1]), Some(block(IDS_PER_POD - 1)));
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        assert_eq!(IdRange::parse(&block(7).to_string()), Some(block(7)));
        for bad in ["", "65536", "0 65536", "65536 0", "4294967295 2", "a b", "65536 65536 1"] {
            assert_eq!(IdRange::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_pods_ids_are_others_on_the_node() {
        let range = block(2);
        assert_eq!((range.on_node(0), range.on_node(65_535)), (Some(131_072), Some(196_607)));
        assert_eq!(range.on_node(65_536), None);
        assert_eq!([131_071, 131_072, 196_607, 196_608].map(|id| range.contains(id)), [false, true, true, false]);
        assert_eq!(range.id_map(), "0 131072 65536\n");
    }
}
