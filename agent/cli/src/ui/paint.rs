//! Computes the terminal output: the fewest bytes that turn one screen into the next, in sequences that a VT100
//! supports. Pure.

use std::ops::Range;

use ratatui_core::buffer::{Buffer, Cell, CellWidth as _};
use ratatui_core::style::{Color, Modifier};

pub(super) const CLEAR: &[u8] = b"\x1b[H\x1b[J";
/// A gap of up to this many equal cells is rewritten, since moving the cursor would take as many bytes.
const MAX_REWRITTEN_GAP: u16 = 4;
/// The fewest cells that scrolling has to save.
const MIN_SCROLL_SAVING: usize = 48;

#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) cells: Buffer,
    /// The rows that scroll.
    pub(super) body: Range<u16>,
}

/// The bytes that turn a terminal that shows `before` into one that shows `after`. Without `before`, or if the sizes
/// differ, the screen is cleared first.
pub(super) fn bytes(before: Option<&Frame>, after: &Frame) -> Vec<u8> {
    let mut pen = Pen::default();
    let mut shown = match before.filter(|before| before.cells.area == after.cells.area) {
        Some(before) => before.cells.clone(),
        None => {
            pen.bytes.extend(CLEAR);
            pen.at = Some((0, 0));
            Buffer::empty(after.cells.area)
        }
    };
    if let Some(lines) = scrolled(&shown, after) {
        pen.scroll(&after.body, lines);
        shown = shifted(&shown, &after.body, lines);
    }
    for y in 0..after.cells.area.height {
        pen.row(&shown, &after.cells, y);
    }
    pen.style(DEFAULT);
    pen.bytes
}

/// The lines by which the body moved up (positive) or down, if scrolling the terminal saves much.
fn scrolled(before: &Buffer, after: &Frame) -> Option<i32> {
    let body = &after.body;
    let height = i32::from(body.end.saturating_sub(body.start));
    let equal = |lines: i32| -> usize {
        let rows = body.clone().filter_map(|y| {
            let from = u16::try_from(i32::from(y) + lines).ok().filter(|from| body.contains(from))?;
            Some((from, y))
        });
        let same = |x: u16, from: u16, y: u16| {
            let (old, new) = (&before[(x, from)], &after.cells[(x, y)]);
            old == new && !is_blank(new)
        };
        rows.map(|(from, y)| (0..after.cells.area.width).filter(|x| same(*x, from, y)).count()).sum()
    };
    let unmoved = equal(0);
    let moved = (1..height).flat_map(|lines| [lines, -lines]).map(|lines| (equal(lines), lines));
    let (best, lines) = moved.max_by_key(|(equal, lines)| (*equal, -lines.abs()))?;
    (best >= unmoved + MIN_SCROLL_SAVING).then_some(lines)
}

fn shifted(before: &Buffer, body: &Range<u16>, lines: i32) -> Buffer {
    let mut after = before.clone();
    for y in body.clone() {
        let from = u16::try_from(i32::from(y) + lines).ok().filter(|from| body.contains(from));
        for x in 0..before.area.width {
            after[(x, y)] = from.map_or(Cell::EMPTY, |from| before[(x, from)].clone());
        }
    }
    after
}

type Look = (Color, Modifier);

const DEFAULT: Look = (Color::Reset, Modifier::empty());

fn look(cell: &Cell) -> Look {
    (cell.fg, cell.modifier)
}

/// A blank looks the same in any colour.
fn is_blank(cell: &Cell) -> bool {
    cell.symbol() == " " && !cell.modifier.contains(Modifier::REVERSED)
}

fn same(left: &Cell, other: &Cell) -> bool {
    left == other || (is_blank(left) && is_blank(other))
}

/// The row's length without the blanks at its end.
fn length(buffer: &Buffer, y: u16) -> u16 {
    (0..buffer.area.width)
        .rev()
        .find(|x| !is_blank(&buffer[(*x, y)]))
        .map_or(0, |last| last + buffer[(last, y)].cell_width().max(1))
}

/// Whether each of the row's cells is certain to take one column.
fn is_plain(buffer: &Buffer, y: u16) -> bool {
    (0..buffer.area.width).all(|x| buffer[(x, y)].symbol().is_ascii())
}

/// The terminal's cursor and colour after the bytes so far.
#[derive(Debug, Default)]
struct Pen {
    bytes: Vec<u8>,
    at: Option<(u16, u16)>,
    look: Option<Look>,
}

