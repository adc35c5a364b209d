//! Keeps the Node object: registers it, recreates it after a deletion, and reports its status.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::followed::Update;
use super::images::NodeImages;
use super::link::Link;
use super::own_change::OwnChanges;
use super::runtime::NodeRuntime;
use super::seen_node::NodeFromApiserver;
use limpet_apiserver_client::request::PatchType;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::admission::Selectable;
use limpet_core::cluster_history::version_of;
use limpet_core::node_object::{
    self, Frequencies, LabelCorrection, NodeDescription, NodeReport, RuntimeAbsence, SeenNode, SentReport,
};
use limpet_core::node_state::NodeState;
use limpet_host::clock::sleep_until_or_forever;
use limpet_host::network::NetworkStatus;
use limpet_plugins::csi::VolumesInUse;
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_telemetry::event::{EventType, Events};

/// A pause between two tries. The reporter reads updates meanwhile.
type Pause = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A [`NodeReporter`]'s state between two reports.
struct Progress {
    sent: Option<SentReport>,
    /// The number of failures in a row.
    failures: u32,
    /// The pause after a failure; `None` if a report may be sent.
    pause: Option<Pause>,
    /// The runtime's version, once it is known.
    version: String,
    /// Whether the next report is a full one, which reads the images again.
    full: bool,
    absence: RuntimeAbsence,
    device_changes: watch::Receiver<u64>,
    volume_changes: watch::Receiver<BTreeMap<String, usize>>,
}

#[derive(Debug)]
pub(super) struct NodeReporter {
    pub(super) link: Link,
    /// `--register-node`.
    pub(super) register: bool,
    pub(super) every: Frequencies,
    pub(super) description: NodeDescription,
    /// Publishes the Node for other tasks.
    pub(super) seen: watch::Sender<NodeFromApiserver>,
    /// Announces the reporter's own changes to the watch of the Node.
    pub(super) own_changes: OwnChanges,
    /// The last known version of the Node, or of the list without it.
    pub(super) version: AtomicU64,
    pub(super) selectable: watch::Sender<Selectable>,
    pub(super) node_state: watch::Receiver<NodeState>,
    pub(super) network: watch::Receiver<NetworkStatus>,
    pub(super) runtime: Arc<dyn NodeRuntime>,
    pub(super) device_plugins: Arc<DevicePlugins>,
    pub(super) volumes_in_use: VolumesInUse,
    pub(super) events: Events,
    pub(super) images: NodeImages,
}

impl NodeReporter {
    /// Keeps the Node until the sender of updates is dropped.
    pub(super) async fn run(mut self, mut updates: mpsc::Receiver<Update>) {
        self.events.emit(None, None, EventType::Normal, "Starting", "Starting limpet.".to_owned());
        let mut progress = Progress {
            sent: None,
            failures: 0,
            pause: None,
            version: String::new(),
            full: false,
            absence: RuntimeAbsence::default(),
            device_changes: self.device_plugins.subscribe(),
            volume_changes: self.volumes_in_use.subscribe(),
        };
        let mut seen = self.seen.subscribe();
        loop {
            while let Ok(update) = updates.try_recv() {
                self.apply_update(update);
            }
            seen.mark_unchanged();
            let state = *self.node_state.borrow_and_update();
            let (mut due, mut until) = (None, None);
            if progress.pause.is_none() {
                let report;
                (report, until) = self.gather(state, &mut progress).await;
                due = self.send_report(&report, &mut progress, &mut updates).await;
            }
            if seen.has_changed().unwrap_or(false) {
                // The Node was changed meanwhile, which the report does not take into account.
                continue;
            }
            let may_report = progress.pause.is_none() && self.link.is_online();
            tokio::select! {
                biased;
                update = updates.recv() => match update {
                    Some(update) => self.apply_update(update),
                    None => return,
                },
                Ok(()) = self.node_state.changed() => {}
                Ok(()) = self.network.changed() => {}
                Ok(()) = progress.device_changes.changed() => {}
                Ok(()) = progress.volume_changes.changed() => {}
                () = self.link.online(), if !self.link.is_online() => progress.pause = None,
                () = self.images.changed(), if state.runtime_ready && may_report => {}
                () = pause_ended(&mut progress.pause) => progress.pause = None,
                () = sleep_until_or_forever(due.into_iter().chain(until).min()) => {
                    progress.full = due.is_some_and(|due| due <= Instant::now());
                }
            }
        }
    }

