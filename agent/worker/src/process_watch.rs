//! Watches the first processes of a pod's containers, and keeps their loggers running. containerd reports exits with
//! the exit code. An exit that only the kernel reports is checked: the event was missed, or a shim hangs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::WorkerContext;
use super::inbox::Inbox;
use crate::executor::ExecutorError;
use limpet_core::state::{Life, PodState};
use limpet_model::container::{ContainerId, Task};
use limpet_model::process::ProcessHandle;

/// How long containerd may take to report an exit that the kernel has reported.
const EXIT_EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The deadline for its answer to a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// containerd's state of a container.
pub type Answer = Result<Option<Task>, ExecutorError>;

/// A process: its container's id in containerd, and its number.
pub type ProcessKey = (ContainerId, u32);

/// A pod's running processes: the container's name, and the handle of its first process, if the kernel provides one.
type RunningProcesses<'a> = BTreeMap<ProcessKey, (&'a str, Option<&'a Arc<dyn ProcessHandle>>)>;

/// The processes whose exits are awaited.
#[derive(Debug, Default)]
pub struct ProcessWatch {
    waiting: JoinSet<(ProcessKey, Answer)>,
    followed: BTreeMap<ProcessKey, AbortHandle>,
    /// The loggers that are kept running.
    loggers: BTreeMap<ProcessKey, AbortOnDropHandle<()>>,
}

impl ProcessWatch {
    /// Watches the running processes of `pod`, and no others any more.
    pub fn follow(&mut self, pod: Option<&PodState>, context: &WorkerContext, inbox: &Arc<Inbox>) {
        let running: RunningProcesses<'_> = pod.map(running).unwrap_or_default();
        self.followed.retain(|key, wait| {
            let runs = running.contains_key(key);
            if !runs {
                wait.abort();
                context.followed.remove(key.1);
            }
            runs
        });
        self.loggers.retain(|key, _| running.contains_key(key));
        for (key, (container, process)) in running {
            self.loggers.entry(key.clone()).or_insert_with(|| keep_logger(&key, container, context, inbox));
            if !self.followed.contains_key(&key) {
                context.followed.add(key.1, key.0.clone());
                let look = look_for_end(key.clone(), container.to_owned(), process.cloned(), context, inbox);
                self.followed.insert(key, self.waiting.spawn(look));
            }
        }
    }

    /// A process that exited without an event from containerd, with containerd's view of its task; never resolves
    /// while there is none. Cancel safe.
    pub async fn missed_exit(&mut self) -> (ProcessKey, Answer) {
        loop {
            match self.waiting.join_next().await {
                Some(Ok((key, answer))) => {
                    self.followed.remove(&key);
                    return (key, answer);
                }
                // The watch was dropped because the exit is known.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// The running processes, with their handles if the kernel provides them.
fn running(pod: &PodState) -> RunningProcesses<'_> {
    let instances = pod.containers.iter().filter_map(|slot| Some((slot.name.as_str(), slot.instance.as_ref()?)));
    let processes = instances.filter_map(|(name, instance)| match &instance.life {
        Life::Running { pid, process, .. } if *pid > 0 => Some(((instance.id.clone(), *pid), (name, process.as_ref()))),
        _ => None,
    });
    processes.collect()
}

/// Has its logger kept running.
fn keep_logger(
    (id, pid): &ProcessKey,
    container: &str,
    context: &WorkerContext,
    inbox: &Arc<Inbox>,
) -> AbortOnDropHandle<()> {
    let (inbox, container) = (Arc::clone(inbox), container.to_owned());
    let report = move |message| inbox.put(|messages| drop(messages.loggers.insert(container.clone(), message)));
    let kept = Arc::clone(&context.executor).keep_logger(id.clone(), *pid, Box::new(report));
    AbortOnDropHandle::new(tokio::spawn(kept))
}

/// Waits for the exit, gives containerd time to report it, then reads the task's state.
fn look_for_end(
    key: ProcessKey,
    container: String,
    process: Option<Arc<dyn ProcessHandle>>,
    context: &WorkerContext,
    inbox: &Arc<Inbox>,
) -> impl Future<Output = (ProcessKey, Answer)> + Send + use<> {
    let (executor, inbox) = (Arc::clone(&context.executor), Arc::clone(inbox));
    async move {
        let ended = match process {
            Some(process) => process.ended().await,
            None => Err(std::io::Error::other("the process has no pidfd")),
        };
        if let Err(error) = ended {
            tracing::debug!(container = %key.0, %error, "watching the container's process failed; containerd reports its exit");
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(EXIT_EVENT_TIMEOUT).await;
        let id = key.0.clone();
        let mut asked = std::pin::pin!(executor.task(id));
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, asked.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                report_hang(&inbox, &container);
                asked.await
            }
        };
        if matches!(answer, Ok(Some(Task::Created | Task::Running { .. } | Task::Unknown { .. }))) {
            report_hang(&inbox, &container);
        }
        (key, answer)
    }
}

fn report_hang(inbox: &Inbox, container: &str) {
    let seconds = EXIT_EVENT_TIMEOUT.as_secs();
    let message = format!(
        "the process of container {container} has ended, but its shim has not reported that for more than {seconds} s: the shim hangs"
    );
    inbox.put(|messages| messages.hanging = Some(message));
}
