//! The gate that updates pass before they are downloaded and before they are applied.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use limpet_core::node_state::NodeNetwork;
use limpet_host::path_watch::{PathWatch, changed};
use limpet_host::{clock, wall_clock};
use limpet_model::clock::built;
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{EventType, Events};
use limpet_wire::status::HeldUpdateDocument;
use tokio::sync::watch;

use crate::Phase;
use crate::condition::{Locked, permitted, unlocked, unmetered};
use crate::settings::GateSettings;
use crate::window::{Moment, When, WindowState, Windows};

/// The pause before a metered link is asked for again, unless the node's network changes.
const METERED_PAUSE: Duration = Duration::from_secs(300);
/// The pause before an application is asked again.
const VETO_PAUSE: Duration = Duration::from_secs(30);
/// The pause before a lock file is looked for again that cannot be watched, or whose file system did not tell.
const LOCK_PAUSE: Duration = Duration::from_secs(20);

/// An update, as it is shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub what: String,
    /// The source that it is of, if it is of one.
    pub source: Option<SourceKind>,
    /// Nothing of its kind runs yet: it waits for no window and no cheaper link, only for applications.
    pub is_first: bool,
}

/// Why an update is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub why: String,
    /// When a window opens, by the node's clock.
    pub until: Option<Timestamp>,
    wake: Wake,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.until.map(|at| format!(" until {at}")).unwrap_or_default();
        write!(f, "{}{until}", self.why)
    }
}

/// When the reason may be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    When(When),
    /// After this time, or when the network changes.
    Network(Duration),
    LockFile,
    Pause(Duration),
}

/// The gate; without settings every update passes at once. Clones are one gate.
#[derive(Debug, Clone, Default)]
pub struct UpdateGate(Option<Arc<Gate>>);

#[derive(Debug)]
struct Gate {
    settings: GateSettings,
    network: watch::Receiver<NodeNetwork>,
    events: Events,
    held: watch::Sender<Vec<HeldUpdateDocument>>,
}

impl UpdateGate {
    /// A gate with these settings.
    pub fn new(settings: GateSettings, network: watch::Receiver<NodeNetwork>, events: Events) -> Self {
        if settings.is_open() {
            return Self(None);
        }
        Self(Some(Arc::new(Gate { settings, network, events, held: watch::Sender::default() })))
    }

    /// What is held now, for people.
    pub fn held(&self) -> Vec<HeldUpdateDocument> {
        self.0.as_ref().map(|gate| gate.held.borrow().clone()).unwrap_or_default()
    }

    /// Whether an update may begin a phase now.
    ///
    /// # Errors
    /// It has to wait.
    pub async fn check(&self, phase: Phase, subject: &Subject) -> Result<(), Hold> {
        match &self.0 {
            Some(gate) => gate.check(phase, subject.is_first).await,
            None => Ok(()),
        }
    }

    /// Resolves when an update may begin a phase. What holds it meanwhile is shown. Cancel safe.
    pub async fn pass(&self, phase: Phase, subject: &Subject) {
        if let Some(gate) = &self.0 {
            gate.pass(phase, subject).await;
        }
    }

    /// Does `work` within the windows of a phase: it begins when it may, is dropped when the window closes, and begins again
    /// in the next one.
    pub async fn within<F: Future>(&self, phase: Phase, subject: &Subject, mut work: impl FnMut() -> F) -> F::Output {
        let Some(gate) = &self.0 else { return work().await };
        loop {
            gate.pass(phase, subject).await;
            tokio::select! {
                done = work() => return done,
                () = gate.closed(phase), if !subject.is_first => {
                    tracing::info!(what = subject.what, "the {} window has closed; it goes on in the next one", phase.as_str());
                }
            }
        }
    }
}

impl Gate {
    fn window(&self, phase: Phase) -> WindowState {
        let all = match phase {
            Phase::Download => &self.settings.download.windows,
            Phase::Apply => &self.settings.apply.windows,
        };
        let windows = &self.settings.windows;
        let windows = Windows { all, zone: &windows.zone, without_clock: windows.without_clock, earliest: built() };
        windows.state(Moment { wall: clock::now().wall, uptime: clock::uptime() })
    }

    async fn check(&self, phase: Phase, is_first: bool) -> Result<(), Hold> {
        if let (false, WindowState::Closed(opens)) = (is_first, self.window(phase)) {
            return Err(closed_hold(phase, opens));
        }
        let hold = |wake| move |why| Hold { why, until: None, wake };
        match phase {
            Phase::Download => {
                if let Some(words) = self.settings.download.metered_command.as_ref().filter(|_| !is_first) {
                    unmetered(words).await.map_err(hold(Wake::Network(METERED_PAUSE)))?;
                }
            }
            Phase::Apply => {
                if let Some(file) = &self.settings.apply.lock_file {
                    unlocked(file).await.map_err(|locked| match locked {
                        Locked::Exists(why) => hold(Wake::LockFile)(why),
                        Locked::Unknown(why) => hold(Wake::Pause(LOCK_PAUSE))(why),
                    })?;
                }
                if let Some(url) = &self.settings.apply.veto_url {
                    permitted(url).await.map_err(hold(Wake::Pause(VETO_PAUSE)))?;
                }
            }
        }
        Ok(())
    }

