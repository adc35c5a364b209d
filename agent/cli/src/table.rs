//! Tables in kubectl's format: aligned columns, no trailing spaces.

use super::screen::{Screen, Tone, printable};

/// Spaces between columns.
const COLUMN_GAP: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) tone: Tone,
}

impl Cell {
    pub(super) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: printable(&text.into()), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// A table that remembers its column widths, so that later rows align with the first ones.
#[derive(Debug)]
pub(super) struct Table {
    header: Vec<&'static str>,
    widths: Vec<usize>,
    header_shown: bool,
}

impl Table {
    pub(super) fn new(header: Vec<&'static str>) -> Self {
        let widths = header.iter().map(|title| title.chars().count()).collect();
        Self { header, widths, header_shown: false }
    }

    /// The rows as text, always below the header: a complete screen.
    pub(super) fn page(&mut self, screen: &Screen, rows: &[Vec<Cell>]) -> String {
        self.header_shown = false;
        self.render(screen, rows)
    }

    /// The rows as text, below the header unless it was already printed. Columns only ever grow.
    pub(super) fn render(&mut self, screen: &Screen, rows: &[Vec<Cell>]) -> String {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        let mut text = String::new();
        if !self.header_shown {
            self.header_shown = true;
            let header: Vec<Cell> = self.header.iter().map(|title| Cell::from(*title)).collect();
            self.line(screen, &header, &mut text);
        }
        for row in rows {
            self.line(screen, row, &mut text);
        }
        text
    }

    fn line(&self, screen: &Screen, cells: &[Cell], text: &mut String) {
        let last = cells.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
        for (cell, width) in cells.iter().zip(&self.widths).take(last) {
            text.push_str(&screen.paint(cell.tone, &cell.text));
            // Pads by the width of the text without its colour codes.
            text.extend(std::iter::repeat_n(' ', width + COLUMN_GAP - cell.text.chars().count()));
        }
        if let Some(cell) = cells.get(last) {
            text.push_str(&screen.paint(cell.tone, &cell.text));
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_with_and_without_colour() {
        let rows = [
            vec![Cell::from("web"), Cell::toned("Running", Tone::Good), Cell::from("fine")],
            vec![Cell::from("größer"), Cell::toned("Err\x1b", Tone::Bad), Cell::default()],
        ];
        let plain = Screen { color: false, quiet: false };
        let mut table = Table::new(vec!["NAME", "STATUS", "NOTE"]);
        assert_eq!(
            table.render(&plain, &rows),
            "NAME     STATUS      NOTE\n\
             web      Running     fine\n\
             größer   Err\\u{1b}\n"
        );
        assert_eq!(table.render(&plain, &rows[..1]), "web      Running     fine\n", "later rows keep the widths");
        let coloured = Screen { color: true, quiet: false };
        assert_eq!(table.render(&coloured, &rows[..1]), "web      \x1b[32mRunning\x1b[0m     fine\n");
    }
}
