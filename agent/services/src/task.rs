//! The task that serves Services: it waits for changes of them and of pods, decides anew, and has the kernel and the name server
//! follow.
//!
//! Rules outlive the agent. A new agent replaces them once it knows the pods that run, so that no connection is refused meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use limpet_core::merge::Desired;
use limpet_core::node_state::NodeState;
use limpet_core::status::observed::{Observed, ObservedPods};
use limpet_model::object::local_service::LocalService;
use limpet_telemetry::event::{EventType, Events};
use limpet_wire::services::ServicesDocument;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::addresses::{Book, Name};
use crate::backend::Backend;
use crate::dns::server::Listener;
use crate::dns::{server, upstream};
use crate::document;
use crate::feed::Definitions;
use crate::kernel::KernelError;
use crate::links::ServiceLinks;
use crate::membership::{Definition, ServedService, serve};
use crate::rules::Ruleset;
use crate::settings::Settings;
use crate::zone::Zone;

/// The pause before something that has failed is tried again.
const PAUSE: Duration = Duration::from_secs(30);

/// Tells pods which name servers they have; without any they have the node's.
pub type SetNameServers = Arc<dyn Fn(&[IpAddr]) + Send + Sync>;

/// The settings and channels of the task.
pub struct Parts {
    pub settings: Settings,
    pub backend: Arc<dyn Backend>,
    /// Why no Services are served on this node.
    pub off: Option<String>,
    pub observed: Observed,
    pub desired: Desired,
    pub node: watch::Receiver<NodeState>,
    pub events: Events,
    /// What is shown to users.
    pub views: watch::Sender<ServicesDocument>,
    pub set_name_servers: SetNameServers,
    /// The variables of containers.
    pub links: ServiceLinks,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Serves Services until `stop`. The rules stay then, since pods outlive the agent.
pub async fn run(parts: Parts, wanted: watch::Receiver<Definitions>, stop: CancellationToken) {
    let links = parts.links.clone();
    follow(parts, wanted, stop).await;
    links.release();
}

async fn follow(parts: Parts, mut wanted: watch::Receiver<Definitions>, stop: CancellationToken) {
    let mut changes = parts.observed.changes();
    let mut node = parts.node.clone();
    let mut task = Task::new(parts).await;
    let mut removals: Option<BoxStream<'static, ()>> = None;
    loop {
        let definitions = wanted.borrow_and_update().clone();
        let is_current = stop.run_until_cancelled(task.turn(&definitions)).await;
        let Some(is_current) = is_current else { return };
        let follows = !definitions.services.is_empty();
        // Nobody listens while there are no rules.
        removals = task.rules.is_some().then(|| removals.take().unwrap_or_else(|| task.parts.backend.removals()));
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = wanted.changed() => {}
            true = changes.next(), if follows => {}
            Ok(()) = node.changed(), if task.holds_rules => {}
            Some(()) = next_removal(&mut removals) => task.look_for_rules().await,
            () = tokio::time::sleep(PAUSE), if !is_current => {}
            else => return,
        }
    }
}

async fn next_removal(removals: &mut Option<BoxStream<'static, ()>>) -> Option<()> {
    removals.as_mut()?.next().await
}

/// The state of the task: what the kernel and the name server have been given.
struct Task {
    parts: Parts,
    /// The addresses and ports that were assigned; `None`: the file was not read yet.
    book: Option<Book>,
    rules: Option<Ruleset>,
    /// Rules of an earlier agent stay until it is known which pods run.
    holds_rules: bool,
    names: watch::Sender<Arc<Zone>>,
    /// What answers queries, while there are names.
    listening: Option<JoinSet<()>>,
    /// What was reported of each Service, so that it is reported once; `None`: of all of them.
    reported: BTreeMap<Option<Name>, String>,
}

impl Task {
    async fn new(parts: Parts) -> Self {
        let holds_rules = parts.off.is_none() && parts.backend.has_rules().await == Some(true);
        Self {
            parts,
            book: None,
            rules: None,
            holds_rules,
            names: watch::Sender::default(),
            listening: None,
            reported: BTreeMap::new(),
        }
    }

