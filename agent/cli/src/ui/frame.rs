//! Draws the state: a title, the lines of the view, and the keys. Pure.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::paint::Frame;
use super::state::{Link, MIN_FRAMED_LINES, Ui, View};
use super::text::put;
use crate::screen::{Tone, printable};

/// The width of the mark at the selected line of a list.
const MARK_WIDTH: u16 = 2;

/// Draws the current screen.
pub(super) fn frame(ui: &mut Ui) -> Frame {
    ui.settle();
    let (width, height) = ui.size;
    let mut cells = Buffer::empty(Rect::new(0, 0, width, height));
    let page = ui.page();
    let mut top = 0;
    if height >= MIN_FRAMED_LINES {
        put(&mut cells, (0, 0), &title(ui), 0, ui.utf8);
        clock(ui, &mut cells);
        keys(ui, &mut cells);
        top = 1;
    }
    let (margin, marked) = if ui.views.is_empty() { (MARK_WIDTH, ui.at()) } else { (0, None) };
    if let Some(head) = page.head.as_ref().filter(|_| height > 1) {
        put(&mut cells, (margin, top), head, ui.left, ui.utf8);
        top += 1;
    }
    let rows = ui.height_of(page);
    let first = page.first(rows);
    for (y, (number, line)) in (top..).zip(page.lines.iter().enumerate().skip(first).take(rows)) {
        put(&mut cells, (margin, y), line, ui.left, ui.utf8);
        if marked == Some(number) {
            put(&mut cells, (0, y), ">", 0, true);
        }
    }
    if page.lines.is_empty() && rows > 0 {
        put(&mut cells, (0, top), empty(ui), 0, true);
    }
    let body = top..top.saturating_add(u16::try_from(rows).unwrap_or(0));
    Frame { cells, body }
}

fn title(ui: &Ui) -> String {
    if let Link::Away(since, _) = &ui.link {
        return ui.screen.paint(Tone::Bad, &format!("limpet is down since {since:.0}; its pods keep running"));
    }
    let filter = if ui.filter.is_empty() { String::new() } else { format!("  /{}", printable(&ui.filter)) };
    let pod = |(namespace, name): &(String, String)| printable(&format!("{namespace}/{name}"));
    let subject = match ui.views.last() {
        None if ui.filter.is_empty() => format!("pods: {}", ui.pods.len()),
        None => format!("pods: {} of {}{filter}", ui.ids.len(), ui.pods.len()),
        Some(View::Detail(id, _)) => format!("pod {}", pod(id)),
        Some(View::Log(log)) => {
            let which = if log.subject.previous { ", previous instance" } else { "" };
            format!(
                "log of {} {}{which}: {}",
                pod(&log.subject.pod),
                printable(&log.subject.container),
                printable(&log.state)
            )
        }
        Some(View::Events(page)) => format!("events: {}{filter}", page.lines.len()),
        Some(View::Usage(_)) => "usage".to_owned(),
        Some(View::Help(_)) => "keys".to_owned(),
    };
    format!("limpet {}  {subject}", printable(ui.node()))
}

/// Shows when the last update arrived, where the title leaves room.
fn clock(ui: &Ui, cells: &mut Buffer) {
    let time = ui.now.strftime("%H:%M:%SZ").to_string();
    let width = cells.area.width;
    let Some(x) = width.checked_sub(u16::try_from(time.len()).unwrap_or(width)) else { return };
    if (x.saturating_sub(2)..width).all(|x| cells[(x, 0)].symbol() == " ") {
        put(cells, (x, 0), &time, 0, true);
    }
}

fn keys(ui: &Ui, cells: &mut Buffer) {
    let y = cells.area.height - 1;
    let text = match (&ui.link, ui.typing, ui.views.last()) {
        (_, true, _) => format!("/{}_  Enter keep  Esc all", printable(&ui.filter)),
        (Link::Away(_, why), ..) => printable(why),
        (.., None) => "Enter detail  l log  e events  u usage  / filter  ? keys  q quit".to_owned(),
        (.., Some(View::Detail(..))) => "l log  e events  u usage  ? keys  q back".to_owned(),
        (.., Some(View::Log(_))) => "c container  p previous  ? keys  q back".to_owned(),
        (.., Some(View::Events(_))) => "/ filter  u usage  ? keys  q back".to_owned(),
        (.., Some(View::Usage(_))) => "e events  ? keys  q back".to_owned(),
        (.., Some(View::Help(_))) => "q back".to_owned(),
    };
    put(cells, (0, y), &ui.screen.paint(Tone::Faint, &text), 0, ui.utf8);
    // A terminal may scroll once its last cell is written.
    if let Some(last) = cells.cell_mut((cells.area.width.saturating_sub(1), y)) {
        last.reset();
    }
}

/// The text in a view without lines.
fn empty(ui: &Ui) -> &'static str {
    match ui.views.last() {
        None if ui.link == Link::Connecting => "Connecting.",
        None if !ui.filter.is_empty() => "No pod has this text.",
        None => "No pods.",
        Some(View::Events(_)) => "No events.",
        Some(View::Log(_)) => "No lines.",
        Some(_) => "Reading.",
    }
}
