//! The state of `limpet ui`: updates and keys change it, [`super::frame`] draws it. Pure, with the time as an argument.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;

use super::feed::{DetailOf, EventsOf, Feed, PodId, Subscriptions};
use super::keys::Key;
use super::page::{Page, ScrollPosition, Step, step};
use super::{help, log, usage};
use crate::pods::{self, Listing};
use crate::screen::Screen;
use crate::{describe, events};
use limpet_wire::pods::{PodChange, PodEntry};

const MAX_EVENTS: usize = 1000;
/// A screen with fewer lines has neither a title nor a line of keys.
pub(super) const MIN_FRAMED_LINES: u16 = 5;
/// The longest filter in characters.
const MAX_FILTER_LEN: usize = 40;
/// How far the left and right arrows scroll, in columns.
const SIDE_SCROLL_STEP: usize = 16;

/// An action beyond drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Quit,
    /// Restore the terminal and stop, until the shell sends SIGCONT.
    Suspend,
    /// Draw everything again.
    Redraw,
}

/// The connection to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// The agent has not answered yet.
    Connecting,
    /// The agent answers.
    Up,
    /// The agent has not answered since then, with the reason.
    Away(Timestamp, String),
}

/// A screen above the pods.
#[derive(Debug)]
pub(super) enum View {
    Detail(PodId, Page),
    Log(log::LogView),
    Events(Page),
    Usage(Page),
    Help(Page),
}

impl View {
    fn page(&mut self) -> &mut Page {
        match self {
            Self::Detail(_, page) | Self::Events(page) | Self::Usage(page) | Self::Help(page) => page,
            Self::Log(log) => &mut log.page,
        }
    }
}

#[derive(Debug)]
pub(super) struct Ui {
    pub(super) screen: Screen,
    pub(super) utf8: bool,
    /// In columns and lines.
    pub(super) size: (u16, u16),
    /// When the last update arrived: ages are relative to it, so that nothing has to be redrawn as time passes.
    pub(super) now: Timestamp,
    pub(super) link: Link,
    epoch: u64,
    pub(super) pods: BTreeMap<PodId, PodEntry>,
    listing: Option<Listing>,
    /// The pods that match the filter, as lines.
    pub(super) list: Page,
    pub(super) ids: Vec<PodId>,
    pub(super) selected: Option<PodId>,
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) typing: bool,
    pub(super) views: Vec<View>,
    events: Vec<Event>,
    events_of: Option<EventsOf>,
    /// How often the described pod has changed.
    revision: u64,
    /// The number of characters that are scrolled out at the left.
    pub(super) left: usize,
    stale: bool,
}

impl Ui {
    pub(super) fn new(screen: Screen, utf8: bool, size: (u16, u16), now: Timestamp) -> Self {
        Self {
            screen,
            utf8,
            size,
            now,
            link: Link::Connecting,
            epoch: 0,
            pods: BTreeMap::new(),
            listing: None,
            list: Page::new(ScrollPosition::From(0)),
            ids: Vec::new(),
            selected: None,
            filter: String::new(),
            typing: false,
            views: Vec::new(),
            events: Vec::new(),
            events_of: None,
            revision: 0,
            left: 0,
            stale: true,
        }
    }

    /// The node's name, as its pods have it.
    pub(super) fn node(&self) -> &str {
        self.pods.values().find_map(|entry| entry.pod.spec.as_ref()?.node_name.as_deref()).unwrap_or_default()
    }

    /// The data that the screen needs from the agent.
    pub(super) fn wanted(&self) -> Subscriptions {
        if self.link != Link::Up {
            return Subscriptions::default();
        }
        let epoch = self.epoch;
        let events = |pod: Option<PodId>| Some(EventsOf { epoch, pod });
        match self.views.last() {
            Some(View::Detail(pod, _)) => Subscriptions {
                detail: Some((DetailOf { epoch, pod: pod.clone() }, self.revision)),
                events: events(Some(pod.clone())),
                ..Subscriptions::default()
            },
            Some(View::Log(log)) => Subscriptions { log: Some(log.subject.clone()), ..Subscriptions::default() },
            Some(View::Events(_)) => Subscriptions { events: events(None), ..Subscriptions::default() },
            Some(View::Usage(_)) => Subscriptions { usage: Some(epoch), ..Subscriptions::default() },
            Some(View::Help(_)) | None => Subscriptions::default(),
        }
    }

