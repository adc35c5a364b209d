//! A container's log on the screen. Pure.

use super::feed::{LogOf, PodId};
use super::page::{Page, ScrollPosition};
use limpet_wire::pods::PodEntry;

/// How many lines of a log are kept.
pub(super) const LOG_LINES: usize = 1000;

/// The log of one container, of those its pod has.
#[derive(Debug)]
pub(super) struct LogView {
    /// What is followed.
    pub(super) of: LogOf,
    /// Its last lines.
    pub(super) page: Page,
    /// `following`, or why no more lines come.
    pub(super) state: String,
}

impl LogView {
    /// The log of the pod's first container.
    pub(super) fn new(epoch: u64, pod: PodId, entry: &PodEntry) -> Option<Self> {
        let container = containers(entry).into_iter().next()?;
        let of = LogOf { epoch, pod, instance: instance(entry, &container), container, previous: false };
        Some(Self { of, page: Page::new(ScrollPosition::End), state: FOLLOWING.to_owned() })
    }

    /// Further lines.
    pub(super) fn lines(&mut self, lines: Vec<String>) {
        self.page.append(lines, LOG_LINES);
    }

    /// The pod's next container, the first one after the last.
    pub(super) fn next_container(&mut self, epoch: u64, entry: Option<&PodEntry>) {
        let Some(entry) = entry else { return };
        let all = containers(entry);
        let at = all.iter().position(|name| *name == self.of.container);
        let next = at.map_or(0, |at| (at + 1) % all.len().max(1));
        if let Some(container) = all.into_iter().nth(next) {
            self.open(LogOf { container, previous: false, ..self.of.clone() }, epoch, Some(entry));
        }
    }

    /// From the instance that runs to the one before, and back.
    pub(super) fn toggle_previous(&mut self, epoch: u64, entry: Option<&PodEntry>) {
        self.open(LogOf { previous: !self.of.previous, ..self.of.clone() }, epoch, entry);
    }

    /// Follows the log as the pod is now. The lines of an instance that ended stay above those of the next one.
    pub(super) fn follow(&mut self, epoch: u64, entry: Option<&PodEntry>) {
        let now = entry.and_then(|entry| instance(entry, &self.of.container)).or_else(|| self.of.instance.clone());
        if epoch == self.of.epoch && now == self.of.instance {
            return;
        }
        if epoch == self.of.epoch && !self.of.previous && !self.page.lines.is_empty() {
            self.lines(vec![format!("--- another instance of {} ---", self.of.container)]);
            (self.of.instance, self.state) = (now, FOLLOWING.to_owned());
        } else {
            self.open(self.of.clone(), epoch, entry);
        }
    }

    fn open(&mut self, of: LogOf, epoch: u64, entry: Option<&PodEntry>) {
        let instance = entry.and_then(|entry| instance(entry, &of.container)).or(of.instance);
        self.of = LogOf { epoch, instance, ..of };
        (self.page, self.state) = (Page::new(ScrollPosition::End), FOLLOWING.to_owned());
    }
}

const FOLLOWING: &str = "following";

/// The names of the pod's containers, in the order of `limpet logs`.
fn containers(entry: &PodEntry) -> Vec<String> {
    let spec = entry.pod.spec.as_ref();
    let own = spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let ephemeral = spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    own.map(|one| one.name.clone()).chain(ephemeral.map(|one| one.name.clone())).collect()
}

/// The id of the container that a log is of.
fn instance(entry: &PodEntry, container: &str) -> Option<String> {
    let status = entry.pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let one = lists.into_iter().flatten().flatten().find(|one| one.name == container)?;
    one.container_id.clone().filter(|id| !id.is_empty())
}
