#![allow(clippy::unwrap_used)]

use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::*;

fn frame(width: u16, height: u16, lines: &[&str]) -> Frame {
    let mut cells = Buffer::empty(Rect::new(0, 0, width, height));
    for (y, line) in (0..height).zip(lines) {
        cells.set_string(0, y, line, Style::new());
    }
    Frame { cells, body: 1..height - 1 }
}

fn emulator(width: u16, height: u16) -> vt100::Parser {
    let sized = |number| std::num::NonZero::new(number).unwrap();
    vt100::Parser::new(sized(height), sized(width), 0)
}

/// What a terminal shows: characters and colours.
fn shown(terminal: &vt100::Parser) -> Vec<(String, vt100::Color)> {
    let (height, width) = terminal.screen().size();
    let (height, width) = (height.get(), width.get());
    let cells = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    let cell = |(y, x): (u16, u16)| {
        let cell = terminal.screen().cell(y, x).map(|cell| (cell.contents().to_owned(), cell.fgcolor()));
        let (text, color) = cell.unwrap_or_default();
        match text.trim().is_empty() {
            true => (String::new(), vt100::Color::Default),
            false => (text, color),
        }
    };
    cells.map(cell).collect()
}

/// Sends the difference. The terminal must then show the same as a cleared one. Returns the number of bytes.
fn turns(terminal: &mut vt100::Parser, before: Option<&Frame>, after: &Frame) -> usize {
    let sent = bytes(before, after);
    terminal.process(&sent);
    let mut fresh = emulator(after.cells.area.width, after.cells.area.height);
    fresh.process(&bytes(None, after));
    assert_eq!(shown(terminal), shown(&fresh), "{:?}", String::from_utf8_lossy(&sent));
    sent.len()
}

#[test]
fn nothing_is_sent_for_nothing() {
    let same = frame(20, 4, &["title", "a", "b", "keys"]);
    assert_eq!(bytes(Some(&same), &same.clone()), b"");
}

#[test]
fn only_what_changed_is_sent() {
    let before = frame(40, 4, &["title", "> web   Running   1", "  db    Running   0", "keys"]);
    let after = frame(40, 4, &["title", "  web   Running   1", "> db    Running   0", "keys"]);
    assert_eq!(String::from_utf8(bytes(Some(&before), &after)).unwrap_or_default(), "\x1b[2H \r\n>");
    let shorter = frame(40, 4, &["title", "> web   Error", "  db    Running   0", "keys"]);
    assert_eq!(String::from_utf8(bytes(Some(&before), &shorter)).unwrap_or_default(), "\x1b[2;9HError\x1b[K");
}

#[test]
fn a_line_more_scrolls_the_rows_of_the_body() {
    let lines: Vec<String> = (0..40).map(|number| format!("{number} a line of a log that is long enough")).collect();
    let window = |from: usize| {
        let rows = ["title"].into_iter().chain(lines[from..from + 10].iter().map(String::as_str)).chain(["keys"]);
        frame(60, 12, &rows.collect::<Vec<_>>())
    };
    let mut terminal = emulator(60, 12);
    turns(&mut terminal, None, &window(0));
    let up = turns(&mut terminal, Some(&window(0)), &window(1));
    assert!(up < 80, "{up} bytes");
    let down = turns(&mut terminal, Some(&window(1)), &window(0));
    assert!(down < 80, "{down} bytes");
    turns(&mut terminal, Some(&window(0)), &window(25));
}

#[test]
fn any_screen_turns_into_any_other() {
    let mut random = fastrand::Rng::with_seed(18);
    for _ in 0..300 {
        let (width, height) = (random.u16(2..30), random.u16(3..9));
        let mut terminal = emulator(width, height);
        let mut before: Option<Frame> = None;
        for _ in 0..8 {
            let mut after = before.clone().unwrap_or_else(|| frame(width, height, &[]));
            for _ in 0..random.usize(0..12) {
                let (x, y) = (random.u16(0..width), random.u16(0..height));
                let color = [Color::Reset, Color::Red, Color::Green][random.usize(0..3)];
                let text = ["", "a", "bb ", "      ", "größe", "語", "x語y"][random.usize(0..7)];
                after.cells.set_string(x, y, text, Style::new().fg(color));
            }
            // The last cell stays untouched, because writing it makes some terminals scroll.
            after.cells[(width - 1, height - 1)].reset();
            if after.cells[(width - 2, height - 1)].cell_width() > 1 {
                after.cells[(width - 2, height - 1)].reset();
            }
            // A frame must not contain half of a wide character.
            whole(&mut after.cells);
            turns(&mut terminal, before.as_ref(), &after);
            before = Some(after);
        }
    }
}

fn whole(cells: &mut Buffer) {
    for y in 0..cells.area.height {
        for x in 0..cells.area.width {
            if cells[(x, y)].cell_width() > 1 {
                let at = if x + 1 < cells.area.width { x + 1 } else { x };
                cells[(at, y)].reset();
            }
        }
    }
}
