//! Converts other subcommands' output and containers' logs to text for the screen. Pure.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};

use crate::screen::printable;

/// The longest log line in characters; the rest is cut off.
const MAX_LINE_LEN: usize = 1024;

/// Puts a printed line, with the colours of [`crate::screen::Screen::paint`], into a row from column `x` on. Omits
/// the first `left` characters; without `utf8`, shows characters beyond ASCII as `?`.
pub(super) fn put(buffer: &mut Buffer, (x, y): (u16, u16), line: &str, left: usize, utf8: bool) {
    let (mut x, mut skip) = (x, left);
    for (style, text) in spans(line) {
        let skipped = text.chars().take(skip).count();
        skip -= skipped;
        let shown = text.chars().skip(skipped);
        let shown: String = shown.map(|c| if utf8 || c.is_ascii() { c } else { '?' }).collect();
        x = buffer.set_stringn(x, y, shown, usize::from(u16::MAX), style).0;
    }
}

/// The line's parts between its colour codes, which are the only control characters in it.
fn spans(line: &str) -> Vec<(Style, &str)> {
    let mut style = Style::new();
    let mut parts = line.split('\x1b');
    let mut spans = vec![(style, parts.next().unwrap_or_default())];
    for part in parts {
        let (code, text) = part.strip_prefix('[').and_then(|part| part.split_once('m')).unwrap_or(("", part));
        style = match code {
            "31" => Style::new().fg(Color::Red),
            "32" => Style::new().fg(Color::Green),
            "33" => Style::new().fg(Color::Yellow),
            "2" => Style::new().add_modifier(Modifier::DIM),
            _ => Style::new(),
        };
        spans.push((style, text));
    }
    spans
}

/// A log line that is safe to show: without its colours, and with other control characters escaped.
pub(super) fn log_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches(['\r', '\n']);
    let mut parts = text.split("\x1b[");
    let mut line = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(part.len());
        match part[code..].strip_prefix('m') {
            Some(rest) => line.push_str(rest),
            None => {
                line.push_str("\x1b[");
                line.push_str(part);
            }
        }
    }
    let line = line.replace('\t', "    ");
    printable(&line.chars().take(MAX_LINE_LEN).collect::<String>())
}

#[cfg(test)]
mod tests {
    use ratatui_core::layout::Rect;

    use super::*;

    #[test]
    fn log_lines_lose_their_colours_and_can_do_nothing() {
        for (line, shown) in [
            (&b"\x1b[1;32mINFO\x1b[0m ready\r\n"[..], "INFO ready"),
            (b"a\tb\x07", "a    b\\u{7}"),
            (b"\x1b[2Jgone\x1b]0;title", "\\u{1b}[2Jgone\\u{1b}]0;title"),
            (b"\x1b[", "\\u{1b}["),
            ("größer \u{9b}2J".as_bytes(), "größer \\u{9b}2J"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(log_line(line), shown);
        }
        assert_eq!(log_line(&vec![b'x'; 1 << 20]).len(), MAX_LINE_LEN);
    }

    #[test]
    fn printed_lines_keep_their_colours() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 1));
        put(&mut buffer, (2, 0), "web  \x1b[31mErrör\x1b[0m  1", 1, false);
        assert_eq!(buffer[(2, 0)].symbol(), "e");
        assert_eq!((buffer[(6, 0)].symbol(), buffer[(6, 0)].fg), ("E", Color::Red));
        assert_eq!((buffer[(9, 0)].symbol(), buffer[(10, 0)].symbol()), ("?", "r"));
        assert_eq!((buffer[(11, 0)].fg, buffer[(5, 0)].fg), (Color::Reset, Color::Reset));
    }
}