    /// The current report, and until when the runtime's absence is ignored.
    async fn gather(&mut self, state: NodeState, progress: &mut Progress) -> (NodeReport, Option<Instant>) {
        if state.runtime_ready && progress.version.is_empty() {
            progress.version = self.runtime.version().await.unwrap_or_default();
        }
        let network = self.network.borrow_and_update().clone();
        let network_problem = (!network.is_ready()).then(|| network.to_string());
        progress.device_changes.borrow_and_update();
        let devices = self.device_plugins.counts();
        let images = match state.runtime_ready && self.link.is_online() {
            true => self.images.shown(std::mem::take(&mut progress.full)).await,
            false => progress.sent.as_ref().map(|sent| sent.report.images.clone()).unwrap_or_default(),
        };
        progress.volume_changes.borrow_and_update();
        let (counts_as_ready, until) = progress.absence.observe(state.runtime_ready, Instant::now().into_std());
        let report = NodeReport {
            state: NodeState { runtime_ready: counts_as_ready, ..state },
            network_problem,
            runtime_version: progress.version.clone(),
            devices,
            images,
            volumes_in_use: self.volumes_in_use.names(),
        };
        (report, until.map(Instant::from_std))
    }

    /// Sends what differs and applies updates meanwhile. Returns when to send again. A failure begins a pause.
    async fn send_report(
        &self,
        report: &NodeReport,
        progress: &mut Progress,
        updates: &mut mpsc::Receiver<Update>,
    ) -> Option<Instant> {
        let mut reconciling = pin!(self.reconcile(report, &mut progress.sent));
        let result = loop {
            tokio::select! {
                biased;
                result = &mut reconciling => break result,
                Some(update) = updates.recv() => self.apply_update(update),
            }
        };
        match result {
            Ok(due) => {
                progress.failures = 0;
                due
            }
            Err(error) => {
                progress.failures += 1;
                if progress.failures == 1 {
                    tracing::warn!(%error, "updating the Node object failed");
                }
                let (link, failures) = (self.link.clone(), progress.failures);
                progress.pause = Some(Box::pin(async move { link.pause(failures, error.retry_after()).await }));
                None
            }
        }
    }

    fn apply_update(&self, update: Update) {
        let seen = match update {
            Update::Bookmark(_) => return,
            Update::Listed(nodes, list) => match nodes.first() {
                Some(node) => self.read(node),
                None => {
                    self.version.store(list.parse().unwrap_or_default(), Ordering::Relaxed);
                    NodeFromApiserver::Absent
                }
            },
            Update::Stored(node) => self.read(&node),
            Update::Deleted(node) => {
                tracing::warn!("the Node object was deleted");
                self.version.fetch_max(version_of(&node), Ordering::Relaxed);
                NodeFromApiserver::Absent
            }
        };
        if let NodeFromApiserver::Present(node) = &seen {
            let before = self.seen.borrow().node().is_some_and(|before| before.unschedulable);
            if before != node.unschedulable {
                let event = node_object::cordon_event(&self.description.name, node.unschedulable);
                self.events.emit(None, None, EventType::Normal, event.reason, event.message);
            }
            self.selectable.send_if_modified(|known| {
                let differs = known.labels != node.labels || known.taints != node.taints;
                if differs {
                    *known = Selectable { labels: node.labels.clone(), taints: node.taints.clone() };
                }
                differs
            });
        }
        self.seen.send_if_modified(|known| std::mem::replace(known, seen) != *known);
    }

    fn read(&self, node: &Value) -> NodeFromApiserver {
        self.version.store(version_of(node), Ordering::Relaxed);
        SeenNode::read(node).into()
    }

    /// Does what is due now. Returns when something is due again.
    async fn reconcile(
        &self,
        report: &NodeReport,
        sent: &mut Option<SentReport>,
    ) -> Result<Option<Instant>, RequestError> {
        if !self.link.is_online() {
            return Ok(None);
        }
        let seen = self.seen.borrow().clone();
        let node = match seen {
            NodeFromApiserver::Unknown => return Ok(None),
            NodeFromApiserver::Absent if !self.register => return Ok(None),
            NodeFromApiserver::Absent => return self.create(report, sent).await,
            NodeFromApiserver::Present(node) => node,
        };
        match self.report_to(&node, report, sent).await {
            // The Node was deleted, and no watch has reported it: a late answer may have claimed its creation.
            Err(error) if error.is_not_found() => {
                self.seen.send_if_modified(|seen| {
                    // The watch may already have reported a successor.
                    let is_it = seen.node().is_some_and(|seen| seen.uid == node.uid);
                    if is_it {
                        *seen = NodeFromApiserver::Absent;
                    }
                    is_it
                });
                Ok(Some(Instant::now()))
            }
            result => result,
        }
    }