    /// Brings everything up to date. Returns false if something has to be tried again.
    async fn turn(&mut self, definitions: &Definitions) -> bool {
        if definitions.services.is_empty() {
            self.parts.links.publish(definitions.version, None);
            return !definitions.are_complete || self.clear().await;
        }
        let observed = self.parts.observed.load();
        let served = self.serve(definitions, &observed).await;
        let (problem, is_current) = match self.parts.off.clone() {
            Some(off) => {
                self.parts.links.publish(definitions.version, None);
                (Some(off), self.withdraw().await)
            }
            None => {
                let problem = self.effect(definitions.version, &served, &observed).await.err();
                let is_current = problem.is_none();
                (problem, is_current)
            }
        };
        if problem.is_some() {
            self.stop_listening().await;
            (self.parts.set_name_servers)(&[]);
        }
        self.report(&served, problem.as_deref());
        let document = document::document(&served, problem.as_deref());
        self.parts.views.send_if_modified(|shown| {
            let differs = *shown != document;
            *shown = document;
            differs
        });
        is_current
    }

    /// The Services with their addresses and pods, in the order of the definitions.
    async fn serve(&mut self, definitions: &Definitions, observed: &ObservedPods) -> Vec<ServedService> {
        let settings = &self.parts.settings;
        let mut book = match self.book.take() {
            Some(book) => book,
            None => self.parts.backend.load().await,
        };
        let before = book.clone();
        let mut first: BTreeMap<Name, &Definition> = BTreeMap::new();
        for definition in &*definitions.services {
            first.entry(name(definition)).or_insert(definition);
        }
        let wanted: BTreeMap<Name, &LocalService> =
            first.iter().filter_map(|(name, definition)| Some((name.clone(), definition.service()?))).collect();
        let faults = book.assign(settings, &wanted, !definitions.are_complete);
        if book != before && self.parts.off.is_none() {
            self.parts.backend.save(book.clone()).await;
        }
        let serve_by_name = |definition: &Definition| {
            let name = name(definition);
            let winner = first.get(&name).filter(|winner| winner.source != definition.source);
            let assigned = match (winner, faults.get(&name)) {
                (Some(winner), _) => {
                    Err(format!("the source {} has a Service of this name, which counts", winner.source))
                }
                (None, Some(fault)) => Err(fault.clone()),
                (None, None) => Ok(()),
            };
            let nothing = crate::addresses::Assigned::default();
            let assigned = assigned.map(|()| book.assigned.get(&name).unwrap_or(&nothing));
            serve(settings, definition, assigned, observed)
        };
        let served = definitions.services.iter().filter_map(serve_by_name).collect();
        self.book = Some(book);
        served
    }

    /// Has the kernel, the variables of containers and the name server follow. What the kernel does not serve has no variables.
    async fn effect(&mut self, version: u64, served: &[ServedService], observed: &ObservedPods) -> Result<(), String> {
        let followed = self.replace_rules(served, observed).await;
        self.parts.links.publish(version, followed.is_ok().then_some(served));
        followed?;
        self.listen().await
    }

    /// Has the kernel follow, unless the rules before stay for now.
    async fn replace_rules(&mut self, served: &[ServedService], observed: &ObservedPods) -> Result<(), String> {
        let rules = Ruleset::new(&self.parts.settings, served);
        self.names.send_replace(Arc::new(Zone::new(&self.parts.settings, served)));
        if self.holds_rules && !self.knows_pods(observed) {
            return Ok(());
        }
        self.holds_rules = false;
        if self.rules.as_ref() != Some(&rules) {
            let ends_udp = self.rules.as_ref().is_none_or(|before| before.udp() != rules.udp());
            let applied = self.parts.backend.apply(rules.clone(), ends_udp).await;
            if let Err(error) = applied {
                self.rules = None;
                // What is in effect would take connections from them.
                if matches!(error, KernelError::KubeProxy | KernelError::Overlap(..)) {
                    self.withdraw().await;
                }
                return Err(error.to_string());
            }
            tracing::info!(
                services = served.len(),
                ports = rules.forwards.len(),
                endpoints = rules.forwards.iter().map(|forward| forward.choice.endpoints()).sum::<usize>(),
                "rules of Services replaced"
            );
            self.rules = Some(rules);
        }
        Ok(())
    }