impl Pen {
    fn row(&mut self, before: &Buffer, after: &Buffer, y: u16) {
        let (end, old_end) = (length(after, y), length(before, y));
        let differs = |x: u16| !same(&before[(x, y)], &after[(x, y)]);
        let plain = is_plain(before, y) && is_plain(after, y);
        let (mut x, mut whole) = (0, false);
        while x < end {
            if !whole && !differs(x) {
                x += 1;
                continue;
            }
            // If a character is wide, the rest of the row is sent, because half of a wide character must not remain.
            whole = !plain;
            self.go(after, x, y);
            let cell = &after[(x, y)];
            if !is_blank(cell) {
                self.style(look(cell));
            } else if self.is_reversed() {
                self.style(DEFAULT);
            }
            self.bytes.extend(cell.symbol().as_bytes());
            x += cell.cell_width().max(1);
            // Terminals differ in the position of the cursor after the last column.
            self.at = (x < after.area.width).then_some((x, y));
        }
        if old_end > end || (whole && old_end >= end && end < after.area.width) {
            self.go(after, end, y);
            if self.is_reversed() {
                self.style(DEFAULT);
            }
            self.bytes.extend(b"\x1b[K");
        }
    }

    fn is_reversed(&self) -> bool {
        self.look.is_some_and(|(_, modifier)| modifier.contains(Modifier::REVERSED))
    }

    /// Moves the cursor with the fewest bytes; the cells in between are already correct.
    fn go(&mut self, after: &Buffer, x: u16, y: u16) {
        if self.at == Some((x, y)) {
            return;
        }
        let current = self.look.unwrap_or(DEFAULT);
        let sent_again = |from: u16| -> Option<Vec<u8>> {
            let cells = (from..x).map(|x| &after[(x, y)]);
            let fits = |cell: &&Cell| cell.symbol().is_ascii() && (is_blank(cell) || look(cell) == current);
            let short = x.checked_sub(from).is_some_and(|gap| gap <= MAX_REWRITTEN_GAP) && !self.is_reversed();
            let all = short && cells.clone().all(|cell| fits(&cell));
            all.then(|| cells.flat_map(|cell| cell.symbol().bytes()).collect())
        };
        let bytes = match self.at {
            Some((from, row)) if row == y && from < x => sent_again(from).unwrap_or_else(|| match x - from {
                1 => b"\x1b[C".to_vec(),
                columns => format!("\x1b[{columns}C").into_bytes(),
            }),
            Some((_, row)) if row + 1 == y && sent_again(0).is_some() => {
                [b"\r\n".to_vec(), sent_again(0).unwrap_or_default()].concat()
            }
            _ if x == 0 => format!("\x1b[{}H", y + 1).into_bytes(),
            _ => format!("\x1b[{};{}H", y + 1, x + 1).into_bytes(),
        };
        self.bytes.extend(bytes);
        self.at = Some((x, y));
    }

    fn style(&mut self, new: Look) {
        let current = self.look.unwrap_or(DEFAULT);
        if new == current {
            return;
        }
        let color = match new.0 {
            Color::Red => Some("31"),
            Color::Green => Some("32"),
            Color::Yellow => Some("33"),
            _ => None,
        };
        let dim = new.1.contains(Modifier::DIM).then_some("2");
        let reversed = new.1.contains(Modifier::REVERSED).then_some("7");
        let reset = (current != DEFAULT && new != DEFAULT).then_some("0");
        let codes: Vec<&str> = [reset, color, dim, reversed].into_iter().flatten().collect();
        self.bytes.extend(format!("\x1b[{}m", codes.join(";")).bytes());
        self.look = Some(new);
    }

    /// Has the terminal scroll the body's rows; new rows are blank.
    fn scroll(&mut self, body: &Range<u16>, lines: i32) {
        let (top, bottom) = (body.start + 1, body.end);
        let (row, step): (u16, &[u8]) = if lines > 0 { (bottom, b"\n") } else { (top, b"\x1bM") };
        self.bytes.extend(format!("\x1b[{top};{bottom}r\x1b[{row}H").bytes());
        (0..lines.unsigned_abs()).for_each(|_| self.bytes.extend(step));
        self.bytes.extend(b"\x1b[r");
        self.at = None;
    }
}

#[cfg(test)]
mod tests;