    /// Applies an update from the agent.
    pub(super) fn news(&mut self, feed: Feed, now: Timestamp) {
        match feed {
            Feed::Pod(change) => self.pod(change, now),
            Feed::Away(why) => {
                self.link = Link::Away(now, why);
                self.now = now;
            }
            Feed::Event(subject, event) => self.event(subject, *event, now),
            Feed::Detail(subject, document) => {
                let Some(View::Detail(pod, page)) = self.views.last_mut() else { return };
                if subject.pod != *pod || subject.epoch != self.epoch {
                    return;
                }
                let text = match document {
                    Ok(document) => describe::render(&document, &self.screen, now),
                    // A pod that has ended is still worth reading.
                    Err(why) if page.lines.is_empty() => why,
                    Err(_) => return,
                };
                page.lines = text.lines().map(str::to_owned).collect();
                self.now = now;
            }
            Feed::Log(subject, lines) => {
                if let Some(View::Log(log)) = self.views.last_mut()
                    && log.subject == subject
                {
                    log.lines(lines);
                    self.now = now;
                }
            }
            Feed::LogEnd(subject, why) => {
                if let Some(View::Log(log)) = self.views.last_mut()
                    && log.subject == subject
                {
                    log.state = why;
                }
            }
            Feed::Usage(figures) => {
                let Some(View::Usage(page)) = self.views.last_mut() else { return };
                let text = figures.map_or_else(|why| why, |figures| usage::page(&figures, &self.screen));
                page.lines = text.lines().map(str::to_owned).collect();
                self.now = now;
            }
        }
    }

    fn pod(&mut self, change: PodChange, now: Timestamp) {
        let id = |entry: &PodEntry| (pods::namespace(entry).to_owned(), pods::name(entry).to_owned());
        let changed = match change {
            PodChange::Synced => {
                (self.link, self.epoch) = (Link::Up, self.epoch + 1);
                (self.listing, self.stale, self.now) = (Some(Listing::new(self.pods.values())), true, now);
                self.follow_log();
                return;
            }
            // The agent first sends all its pods.
            PodChange::Added(_) if self.link != Link::Up && self.listing.is_some() => {
                (self.pods, self.listing) = (BTreeMap::new(), None);
                return self.pod(change, now);
            }
            PodChange::Added(entry) | PodChange::Modified(entry) => {
                let id = id(&entry);
                self.pods.insert(id.clone(), *entry);
                id
            }
            PodChange::Deleted(entry) => {
                let id = id(&entry);
                self.pods.remove(&id);
                id
            }
        };
        (self.stale, self.now) = (true, now);
        if matches!(self.views.last(), Some(View::Detail(shown, _)) if *shown == changed) {
            self.revision += 1;
        }
        self.follow_log();
    }

    /// Each instance of the container has its own log.
    fn follow_log(&mut self) {
        let epoch = self.epoch;
        if let Some(View::Log(log)) = self.views.last_mut() {
            log.follow(epoch, self.pods.get(&log.subject.pod));
        }
    }