    /// Forgets rules that another program has removed, so that they are made again.
    async fn look_for_rules(&mut self) {
        if self.parts.backend.has_rules().await == Some(false) {
            tracing::warn!("another program has removed the rules of Services; they are made again");
            self.rules = None;
        }
    }

    /// Whether every pod that is wanted has been looked for among those that run. Nobody looks for one that has ended.
    fn knows_pods(&self, observed: &ObservedPods) -> bool {
        let is_read = self.parts.node.borrow().runtime_ready;
        let desired = self.parts.desired.load();
        is_read && desired.pods.iter().all(|(key, pod)| pod.has_ended() || observed.pods.contains_key(key))
    }

    async fn listen(&mut self) -> Result<(), String> {
        let servers = &self.parts.settings.name_servers;
        if self.listening.is_none() && !servers.is_empty() {
            let upstream = Arc::new(upstream::Upstream::new(self.parts.settings.resolv_conf.clone(), servers.clone()));
            let mut listening = JoinSet::new();
            for address in servers {
                let listener = Listener::bind(*address).await;
                let listener =
                    listener.map_err(|error| format!("queries for names cannot be answered at {address}: {error}"))?;
                let names: server::Names = self.names.subscribe();
                listening.spawn(listener.serve(names, Arc::clone(&upstream)));
            }
            self.listening = Some(listening);
        }
        (self.parts.set_name_servers)(servers);
        Ok(())
    }

    /// Returns when the sockets are closed, so that they can be opened again.
    async fn stop_listening(&mut self) {
        if let Some(mut listening) = self.listening.take() {
            listening.shutdown().await;
        }
    }

    /// Removes the rules from a node on which Services are not served any more. Returns false if that has to be tried again.
    async fn withdraw(&mut self) -> bool {
        match self.parts.backend.clear().await {
            Ok(false) => true,
            Ok(true) => {
                tracing::info!("the rules and addresses of Services are removed");
                true
            }
            Err(error) => {
                tracing::error!(%error, "the rules of Services cannot be removed; that is tried again");
                false
            }
        }
    }

    /// Removes all that is left of Services. Returns false if that has to be tried again.
    async fn clear(&mut self) -> bool {
        self.stop_listening().await;
        (self.parts.set_name_servers)(&[]);
        self.names.send_replace(Arc::default());
        self.parts.views.send_replace(ServicesDocument::default());
        self.reported.clear();
        self.rules = None;
        self.holds_rules = false;
        self.book = None;
        if self.parts.off.is_none() {
            self.parts.backend.save(Book::default()).await;
        }
        self.withdraw().await
    }

    /// Reports what is wrong, once.
    fn report(&mut self, served: &[ServedService], problem: Option<&str>) {
        let mut now: BTreeMap<Option<Name>, String> = BTreeMap::new();
        if let Some(problem) = problem {
            now.insert(None, problem.to_owned());
            if self.reported.get(&None).map(String::as_str) != Some(problem) {
                tracing::error!("Services are not served: {problem}");
                let message = format!("Services are not served: {problem}");
                self.parts.events.emit(None, None, EventType::Warning, "ServicesNotServed", message);
            }
        }
        for service in served {
            let Some(fault) = &service.fault else { continue };
            let name = Some((service.key.namespace.to_string(), service.key.name.to_string()));
            if self.reported.get(&name) != Some(fault) {
                tracing::warn!(service = %service.key, source = %service.source, "{fault}");
                let involved = (service.key.clone(), String::new());
                let (reason, event_type) = ("ServiceNotServed".into(), EventType::Warning);
                self.parts.events.emit_of_workload(involved, event_type, reason, fault.clone());
            }
            now.insert(name, fault.clone());
        }
        self.reported = now;
    }
}

fn name(definition: &Definition) -> Name {
    (definition.record.key.namespace.to_string(), definition.record.key.name.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
