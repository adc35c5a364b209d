//! A node with the proxy on containerd's socket and the wrapper in its place, and one round of harm on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::containerd::Task;
use limpet_tests::node::container_id;
use limpet_tests::process::{mentioning, signal_pid};
use limpet_tests::{TestNode, wait};
use rustix::process::Signal;

use crate::fault::{Fault, Harm, Target};
use crate::inventory::{arguments, differences, loggers, named, shims};
use crate::proxy::{Armed, Blow, Call, Proxy};
use crate::subject::{Kind, Phase, Subject, judge};
use crate::wrapper::Wrapper;

/// The deadline for rounds that may leave a shim that does not answer: short enough for a test.
pub(crate) fn deadline() -> String {
    request_timeout(Duration::from_secs(20))
}

/// How long the agent waits for an answer of containerd's, as a line of its configuration.
pub(crate) fn request_timeout(limit: Duration) -> String {
    format!("runtimeRequestTimeout: {}s", wait::patient(limit).as_secs())
}

/// How long after a request its runc starts, if it needs one.
const RUNC_COMES: Duration = Duration::from_secs(1);

/// The node, and the pods that no fault is about.
pub(crate) struct Rig<'a> {
    pub(crate) node: &'a mut TestNode,
    pub(crate) proxy: Proxy,
    pub(crate) wrapper: Wrapper,
    bystanders: Vec<Subject>,
    /// The bystander's container and process.
    untouched: Option<Task>,
    /// How many faults have been injected.
    pub(crate) injected: usize,
    /// How many processes each harm has signalled.
    signalled: Signalled,
    /// The number of times that counting has begun. What has not found its process by the next time stops looking, or
    /// two faults would meet.
    round: Arc<AtomicUsize>,
}

/// How often each harm of processes, by its name, has found its process.
type Signalled = Arc<Mutex<BTreeMap<String, usize>>>;

impl<'a> Rig<'a> {
    /// Sets up proxy and wrapper on a node whose agent does not run, and starts it with the bystanders.
    pub(crate) fn new(node: &'a mut TestNode, kubelet: Option<String>) -> Result<Self> {
        let proxy = Proxy::start(&node.dir().join("proxy.sock"), &node.containerd.socket())?;
        let wrapper = Wrapper::write(&node.dir().join("wrapper"))?;
        node.agent.reconfigure(|settings| {
            settings.endpoint = proxy.socket().to_owned();
            settings.cni_plugins.insert(0, wrapper.plugin_dir());
            settings.kubelet.extend(kubelet);
        })?;
        let mut rig = Self {
            node,
            proxy,
            wrapper,
            bystanders: Vec::new(),
            untouched: None,
            injected: 0,
            signalled: Signalled::default(),
            round: Arc::default(),
        };
        rig.start_agent()?;
        for (name, kind) in [("bystander", Kind::Lasting), ("done", Kind::Once)] {
            let mut pod = Subject::new(rig.node, name, kind, u32::MAX - rig.bystanders.len() as u32)?;
            pod.begin(rig.node, Phase::Start)?;
            rig.bystanders.push(pod);
        }
        rig.settle(&[], None)?;
        rig.untouched = Some(rig.bystander()?);
        Ok(rig)
    }

    fn bystander(&self) -> Result<Task> {
        let id = container_id(&self.node.wait_running("bystander")?, "main")?;
        self.node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("the bystander has no task")
    }

    /// Starts the agent again, whether or not the one before still runs.
    pub(crate) fn start_agent(&mut self) -> Result<()> {
        self.node.agent.kill();
        self.node.agent.start()
    }

    /// Starts containerd again, whether or not the one before still runs.
    pub(crate) fn start_containerd(&mut self) -> Result<()> {
        self.node.containerd.kill();
        self.node.containerd.start()
    }

    /// Takes a pod through one phase, with a fault in it or none, until everything is as it should be. Returns the
    /// calls of the agent, and whether the fault was reached.
    pub(crate) fn round(
        &mut self,
        subject: &mut Subject,
        phase: Phase,
        fault: Option<&Fault>,
    ) -> Result<(Vec<Call>, bool)> {
        self.reset()?;
        let began = Instant::now();
        if phase == Phase::Restart {
            self.node.agent.kill();
        }
        if let Some(fault) = fault {
            self.arm(fault, subject)?;
        }
        if phase == Phase::Restart
            && let Err(error) = self.start_agent()
        {
            ensure!(!self.struck().is_empty(), error);
        }
        subject.lenient = fault.is_some_and(|fault| fault.harm.may_restart());
        subject.begin(self.node, phase)?;
        self.settle(&[subject], fault)?;
        if fault.is_some_and(|fault| fault.harm == Harm::KillLogger) {
            self.end_processes_without_a_logger()?;
            self.settle(&[subject], None)?;
        }
        let struck = self.struck();
        self.injected += struck.len();
        subject.forgive()?;
        if let Some(fault) = fault {
            let reached = if struck.is_empty() { "not reached" } else { "" };
            eprintln!("{fault} {}ms {reached}", began.elapsed().as_millis());
        }
        Ok((self.calls(), !struck.is_empty()))
    }