    /// Sends the fields of the Node that differ, if that is due.
    async fn report_to(
        &self,
        node: &SeenNode,
        report: &NodeReport,
        sent: &mut Option<SentReport>,
    ) -> Result<Option<Instant>, RequestError> {
        let name = self.description.name.clone();
        if let Some(due) = node_object::report_due(&self.description, sent.as_ref(), node, report, self.every) {
            let due = Instant::from_std(due);
            if due > Instant::now() {
                return Ok(Some(due));
            }
        }
        let correction = match (self.register, sent.is_none()) {
            (false, _) => LabelCorrection::None,
            (true, false) => LabelCorrection::OfEveryNode,
            (true, true) => LabelCorrection::WithPlace,
        };
        if let Some(metadata) = node.metadata_patch(&self.description, correction) {
            let request = Request::patch(Resource::Node(name.clone()), PatchType::Merge, metadata);
            self.link.send(request.metadata_only()).await?;
        } else if self.send_heartbeat(node, report, sent.as_ref()).await? {
            return Ok(Some(self.sent(Some(node), &node.uid, report, sent)));
        }
        if !self.link.is_online() {
            return Ok(None);
        }
        let patch = node_object::status_patch(&self.description, report, node, Timestamp::now());
        let request = Request::patch(Resource::NodeStatus(name), PatchType::Strategic, patch);
        // The watch reports the Node's new state.
        self.link.send(request.metadata_only()).await?;
        Ok(Some(self.sent(Some(node), &node.uid, report, sent)))
    }

    /// Sends a heartbeat if that suffices. The watch would return the Node, which is ten times as long, so it is
    /// ended first. The patch requires the known version, so no other client's change is missed.
    async fn send_heartbeat(
        &self,
        node: &SeenNode,
        report: &NodeReport,
        sent: Option<&SentReport>,
    ) -> Result<bool, RequestError> {
        let heartbeat = node_object::heartbeat_patch(&self.description, report, node, sent, Timestamp::now());
        let version = self.version.load(Ordering::Relaxed);
        let Some(mut patch) = heartbeat.filter(|_| version != 0) else { return Ok(false) };
        patch["metadata"]["resourceVersion"] = json!(version.to_string());
        let resource = Resource::NodeStatus(self.description.name.clone());
        let own_change = self.own_changes.begin();
        let request = Request::patch(resource, PatchType::Strategic, patch).metadata_only();
        let answer = tokio::select! {
            biased;
            answer = self.link.send(request) => answer,
            // The watch has to find the next connection and must not wait for an answer that will never arrive.
            () = self.link.lost() => return Ok(false),
        };
        match answer {
            Ok(made) => {
                let version = version_of(&made);
                self.version.store(version, Ordering::Relaxed);
                own_change.made(version.to_string());
                Ok(true)
            }
            // There was a change or deletion that the watch has not reported.
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(
        &self,
        report: &NodeReport,
        sent: &mut Option<SentReport>,
    ) -> Result<Option<Instant>, RequestError> {
        let document = node_object::document(&self.description, report, Timestamp::now());
        match self.link.send(Request::create(Resource::Nodes, document)).await {
            Ok(node) => {
                let version = version_of(&node);
                let node =
                    SeenNode::read(&node).ok_or_else(|| RequestError::Unreadable("a Node without UID".into()))?;
                tracing::info!(node = self.description.name, uid = node.uid, "registered with the apiserver");
                let due = self.sent(None, &node.uid, report, sent);
                // The watch may have reported a newer version, or the deletion, before the answer arrived.
                if self.version.fetch_max(version, Ordering::Relaxed) < version {
                    self.seen.send_replace(Some(node).into());
                }
                let is_gone = self.seen.borrow().node().is_none();
                Ok(Some(if is_gone { Instant::now() } else { due }))
            }
            // The watch will report it.
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records that the apiserver has the report. `before` is the previous Node.
    fn sent(
        &self,
        before: Option<&SeenNode>,
        uid: &str,
        report: &NodeReport,
        sent: &mut Option<SentReport>,
    ) -> Instant {
        for event in node_object::events(&self.description, sent.as_ref(), before, report) {
            let kind = if event.is_warning { EventType::Warning } else { EventType::Normal };
            self.events.emit(None, None, kind, event.reason, event.message);
        }
        let at = Instant::now();
        let of_node = sent.as_ref().filter(|sent| sent.uid == uid);
        let late = of_node.and_then(|sent| at.into_std().checked_duration_since(sent.at + sent.interval));
        let interval = node_object::report_interval(self.every, late, fastrand::u64(..));
        *sent = Some(SentReport { uid: uid.to_owned(), report: report.clone(), at: at.into_std(), interval });
        at + interval
    }
}

/// Resolves at the end of the pause; never without one. Cancel safe.
async fn pause_ended(pause: &mut Option<Pause>) {
    match pause {
        Some(pause) => _ = pause.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
