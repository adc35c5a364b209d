//! Sets of processors, as the kernel and kubelet write them: `0-3,7`.

use std::collections::BTreeSet;
use std::fmt;

/// A bound on the numbers that are read. No machine has more processors.
const MOST: u32 = 1 << 16;

/// Logical processors, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// `0-3,7`; an empty text is the empty set.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                let number = text.trim().parse::<u32>().ok().filter(|number| *number < MOST);
                number.ok_or_else(|| format!("{part:?} is not a processor such as 3, or a range such as 0-3"))
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("the range {part:?} ends before it begins"));
            }
            all.extend(first..=last);
        }
        Ok(Self(all))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            f.write_str(separator)?;
            if first == last {
                write!(f, "{first}")?
            } else {
                write!(f, "{first}-{last}")?
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Where a logical processor is in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    /// The lowest number of a processor of its core, because the kernel's own numbers of cores are unique only in a
    /// socket.
    pub core: u32,
    /// -1 where the kernel does not know.
    pub socket: i64,
    pub numa_node: u32,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_the_kernel_writes_them() {
        for (text, written) in
            [("", ""), ("0", "0"), ("0-3,7\n", "0-3,7"), ("3,1,2", "1-3"), ("0,1", "0-1"), ("0-0,2-2", "0,2")]
        {
            assert_eq!(CpuSet::parse(text).unwrap().to_string(), written, "{text:?}");
        }
        for text in ["a", "1.3", "0-", "-1", "3-1", "0,,1", "0-4000000000"] {
            assert!(CpuSet::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sets_are_combined() {
        let [some, others] = ["0-3", "2-5"].map(|text| CpuSet::parse(text).unwrap());
        assert_eq!(some.union(&others).to_string(), "0-5");
        assert_eq!(some.intersection(&others).to_string(), "2-3");
        assert_eq!(some.difference(&others).to_string(), "0-1");
        assert!(some.intersection(&others).is_subset(&some) && !some.is_subset(&others));
        assert!(some.contains(3) && !some.contains(4) && some.len() == 4);
    }
}
