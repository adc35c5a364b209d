//! Sets of completion indexes as a Job's status and policies write them: `0-3,5`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of indexes, as ascending intervals that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Indexes(Vec<(u32, u32)>);

impl Indexes {
    /// Reads the form `0-3,5` of indexes below `completions`.
    ///
    /// # Errors
    /// What is wrong with it, in an apiserver's words.
    pub fn parse(text: &str, completions: u32) -> Result<Self, String> {
        let mut intervals: Vec<(u32, u32)> = Vec::new();
        for fragment in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = interval(fragment, completions)?;
            if let Some((_, before)) = intervals.last().filter(|(_, before)| *before >= first) {
                return Err(format!("non-increasing order, previous: {before}, current: {first}"));
            }
            match intervals.last_mut().filter(|(_, before)| *before + 1 == first) {
                Some((_, before)) => *before = last,
                None => intervals.push((first, last)),
            }
        }
        Ok(Self(intervals))
    }

    /// Whether it has the index.
    pub fn has(&self, index: u32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// How many indexes it has.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// How many indexes both sets have.
    pub fn count_common(&self, other: &Self) -> u32 {
        let common = |(first, last): &(u32, u32)| -> u32 {
            let overlaps = other.0.iter().filter_map(|(from, to)| {
                let (begin, end) = (first.max(from), last.min(to));
                (begin <= end).then(|| end - begin + 1)
            });
            overlaps.sum()
        };
        self.0.iter().map(common).sum()
    }

    /// Removes the indexes that are not below `completions`.
    pub fn truncate(&mut self, completions: u32) {
        self.0.retain(|(first, _)| *first < completions);
        if let Some((_, last)) = self.0.last_mut() {
            *last = (*last).min(completions.saturating_sub(1));
        }
    }

    pub fn insert(&mut self, index: u32) {
        if self.has(index) {
            return;
        }
        let at = self.0.partition_point(|(_, last)| *last < index);
        let after = self.0.get(at).copied().filter(|(first, _)| *first == index + 1);
        let before = at.checked_sub(1).filter(|before| self.0[*before].1 + 1 == index);
        match (before, after) {
            (Some(before), Some((_, last))) => {
                self.0[before].1 = last;
                self.0.remove(at);
            }
            (Some(before), None) => self.0[before].1 = index,
            (None, Some(_)) => self.0[at].0 = index,
            (None, None) => self.0.insert(at, (index, index)),
        }
    }

    /// The indexes below `completions` that it lacks, in order.
    pub fn missing(&self, completions: u32) -> impl Iterator<Item = u32> + '_ {
        let ends = self.0.iter().map(|(first, last)| (*first, last.saturating_add(1)));
        ends.chain([(completions, completions)])
            .scan(0, move |next, (first, after)| {
                let gap = *next..first.min(completions);
                *next = after;
                Some(gap)
            })
            .flatten()
    }
}

fn interval(fragment: &str, completions: u32) -> Result<(u32, u32), String> {
    let number = |text: &str| {
        let number: u32 = text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if number < completions { Ok(number) } else { Err(format!("too large index: {text:?}")) }
    };
    match fragment.split('-').collect::<Vec<_>>()[..] {
        [text] => number(text).map(|index| (index, index)),
        [first, last] => match (number(first)?, number(last)?) {
            (first, last) if first < last => Ok((first, last)),
            (first, last) => Err(format!("non-increasing order, previous: {first}, current: {last}")),
        },
        _ => Err(format!(
            "the fragment {fragment:?} violates the requirement that an index interval can have at most two parts \
             separated by '-'"
        )),
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl From<Indexes> for String {
    fn from(indexes: Indexes) -> Self {
        indexes.to_string()
    }
}

impl TryFrom<String> for Indexes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text, u32::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_as_in_a_status() {
        let mut indexes = Indexes::default();
        for index in [5, 0, 2, 1, 9, 8, 3] {
            indexes.insert(index);
            indexes.insert(index);
        }
        assert_eq!((indexes.to_string().as_str(), indexes.count()), ("0-3,5,8,9", 7));
        assert_eq!(Indexes::parse("0-3,5,8,9", 10).unwrap(), indexes);
        assert_eq!((indexes.has(3), indexes.has(4), indexes.has(10)), (true, false, false));
        assert_eq!(indexes.missing(12).collect::<Vec<_>>(), [4, 6, 7, 10, 11]);
        assert_eq!(indexes.missing(5).collect::<Vec<_>>(), [4]);
        assert_eq!(Indexes::default().missing(2).collect::<Vec<_>>(), [0, 1]);
        for (completions, left) in [(12, "0-3,5,8,9"), (9, "0-3,5,8"), (8, "0-3,5"), (3, "0-2"), (0, "")] {
            let mut fewer = indexes.clone();
            fewer.truncate(completions);
            assert_eq!(fewer.to_string(), left, "{completions}");
        }
        assert_eq!(indexes.count_common(&Indexes::parse("3-8", 10).unwrap()), 3);
    }

    #[test]
    fn a_set_that_is_none_says_why() {
        for (text, error) in [
            (
                "1-2-3",
                "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts \
              separated by '-'",
            ),
            ("a", "cannot convert string to integer for index: \"a\""),
            ("0,7", "too large index: \"7\""),
            ("3,1", "non-increasing order, previous: 3, current: 1"),
            ("4-4", "non-increasing order, previous: 4, current: 4"),
            ("", ""),
        ] {
            assert_eq!(Indexes::parse(text, 7).err().unwrap_or_default(), error, "{text}");
        }
    }
}