    async fn pass(&self, phase: Phase, subject: &Subject) {
        let mut shown: Option<Shown<'_>> = None;
        // Watched before it is looked for, so that no change is missed.
        let mut lock = None;
        let mut network = self.network.clone();
        while let Err(hold) = self.check(phase, subject.is_first).await {
            match &mut shown {
                Some(shown) => shown.update(&hold),
                None => shown = Some(Shown::new(self, phase, subject, &hold)),
            }
            match hold.wake {
                Wake::When(When::At(at)) => wall_clock::reached(at).await,
                Wake::When(When::After(pause)) => clock_set_or(pause).await,
                Wake::When(When::Never) => std::future::pending().await,
                Wake::Network(pause) => tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    Ok(()) = network.changed() => {}
                },
                Wake::LockFile => self.lock_file_changed(&mut lock).await,
                Wake::Pause(pause) => tokio::time::sleep(pause).await,
            }
        }
    }

    /// Resolves when the lock file may be gone.
    async fn lock_file_changed(&self, watch: &mut Option<PathWatch>) {
        let Some(file) = &self.settings.apply.lock_file else { return };
        if watch.is_none() {
            *watch = PathWatch::file(file).await.ok();
            // It may have gone before it was watched.
            if watch.is_some() {
                return;
            }
        }
        match watch {
            Some(_) => {
                if changed(watch.as_mut()).await.is_err() {
                    *watch = None;
                }
            }
            None => tokio::time::sleep(LOCK_PAUSE).await,
        }
    }

    /// Resolves when the window of the phase closes.
    async fn closed(&self, phase: Phase) {
        loop {
            match self.window(phase) {
                WindowState::Closed(_) => return,
                WindowState::Open(When::Never) => return std::future::pending().await,
                WindowState::Open(When::At(at)) => wall_clock::reached(at).await,
                WindowState::Open(When::After(pause)) => clock_set_or(pause).await,
            }
        }
    }
}

fn closed_hold(phase: Phase, opens: When) -> Hold {
    let window = phase.as_str();
    let (why, until) = match opens {
        When::At(at) => (format!("the {window} window is closed"), Some(at)),
        When::After(_) => {
            let why = "the clock is not set, so windows go by the time since the node's start";
            (format!("the {window} window is closed: {why}"), None)
        }
        When::Never => (format!("no {window} window ever opens"), None),
    };
    Hold { why, until, wake: Wake::When(opens) }
}

/// Resolves after a pause, or when the clock is set.
async fn clock_set_or(pause: Duration) {
    let set = async {
        if wall_clock::until(None).await.is_err() {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = set => {}
    }
}

/// An update that is shown as held, as long as this exists.
struct Shown<'a> {
    gate: &'a Gate,
    document: HeldUpdateDocument,
}

impl<'a> Shown<'a> {
    fn new(gate: &'a Gate, phase: Phase, subject: &Subject, hold: &Hold) -> Self {
        let document = HeldUpdateDocument {
            what: subject.what.clone(),
            source: subject.source.map(|source| source.as_str().to_owned()),
            phase: phase.as_str().to_owned(),
            reason: hold.why.clone(),
            until: hold.until.map(Time),
        };
        let shown = Self { gate, document };
        shown.report();
        gate.held.send_modify(|held| held.push(shown.document.clone()));
        shown
    }

    fn update(&mut self, hold: &Hold) {
        let is_news = self.document.reason != hold.why;
        let before = self.document.clone();
        (self.document.reason, self.document.until) = (hold.why.clone(), hold.until.map(Time));
        if is_news {
            self.report();
        }
        self.gate.held.send_modify(|held| {
            held.iter_mut().filter(|known| **known == before).for_each(|known| *known = self.document.clone());
        });
    }

