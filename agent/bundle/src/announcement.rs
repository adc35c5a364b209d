//! The first bytes of a bundle: enough to know whether a node needs the rest. They are the signature with its comment, which the
//! holder of the key has signed for itself. What takes effect is decided by the whole bundle alone.

use limpet_core::node_place::NodePlace;
use limpet_signature::PublicKeys;

use crate::decision::AppliedBundle;
use crate::envelope;

/// The number of these bytes.
pub const ANNOUNCEMENT_BYTES: usize = envelope::SIGNED_FROM as usize;
const PREFIX: &str = "limpet bundle ";
const SERIAL: &str = " serial ";
const ROLLOUT: &str = " rollout ";

/// The contents of that comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Name, version and serial, for people.
    pub title: String,
    pub serial: u64,
    /// For how many of the nodes it is, in percent; `None`: for all.
    pub rollout: Option<u8>,
}

/// What the rest of a bundle would lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreseen {
    /// That is not known before it was read.
    Open,
    /// It is for other nodes first.
    Outside(u8),
    /// It is older than what the node has.
    Replayed,
}

impl Announcement {
    /// Reads the first bytes; `None`: none of the keys has signed them, or they say nothing.
    pub fn read(first: &[u8], keys: &PublicKeys) -> Option<Self> {
        let signature = envelope::signature(first.get(..ANNOUNCEMENT_BYTES)?).ok()?;
        Self::parse(keys.signed_comment(&signature)?)
    }

    fn parse(comment: &str) -> Option<Self> {
        let title = comment.strip_prefix(PREFIX)?;
        let (title, rollout) = match title.rsplit_once(ROLLOUT) {
            Some((title, percent)) => (title, Some(percent.parse().ok()?)),
            None => (title, None),
        };
        let (_, serial) = title.rsplit_once(SERIAL)?;
        Some(Self { title: title.to_owned(), serial: serial.parse().ok()?, rollout })
    }

    /// What the rest would lead to on a node at that place that has that bundle. Pure.
    pub fn foresee(&self, applied: Option<&AppliedBundle>, place: NodePlace) -> Foreseen {
        match (applied, self.rollout) {
            (Some(applied), _) if self.serial < applied.serial => Foreseen::Replayed,
            // The same serial may be the same bundle, which only its content says.
            (Some(applied), _) if self.serial == applied.serial => Foreseen::Open,
            (_, Some(percent)) if !place.is_within(percent) => Foreseen::Outside(percent),
            _ => Foreseen::Open,
        }
    }
}

/// The comment of the signature of a bundle.
pub(crate) fn comment(name: &str, version: &str, serial: u64, rollout: Option<u8>) -> String {
    let rollout = rollout.map(|percent| format!("{ROLLOUT}{percent}")).unwrap_or_default();
    format!("{PREFIX}{name} {version}{SERIAL}{serial}{rollout}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_says_serial_and_stage_whatever_the_names_are() {
        for (name, version, rollout) in
            [("plant", "1.4", None), ("a serial 9", "b rollout 3", Some(10)), (" rollout x", "serial", Some(0))]
        {
            let read = Announcement::parse(&comment(name, version, 7, rollout)).unwrap();
            assert_eq!((read.serial, read.rollout), (7, rollout));
            assert_eq!(read.title, format!("{name} {version} serial 7"));
        }
        for text in ["limpet bundle plant 1", "limpet bundle a 1 serial x", "limpet 0.1 file:f", ""] {
            assert_eq!(Announcement::parse(text), None, "{text}");
        }
        // Without a stage, a version that looks like one is no stage.
        assert_eq!(Announcement::parse(&comment("a", "b rollout 3", 7, None)), None);
    }

    #[test]
    fn what_is_older_or_for_others_needs_no_download() {
        let place = NodePlace::new("edge1");
        let inside = (1..=100).find(|percent| place.is_within(*percent)).unwrap();
        let has = |serial| AppliedBundle { name: "a".into(), version: "1".into(), serial, digest: "d".into() };
        let offered = |serial, rollout| Announcement { title: String::new(), serial, rollout };
        for (applied, offered, expected) in [
            (None, offered(1, None), Foreseen::Open),
            (None, offered(1, Some(inside - 1)), Foreseen::Outside(inside - 1)),
            (Some(has(7)), offered(8, Some(inside - 1)), Foreseen::Outside(inside - 1)),
            (Some(has(7)), offered(8, Some(inside)), Foreseen::Open),
            (Some(has(7)), offered(8, None), Foreseen::Open),
            (Some(has(7)), offered(7, Some(0)), Foreseen::Open),
            (Some(has(7)), offered(6, Some(0)), Foreseen::Replayed),
            (Some(has(0)), offered(6, None), Foreseen::Open),
        ] {
            assert_eq!(offered.foresee(applied.as_ref(), place), expected, "{applied:?} {offered:?}");
        }
    }
}
