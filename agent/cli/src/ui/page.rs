//! Lines of which the screen shows a part. Pure.

use super::keys::Key;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScrollPosition {
    /// From this line on.
    From(usize),
    /// The last lines, even as more arrive.
    End,
}

/// Lines and the part of them on the screen.
#[derive(Debug)]
pub(super) struct Page {
    /// Stays above the scrolling lines.
    pub(super) head: Option<String>,
    /// Printable except for colour codes.
    pub(super) lines: Vec<String>,
    pub(super) place: ScrollPosition,
}

impl Page {
    /// An empty page.
    pub(super) fn new(place: ScrollPosition) -> Self {
        Self { head: None, lines: Vec::new(), place }
    }

    /// Shows a table's text: its first line becomes the head.
    pub(super) fn set_table(&mut self, text: &str) {
        let mut lines = text.lines().map(str::to_owned);
        self.head = lines.next();
        self.lines = lines.collect();
    }

    /// Appends lines and drops the first ones beyond `most`; the visible part stays the same.
    pub(super) fn append(&mut self, lines: Vec<String>, most: usize) {
        self.lines.extend(lines);
        let gone = self.lines.len().saturating_sub(most);
        self.lines.drain(..gone);
        if let ScrollPosition::From(first) = &mut self.place {
            *first = first.saturating_sub(gone);
        }
    }

    /// The first visible line if `height` lines fit.
    pub(super) fn first(&self, height: usize) -> usize {
        let last = self.lines.len().saturating_sub(height);
        match self.place {
            ScrollPosition::From(first) => first.min(last),
            ScrollPosition::End => last,
        }
    }

    /// Scrolls by a key. Returns whether the key scrolls.
    pub(super) fn key(&mut self, key: Key, height: usize, follows: bool) -> bool {
        let (first, last) = (self.first(height), self.lines.len().saturating_sub(height));
        let to = match step(key, height) {
            Some(Step::By(lines)) => first.saturating_add_signed(lines).min(last),
            Some(Step::First) => 0,
            Some(Step::Last) => last,
            None => return false,
        };
        self.place = if follows && to == last { ScrollPosition::End } else { ScrollPosition::From(to) };
        true
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    By(isize),
    First,
    Last,
}

/// The scrolling keys, as in `less`.
pub(super) fn step(key: Key, height: usize) -> Option<Step> {
    let page = isize::try_from(height.saturating_sub(1).max(1)).unwrap_or(1);
    Some(match key {
        Key::Up | Key::Char('k') => Step::By(-1),
        Key::Down | Key::Char('j') => Step::By(1),
        Key::PageUp | Key::Control('b') => Step::By(-page),
        Key::PageDown | Key::Char(' ') | Key::Control('f') => Step::By(page),
        Key::Home | Key::Char('g') => Step::First,
        Key::End | Key::Char('G') => Step::Last,
        _ => return None,
    })
}
