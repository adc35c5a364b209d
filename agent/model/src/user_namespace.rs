//! The ids of pods with their own user namespaces (`hostUsers: false`): which block of the node's ids each has.

use std::fmt;

/// How many ids a pod has, as in kubelet. No pod has the first block, which has the node's own users.
pub const IDS_PER_POD: u32 = 65_536;

/// A block of the node's user and group ids. A pod's processes see them as ids from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdRange {
    /// The pod's root on the node.
    pub first: u32,
    pub length: u32,
}

impl IdRange {
    /// Parses the text of [`fmt::Display`]; `None` if it is not a range that a pod may have.
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

    /// The node's id for an id of the pod; `None` if the pod does not have that id.
    pub fn on_node(self, id: u32) -> Option<u32> {
        (id < self.length).then(|| self.first + id)
    }

    /// Whether the node's id is in this block.
    pub fn contains(self, id: u32) -> bool {
        id.checked_sub(self.first).is_some_and(|offset| offset < self.length)
    }

    fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.length)
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.first, self.length)
    }
}

/// The name of the user whose subordinate ids are for pods, as in kubelet.
const OWNER: &str = "kubelet";

/// The node's ids that pods may have, by `/etc/subuid` and `/etc/subgid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubordinateIds {
    /// The first id, and the end, which is not included.
    bounds: (u64, u64),
    /// The blocks of other users in between, by their first id.
    others: Vec<IdRange>,
}

/// The entries of user `kubelet` cannot be used; kubelet's conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubordinateIdsError {
    /// The two files differ.
    #[error("/etc/subuid and /etc/subgid have different entries of user kubelet; write the same one into both")]
    Differ,
    /// The user has several entries.
    #[error("/etc/subuid has several entries of user kubelet; keep one")]
    Several,
    /// The entry does not consist of blocks.
    #[error(
        "the entry of user kubelet in /etc/subuid does not consist of blocks of {IDS_PER_POD} ids; give it a first id and a \
         count that are multiples of {IDS_PER_POD}, such as kubelet:65536:7208960"
    )]
    NoBlocks,
}

impl SubordinateIds {
    /// Parses both files. If they have an entry of user `kubelet`, its ids are for pods. Otherwise all are, as in
    /// kubelet, except the first block and those of the users in the files. Lines that are not entries are ignored.
    ///
    /// # Errors
    ///
    /// The entry of `kubelet` cannot be used.
    pub fn parse(subuid: &str, subgid: &str) -> Result<Self, SubordinateIdsError> {
        let of_kubelet =
            |text| entries(text).filter(|(name, _)| *name == OWNER).map(|(_, ids)| ids).collect::<Vec<_>>();
        let (users, groups) = (of_kubelet(subuid), of_kubelet(subgid));
        let bounds = match &users[..] {
            _ if users != groups => return Err(SubordinateIdsError::Differ),
            [] => (u64::from(IDS_PER_POD), u64::from(u32::MAX) + 1),
            [ids] => {
                let is_block = |number: u32| number >= IDS_PER_POD && number.is_multiple_of(IDS_PER_POD);
                if !is_block(ids.first) || !is_block(ids.length) {
                    return Err(SubordinateIdsError::NoBlocks);
                }
                (u64::from(ids.first), ids.end())
            }
            _ => return Err(SubordinateIdsError::Several),
        };
        let others = entries(subuid).chain(entries(subgid)).filter(|(name, _)| *name != OWNER);
        let mut others: Vec<IdRange> = others.map(|(_, ids)| ids).collect();
        others.sort_unstable_by_key(|ids| ids.first);
        Ok(Self { bounds, others })
    }
}

/// The entries of a file of subordinate ids: `name:first:count`.
fn entries(text: &str) -> impl Iterator<Item = (&str, IdRange)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (name, first, length) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, length) = (first.parse().ok()?, length.parse().ok()?);
        Some((name, IdRange { first, length })).filter(|_| length > 0)
    })
}

/// The lowest block of `ids` that overlaps none of those in `used`; `None` if all are used.
pub fn allocate(used: &[IdRange], ids: &SubordinateIds) -> Option<IdRange> {
    let mut used = used.to_vec();
    used.sort_unstable_by_key(|range| range.first);
    let length = u64::from(IDS_PER_POD);
    let (mut first, end) = ids.bounds;
    // Each pass moves behind what overlaps; a block that neither moves is free.
    loop {
        let before = first;
        first = behind(first, &used);
        first = behind(first, &ids.others);
        if first + length > end {
            return None;
        }
        if first == before {
            return Some(IdRange { first: u32::try_from(first).ok()?, length: IDS_PER_POD });
        }
    }
}

/// The lowest first id of a block from `first` on that overlaps none of the ranges, which are in order.
fn behind(mut first: u64, ranges: &[IdRange]) -> u64 {
    let length = u64::from(IDS_PER_POD);
    for range in ranges {
        if u64::from(range.first) < first + length && range.end() > first {
            first = range.end().next_multiple_of(length);
        }
    }
    first
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
            assert_eq!(allocate(&used, &SubordinateIds::parse("", "").unwrap()), Some(block(given)), "{used:?}");
        }
        let (all, ids): (Vec<_>, _) = ((1..IDS_PER_POD).map(block).collect(), SubordinateIds::parse("", "").unwrap());
        assert_eq!(allocate(&all, &ids), None);
        assert_eq!(allocate(&all[..all.len() - 1], &ids), Some(block(IDS_PER_POD - 1)));
    }

    #[test]
    fn ids_of_other_users_are_left_to_them() {
        let debian = "me:100000:65536\nyou:165536:65536\n# comment\nbroken:1\n";
        for (subuid, subgid, used, given) in [
            (debian, "", vec![], Some(4)),
            ("", debian, vec![], Some(4)),
            (debian, debian, vec![block(4)], Some(5)),
            ("me:65536:65536", "you:131072:1", vec![], Some(3)),
            ("me:131072:4294836224", "", vec![], Some(1)),
            ("me:131072:4294836224", "", vec![block(1)], None),
            ("me:300000:10\nyou:65536:200000", "", vec![], Some(5)),
        ] {
            let ids = SubordinateIds::parse(subuid, subgid).unwrap();
            assert_eq!(allocate(&used, &ids), given.map(block), "{subuid} {subgid} {used:?}");
        }
    }

    #[test]
    fn the_entry_of_kubelet_has_the_ids_of_pods() {
        let entry = "me:100000:65536\nkubelet:196608:131072\n";
        let ids = SubordinateIds::parse(entry, entry).unwrap();
        assert_eq!(allocate(&[], &ids), Some(block(3)));
        assert_eq!(allocate(&[block(3)], &ids), Some(block(4)));
        assert_eq!(allocate(&[block(3), block(4)], &ids), None);
        for (subuid, subgid, error) in [
            (entry, "", SubordinateIdsError::Differ),
            (entry, "kubelet:65536:131072", SubordinateIdsError::Differ),
            (
                "kubelet:65536:65536\nkubelet:196608:65536",
                "kubelet:65536:65536\nkubelet:196608:65536",
                SubordinateIdsError::Several,
            ),
            ("kubelet:100000:65536", "kubelet:100000:65536", SubordinateIdsError::NoBlocks),
            ("kubelet:65536:65535", "kubelet:65536:65535", SubordinateIdsError::NoBlocks),
            ("kubelet:0:65536", "kubelet:0:65536", SubordinateIdsError::NoBlocks),
        ] {
            assert_eq!(SubordinateIds::parse(subuid, subgid), Err(error), "{subuid} {subgid}");
        }
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