    /// Disarms everything, and begins to count anew.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.round.fetch_add(1, Ordering::Relaxed);
        self.proxy.reset_counts(Vec::new());
        self.wrapper.forget()
    }

    /// All calls since counting began: containerd's, then the plugin's.
    fn calls(&self) -> Vec<Call> {
        let mut calls = self.proxy.calls();
        for method in self.wrapper.calls() {
            let number = 1 + calls.iter().filter(|call| call.method == method).count();
            calls.push(Call { method, number, about: None });
        }
        calls
    }

    /// Waits until `subjects` and the bystanders are as they should be, nothing else exists, and no bystander was
    /// touched. What the fault has killed is started again meanwhile.
    pub(crate) fn settle(&mut self, subjects: &[&Subject], fault: Option<&Fault>) -> Result<()> {
        let mut recovered = false;
        let mut last = String::new();
        let settled = wait::until(wait::SOON, "the node to be as it should", || {
            if let Some(fault) = fault.filter(|_| !recovered && !self.struck().is_empty()) {
                recovered = true;
                if let Err(error) = self.recover(fault) {
                    return Some(Err(error));
                }
            }
            last = match self.look(subjects) {
                Ok(mut differences) => {
                    // A logger that was killed before the agent followed it may come back with the next run of its
                    // container.
                    let killed = fault.is_some_and(|fault| fault.harm == Harm::KillLogger);
                    differences.retain(|difference| !killed || !difference.starts_with("loggers:"));
                    differences.join("\n")
                }
                Err(error) => format!("{error:#}"),
            };
            let missed = fault.is_some() && !recovered && !self.struck().is_empty();
            (last.is_empty() && !missed).then_some(Ok(()))
        });
        settled.with_context(|| last)??;
        if let Some(untouched) = &self.untouched {
            let now = self.bystander()?;
            ensure!(now == *untouched, "the bystander was restarted: {untouched:?}, and now {now:?}");
        }
        Ok(())
    }

    /// Kills the containers whose loggers were killed.
    fn end_processes_without_a_logger(&self) -> Result<()> {
        // With limpet's shim containers have no loggers.
        if limpet_tests::agent::has_limpets_shim() {
            return Ok(());
        }
        let logged = loggers(self.node.dir());
        let tasks = self.node.containerd.tasks()?.into_iter();
        tasks
            .filter(|task| logged.iter().all(|(_, id)| *id != task.id))
            .for_each(|task| signal_pid(task.pid, Signal::KILL));
        Ok(())
    }

    fn look(&self, subjects: &[&Subject]) -> Result<Vec<String>> {
        let pods = self.node.pods()?;
        let all: Vec<&Subject> = self.bystanders.iter().chain(subjects.iter().copied()).collect();
        judge(self.node, &all, &pods)?;
        differences(self.node, &pods)
    }

    /// Starts again what a fault has killed.
    fn recover(&mut self, fault: &Fault) -> Result<()> {
        match fault.harm {
            Harm::KillAgent => self.start_agent(),
            Harm::KillContainerd => self.start_containerd(),
            Harm::Late => {
                self.start_agent()?;
                // The new agent calls the plugin before that of the old agent does its work.
                let called = || self.wrapper.calls().len() > fault.number;
                wait::until_true(wait::SOON, "the new agent's call", called)?;
                self.wrapper.go_on()?;
                let waiting = || mentioning(&self.wrapper.late()).is_empty();
                wait::until_true(wait::SOON, "the end of the old agent's plugin", waiting)
            }
            Harm::StopShim => bail!("a stopped shim does not go on by itself"),
            _ => Ok(()),
        }
    }

    /// The function that harms the process that `harm` is about.
    pub(crate) fn blow(&self, harm: Harm, subject: &Subject) -> Blow {
        let containerd = self.node.containerd.pid();
        let (digits, socket, dir) = (subject.digits(), self.node.containerd.socket(), self.node.dir().to_owned());
        let (signalled, round) = (Arc::clone(&self.signalled), Arc::clone(&self.round));
        Arc::new(move |agent| {
            let pids_of_pod = |processes: Vec<(u32, String)>| -> Vec<u32> {
                let of_pod = processes.into_iter().filter(|(_, id)| digits.iter().any(|digits| id.ends_with(digits)));
                of_pod.map(|(pid, _)| pid).collect()
            };
            let pids = match harm {
                Harm::KillAgent => vec![agent],
                Harm::KillContainerd => containerd.into_iter().collect(),
                Harm::KillShim | Harm::StopShim => pids_of_pod(shims(&socket)),
                Harm::KillLogger => pids_of_pod(loggers(&dir)),
                Harm::KillRunc => return kill_runc(digits.clone(), Arc::clone(&signalled), Arc::clone(&round)),
                _ => return,
            };
            let signal = if harm == Harm::StopShim { Signal::STOP } else { Signal::KILL };
            pids.iter().for_each(|pid| signal_pid(*pid, signal));
            count(&signalled, harm, pids.len());
        })
    }

    /// How many processes `harm` has signalled so far.
    pub(crate) fn signalled(&self, harm: Harm) -> usize {
        let signalled = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        signalled.get(&harm.to_string()).copied().unwrap_or(0)
    }

    /// Takes each of `subjects` through `phase`, each with its own fault or none. Returns the calls of the agent, and
    /// the faults that were not reached.
    pub(crate) fn rounds(
        &mut self,
        subjects: &mut [Subject],
        phase: Phase,
        faults: &[Option<Fault>],
    ) -> Result<(Vec<Call>, Vec<Fault>)> {
        let named = subjects.iter().map(|subject| (subject.name.clone(), subject.digits())).collect();
        self.round.fetch_add(1, Ordering::Relaxed);
        self.wrapper.forget()?;
        self.proxy.reset_counts(named);
        for (subject, fault) in subjects.iter().zip(faults) {
            if let Some(Fault { method, number, harm, moment, .. }) = fault.clone() {
                let target = Target { method, number, about: Some(subject.name.clone()) };
                self.proxy.arm([Armed { target, moment, harm, blow: self.blow(harm, subject) }]);
            }
        }
        for subject in subjects.iter_mut() {
            subject.begin(self.node, phase)?;
        }
        let all: Vec<&Subject> = subjects.iter().collect();
        self.settle(&all, None)?;
        self.injected += self.struck().len();
        let waiting = self.proxy.still_armed();
        let missed = subjects.iter().zip(faults).filter_map(|(subject, fault)| {
            let is_armed = waiting.iter().any(|target| target.about.as_ref() == Some(&subject.name));
            fault.clone().filter(|_| is_armed)
        });
        Ok((self.calls(), missed.collect()))
    }

    /// Arms `fault` for `subject`.
    fn arm(&self, fault: &Fault, subject: &Subject) -> Result<()> {
        if fault.method.starts_with("cni.") {
            return self.wrapper.plan(&fault.method, fault.number, &format!("{}:{}", fault.harm, fault.moment));
        }
        let target = Target { method: fault.method.clone(), number: fault.number, about: None };
        self.proxy.arm([Armed {
            target,
            moment: fault.moment,
            harm: fault.harm,
            blow: self.blow(fault.harm, subject),
        }]);
        Ok(())
    }

    /// The harm that has happened since counting began.
    pub(crate) fn struck(&self) -> Vec<String> {
        [self.proxy.struck(), self.wrapper.struck()].concat()
    }
}

/// Kills the first runc that works for one of the pod's containers as soon as it starts, which the request that is
/// passed on now causes. Ends with `round`.
fn kill_runc(digits: Vec<String>, signalled: Signalled, round: Arc<AtomicUsize>) {
    let this = round.load(Ordering::Relaxed);
    std::thread::spawn(move || {
        let seen = || {
            let mut all = named("runc").into_iter();
            let pid = all.find(|pid| arguments(*pid).iter().any(|word| digits.iter().any(|end| word.ends_with(end))));
            if round.load(Ordering::Relaxed) == this { pid.map(Some) } else { Some(None) }
        };
        // There may be none, because not every request needs one.
        if let Ok(Some(pid)) = wait::until(RUNC_COMES, "a runc", seen) {
            signal_pid(pid, Signal::KILL);
            count(&signalled, Harm::KillRunc, 1);
        }
    });
}

fn count(signalled: &Signalled, harm: Harm, processes: usize) {
    let mut signalled = signalled.lock().unwrap_or_else(PoisonError::into_inner);
    *signalled.entry(harm.to_string()).or_default() += processes;
}
