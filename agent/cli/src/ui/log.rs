//! A container's log on the screen. Pure.

use super::feed::{LogOf, PodId};
use super::page::{Page, ScrollPosition};
use limpet_wire::pods::PodEntry;

/// How many lines of a log are kept.
pub(super) const LOG_LINES: usize = 1000;

/// The log of one of a pod's containers.
#[derive(Debug)]
pub(super) struct LogView {
    pub(super) subject: LogOf,
    pub(super) page: Page,
    /// `following`, or why the log has ended.
    pub(super) state: String,
}

impl LogView {
    /// The log of the pod's first container.
    pub(super) fn new(epoch: u64, pod: PodId, entry: &PodEntry) -> Option<Self> {
        let container = containers(entry).into_iter().next()?;
        let source = LogOf { epoch, pod, instance: instance(entry, &container), container, previous: false };
        Some(Self { subject: source, page: Page::new(ScrollPosition::End), state: FOLLOWING.to_owned() })
    }

    /// Appends lines.
    pub(super) fn lines(&mut self, lines: Vec<String>) {
        self.page.append(lines, LOG_LINES);
    }

    /// Switches to the pod's next container; after the last, to the first.
    pub(super) fn next_container(&mut self, epoch: u64, entry: Option<&PodEntry>) {
        let Some(entry) = entry else { return };
        let all = containers(entry);
        let at = all.iter().position(|name| *name == self.subject.container);
        let next = at.map_or(0, |at| (at + 1) % all.len().max(1));
        if let Some(container) = all.into_iter().nth(next) {
            self.open(LogOf { container, previous: false, ..self.subject.clone() }, epoch, Some(entry));
        }
    }

    /// Switches between the running instance and the previous one.
    pub(super) fn toggle_previous(&mut self, epoch: u64, entry: Option<&PodEntry>) {
        self.open(LogOf { previous: !self.subject.previous, ..self.subject.clone() }, epoch, entry);
    }

    /// Follows the log of the pod's current state. The lines of an ended instance stay above those of the next.
    pub(super) fn follow(&mut self, epoch: u64, entry: Option<&PodEntry>) {
        let now =
            entry.and_then(|entry| instance(entry, &self.subject.container)).or_else(|| self.subject.instance.clone());
        if epoch == self.subject.epoch && now == self.subject.instance {
            return;
        }
        if epoch == self.subject.epoch && !self.subject.previous && !self.page.lines.is_empty() {
            self.lines(vec![format!("--- another instance of {} ---", self.subject.container)]);
            (self.subject.instance, self.state) = (now, FOLLOWING.to_owned());
        } else {
            self.open(self.subject.clone(), epoch, entry);
        }
    }

    fn open(&mut self, subject: LogOf, epoch: u64, entry: Option<&PodEntry>) {
        let instance = entry.and_then(|entry| instance(entry, &subject.container)).or(subject.instance);
        self.subject = LogOf { epoch, instance, ..subject };
        (self.page, self.state) = (Page::new(ScrollPosition::End), FOLLOWING.to_owned());
    }
}

const FOLLOWING: &str = "following";

/// The names of the pod's containers, in the order of `limpet logs`.
fn containers(entry: &PodEntry) -> Vec<String> {
    let spec = entry.pod.spec.as_ref();
    let regular = spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let ephemeral = spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    regular.map(|container| container.name.clone()).chain(ephemeral.map(|container| container.name.clone())).collect()
}

/// The id of the container whose log is shown.
fn instance(entry: &PodEntry, container: &str) -> Option<String> {
    let status = entry.pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let status = lists.into_iter().flatten().flatten().find(|status| status.name == container)?;
    status.container_id.clone().filter(|id| !id.is_empty())
}