    fn report(&self) {
        let HeldUpdateDocument { what, phase, reason, until, .. } = &self.document;
        let until = until.as_ref().map(|Time(at)| format!(" until {at}")).unwrap_or_default();
        let message = format!("{what} waits, {phase} is held: {reason}{until}");
        tracing::info!("{message}");
        self.gate.events.emit(None, None, EventType::Normal, "UpdateHeld", message);
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.gate.held.send_modify(|held| {
            if let Some(at) = held.iter().position(|known| *known == self.document) {
                held.swap_remove(at);
            }
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_model::object::workload::cron_job::Schedule;

    use super::*;
    use crate::settings::{ApplySettings, DownloadSettings};
    use crate::window::Window;

    fn gate(settings: GateSettings) -> (UpdateGate, Events) {
        let events = Events::default();
        (UpdateGate::new(settings, watch::channel(NodeNetwork::default()).1, events.clone()), events)
    }

    fn subject(is_first: bool) -> Subject {
        Subject { what: "bundle plant".to_owned(), source: Some(SourceKind::Bundle), is_first }
    }

    /// A window that is never open.
    fn never() -> Vec<Window> {
        let written = "0 0 31 2 *".to_owned();
        vec![Window { start: Schedule::parse(&written).unwrap(), written, duration: Duration::from_secs(60) }]
    }

    #[tokio::test]
    async fn without_settings_everything_passes() {
        let (gate, events) = gate(GateSettings::default());
        gate.pass(Phase::Apply, &subject(false)).await;
        assert_eq!(gate.within(Phase::Download, &subject(false), || async { 7 }).await, 7);
        assert!(gate.0.is_none() && gate.held().is_empty() && events.snapshot().is_empty());
    }

    #[tokio::test]
    async fn what_a_lock_file_holds_is_shown_and_passes_when_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("busy");
        std::fs::write(&file, "").unwrap();
        let apply = ApplySettings { lock_file: Some(file.clone()), ..ApplySettings::default() };
        let (gate, events) = gate(GateSettings { apply, ..GateSettings::default() });
        gate.pass(Phase::Download, &subject(false)).await;
        let subject = subject(true);
        let mut passing = std::pin::pin!(gate.pass(Phase::Apply, &subject));
        let is_shown = async {
            let mut held = gate.0.as_ref().unwrap().held.subscribe();
            held.wait_for(|held| !held.is_empty()).await.unwrap().clone()
        };
        let held = tokio::select! {
            () = &mut passing => panic!("passed a lock file"),
            held = is_shown => held,
        };
        assert_eq!((held[0].phase.as_str(), held[0].source.as_deref()), ("apply", Some("bundle")));
        assert!(held[0].reason.ends_with("busy exists"), "{held:?}");
        std::fs::remove_file(&file).unwrap();
        passing.await;
        assert!(gate.held().is_empty());
        let said: Vec<String> = events.snapshot().into_iter().map(|event| event.message).collect();
        assert!(said.len() == 1 && said[0].starts_with("bundle plant waits, apply is held: the lock file"), "{said:?}");
    }

    #[tokio::test]
    async fn a_lock_file_that_cannot_be_looked_for_is_looked_for_again_without_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let apply = ApplySettings { lock_file: Some(file.join("below")), ..ApplySettings::default() };
        let (gate, _) = gate(GateSettings { apply, ..GateSettings::default() });
        let hold = gate.check(Phase::Apply, &subject(false)).await.unwrap_err();
        assert_eq!(hold.wake, Wake::Pause(LOCK_PAUSE));
        assert!(hold.why.contains("cannot be looked for"), "{hold}");
    }

    #[tokio::test]
    async fn the_first_of_its_kind_waits_for_no_window_and_what_is_given_up_is_shown_no_more() {
        let settings = GateSettings {
            download: DownloadSettings {
                windows: never(),
                metered_command: Some(["/bin/sh", "-c", "exit 0"].map(str::to_owned).to_vec()),
            },
            apply: ApplySettings { windows: never(), ..ApplySettings::default() },
            ..GateSettings::default()
        };
        let (gate, _) = gate(settings);
        for phase in [Phase::Download, Phase::Apply] {
            gate.pass(phase, &subject(true)).await;
            let hold = gate.check(phase, &subject(false)).await.unwrap_err();
            assert_eq!(hold.why, format!("no {} window ever opens", phase.as_str()));
        }
        {
            let subject = subject(false);
            let mut passing = std::pin::pin!(gate.pass(Phase::Apply, &subject));
            tokio::select! {
                biased;
                () = &mut passing => panic!("passed a closed window"),
                () = tokio::task::yield_now() => {}
            }
            assert_eq!(gate.held().len(), 1);
        }
        assert!(gate.held().is_empty());
    }

    #[tokio::test]
    async fn a_metered_link_holds_downloads_until_the_network_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("metered");
        std::fs::write(&file, "").unwrap();
        let words = ["/bin/sh", "-c", "test -e \"$0\"", file.to_str().unwrap()].map(str::to_owned).to_vec();
        let download = DownloadSettings { metered_command: Some(words), ..DownloadSettings::default() };
        let (network, followed) = watch::channel(NodeNetwork::default());
        let settings = GateSettings { download, ..GateSettings::default() };
        let gate = UpdateGate::new(settings, followed, Events::default());
        let subject = subject(false);
        let mut passing = std::pin::pin!(gate.pass(Phase::Download, &subject));
        let mut held = gate.0.as_ref().unwrap().held.subscribe();
        tokio::select! {
            () = &mut passing => panic!("passed on a metered link"),
            _ = held.wait_for(|held| !held.is_empty()) => {}
        }
        std::fs::remove_file(&file).unwrap();
        network.send_modify(|network| network.changes += 1);
        passing.await;
    }
}