    fn event(&mut self, subject: EventsOf, event: Event, now: Timestamp) {
        if self.wanted().events.as_ref() != Some(&subject) {
            return;
        }
        self.now = now;
        if subject.pod.is_some() {
            self.revision += 1;
            return;
        }
        if self.events_of.as_ref() != Some(&subject) {
            self.events.clear();
            self.events_of = Some(subject);
        }
        let same = |known: &Event| {
            (&known.involved_object, &known.reason, &known.message)
                == (&event.involved_object, &event.reason, &event.message)
        };
        self.events.retain(|known| !same(known));
        self.events.push(event);
        let gone = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..gone);
        self.stale = true;
    }

    /// Applies a typed key.
    pub(super) fn key(&mut self, key: Key) -> Option<Order> {
        match key {
            Key::Control('c') => return Some(Order::Quit),
            Key::Control('z') => return Some(Order::Suspend),
            Key::Control('l') => return Some(Order::Redraw),
            _ if self.typing => self.type_filter(key),
            Key::Left => self.left = self.left.saturating_sub(SIDE_SCROLL_STEP),
            Key::Right => self.left = (self.left + SIDE_SCROLL_STEP).min(SIDE_SCROLL_STEP * 64),
            Key::Char('q') if self.views.is_empty() => return Some(Order::Quit),
            Key::Char('q') | Key::Escape => self.back(),
            Key::Char('?') if !matches!(self.views.last(), Some(View::Help(_))) => {
                let mut page = Page::new(ScrollPosition::From(0));
                page.lines = help::lines();
                self.open(View::Help(page));
            }
            Key::Char('e') if !matches!(self.views.last(), Some(View::Events(_))) => {
                self.events_of = None;
                self.open(View::Events(Page::new(ScrollPosition::End)));
            }
            Key::Char('u' | 't') if !matches!(self.views.last(), Some(View::Usage(_))) => {
                self.open(View::Usage(Page::new(ScrollPosition::From(0))));
            }
            Key::Char('l') if matches!(self.views.last(), None | Some(View::Detail(..))) => self.open_log(),
            Key::Char('/') if matches!(self.views.last(), None | Some(View::Events(_))) => self.typing = true,
            _ => self.in_view(key),
        }
        None
    }

    fn in_view(&mut self, key: Key) {
        let height = self.height();
        let epoch = self.epoch;
        match self.views.last_mut() {
            None => match (key, step(key, height)) {
                (Key::Enter, _) => {
                    if let Some(pod) = self.selected.clone() {
                        self.open(View::Detail(pod, Page::new(ScrollPosition::From(0))));
                    }
                }
                (_, Some(step)) => self.select(step),
                _ => {}
            },
            Some(View::Log(log)) => match key {
                Key::Char('c') => log.next_container(epoch, self.pods.get(&log.subject.pod)),
                Key::Char('p') => log.toggle_previous(epoch, self.pods.get(&log.subject.pod)),
                _ => drop(log.page.key(key, height, true)),
            },
            Some(View::Events(page)) => drop(page.key(key, height, true)),
            Some(view) => drop(view.page().key(key, height, false)),
        }
    }

    fn open(&mut self, view: View) {
        // Each kind of view is open at most once, so an open one is moved to the top.
        self.views.retain(|open| std::mem::discriminant(open) != std::mem::discriminant(&view));
        self.views.push(view);
        self.enter();
    }

    fn back(&mut self) {
        if self.views.pop().is_none() && !self.filter.is_empty() {
            self.filter.clear();
        }
        self.enter();
    }

    /// Resets the scrolling for a new view.
    fn enter(&mut self) {
        (self.left, self.stale) = (0, true);
        if let Some(View::Detail(..)) = self.views.last() {
            self.revision += 1;
        }
        self.follow_log();
    }

    fn open_log(&mut self) {
        let pod = match self.views.last() {
            Some(View::Detail(pod, _)) => Some(pod.clone()),
            _ => self.selected.clone(),
        };
        if let Some(entry) = pod.as_ref().and_then(|pod| self.pods.get(pod))
            && let Some(view) = log::LogView::new(self.epoch, pod.clone().unwrap_or_default(), entry)
        {
            self.open(View::Log(view));
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) if self.filter.chars().count() < MAX_FILTER_LEN => self.filter.push(c),
            _ => {}
        }
        self.stale = true;
    }

    fn select(&mut self, step: Step) {
        let last = self.ids.len().saturating_sub(1);
        let at = self.at().unwrap_or(0);
        let to = match step {
            Step::By(rows) => at.saturating_add_signed(rows).min(last),
            Step::First => 0,
            Step::Last => last,
        };
        self.selected = self.ids.get(to).cloned();
    }

    pub(super) fn at(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.ids.binary_search(selected).ok()
    }

    /// Updates the lines from the data before they are drawn.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.list_pods();
            self.list_events();
        }
        self.keep_in_sight();
    }

    fn list_pods(&mut self) {
        let filter = self.filter.to_lowercase();
        let Some(listing) = &mut self.listing else { return };
        let mut all = listing.page(self.pods.values(), &self.screen, self.now);
        all.truncate(all.trim_end().len());
        self.list.set_table(&all);
        let rows = self.pods.keys().cloned().zip(std::mem::take(&mut self.list.lines));
        let (ids, lines) = rows.filter(|(_, line)| matches(line, &filter)).unzip();
        let before = self.at();
        (self.ids, self.list.lines) = (ids, lines);
        if self.at().is_none() {
            // The next pod takes over the row of the selected one.
            let at = before.unwrap_or(0).min(self.ids.len().saturating_sub(1));
            self.selected = self.ids.get(at).cloned();
        }
    }

    fn list_events(&mut self) {
        let (now, screen) = (self.now, self.screen);
        if let Some(View::Events(page)) = self.views.last_mut() {
            page.set_table(&events::all(&self.events, &screen, now));
            let filter = self.filter.to_lowercase();
            page.lines.retain(|line| matches(line, &filter));
        }
    }

    /// The number of lines that fit in the current view.
    fn height(&self) -> usize {
        self.height_of(self.page())
    }

    /// The number of lines that fit in a page.
    pub(super) fn height_of(&self, page: &Page) -> usize {
        let lines = self.size.1;
        let frame = if lines >= MIN_FRAMED_LINES { 2 } else { 0 };
        let head = u16::from(page.head.is_some() && lines > 1);
        usize::from(lines.saturating_sub(frame + head))
    }

    pub(super) fn page(&self) -> &Page {
        match self.views.last() {
            None => &self.list,
            Some(View::Detail(_, page) | View::Events(page) | View::Usage(page) | View::Help(page)) => page,
            Some(View::Log(log)) => &log.page,
        }
    }

    /// Scrolls so that the selected pod is visible.
    fn keep_in_sight(&mut self) {
        let height = self.height_of(&self.list);
        let (Some(at), first) = (self.at(), self.list.first(height)) else { return };
        if at < first {
            self.list.place = ScrollPosition::From(at);
        } else if height > 0 && at >= first + height {
            self.list.place = ScrollPosition::From(at + 1 - height);
        }
    }
}

fn matches(line: &str, filter: &str) -> bool {
    filter.is_empty() || line.to_lowercase().contains(filter)
}
