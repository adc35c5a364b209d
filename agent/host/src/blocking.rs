//! Runs calls that may hang: below a dead network mount, on an unresponsive FUSE server, on a failing disk.
//!
//! [`run`] performs them on tokio's blocking threads, so the agent's single runtime thread never waits for a file
//! system. The kernel cannot cancel such a call. When it makes no progress for its deadline, the caller gets an error
//! that names the path, and the thread is left behind and counted by [`hung`] until the kernel answers.
//!
//! Calls on one subject (a pod's volumes, a pod's logs, the manifest directory) run one at a time. So a subject that
//! hangs occupies only one thread however often it is retried, and two attempts never work on the same files at once.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

/// How long a call may make no progress before its caller gets an error. A busy SD card takes seconds for a single
/// write.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// The most concurrent calls over all subjects: half of tokio's 512 threads, so that the rest is free for other
/// calls.
const MAX_CALLS: usize = 256;

static CALL_PERMITS: Semaphore = Semaphore::const_new(MAX_CALLS);
static HUNG_CALLS: AtomicUsize = AtomicUsize::new(0);
static SUBJECTS: Mutex<BTreeMap<PathBuf, Weak<Subject>>> = Mutex::new(BTreeMap::new());

/// The number of calls that have missed their deadline and still hold a thread.
pub fn hung() -> usize {
    HUNG_CALLS.load(Ordering::Relaxed)
}

/// The error of a call that made no progress.
#[derive(Debug, thiserror::Error)]
#[error("no answer from the file system of {} for {} s", path.display(), waited.as_secs())]
pub struct NoAnswer {
    /// The path that the call was accessing.
    pub path: PathBuf,
    /// The deadline it missed.
    pub waited: Duration,
}

/// The progress of a call, which reports the path that it is accessing.
#[derive(Debug)]
pub struct Progress(Mutex<State>);

#[derive(Debug)]
struct State {
    path: PathBuf,
    since: Instant,
    running: bool,
    hung: bool,
}

impl Progress {
    /// The progress of a call that begins at `path`.
    pub fn new(path: &Path) -> Self {
        Self(Mutex::new(State { path: path.to_owned(), since: Instant::now(), running: false, hung: false }))
    }

    /// Records that the call accesses `path` from now on, and restarts its deadline.
    pub fn at(&self, path: &Path) {
        let mut state = self.state();
        state.path = path.to_owned();
        state.since = Instant::now();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, path: &Path) {
        self.at(path);
        self.state().running = true;
    }

    fn end(&self) {
        let mut state = self.state();
        state.running = false;
        if std::mem::take(&mut state.hung) {
            HUNG_CALLS.fetch_sub(1, Ordering::Relaxed);
            tracing::info!(path = %state.path.display(), "the file system responds again");
        }
    }

    /// Records that the caller has given up.
    fn abandon(&self, waited: Duration) -> io::Error {
        let mut state = self.state();
        if state.running && !std::mem::replace(&mut state.hung, true) {
            let hung = HUNG_CALLS.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(path = %state.path.display(), hung, "file system call hangs");
        }
        io::Error::new(io::ErrorKind::TimedOut, NoAnswer { path: state.path.clone(), waited })
    }
}

/// The subject of calls that run one at a time. It exists while a call runs or waits.
#[derive(Debug)]
struct Subject {
    path: PathBuf,
    turn: Arc<tokio::sync::Mutex<()>>,
    progress: Progress,
}

impl Subject {
    fn acquire(path: PathBuf) -> Arc<Self> {
        let mut subjects = subjects();
        if let Some(known) = subjects.get(&path).and_then(Weak::upgrade) {
            return known;
        }
        let subject = Arc::new(Self { path: path.clone(), turn: Arc::default(), progress: Progress::new(&path) });
        subjects.insert(path, Arc::downgrade(&subject));
        subject
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let mut subjects = subjects();
        // Another subject with the same path may have replaced it.
        if subjects.get(&self.path).is_some_and(|known| known.strong_count() == 0) {
            subjects.remove(&self.path);
        }
    }
}

fn subjects() -> MutexGuard<'static, BTreeMap<PathBuf, Weak<Subject>>> {
    SUBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call on its thread. It is dropped when the kernel has answered, which may be long after the caller has gone.
#[derive(Debug)]
struct Running {
    subject: Arc<Subject>,
    _turn: OwnedMutexGuard<()>,
    /// Never closed, so it is always there.
    _permit: Option<SemaphorePermit<'static>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.subject.progress.end();
    }
}

/// Runs `work` on a blocking thread once no other call on `subject` runs. If the caller is dropped, the work is still
/// finished.
///
/// # Errors
///
/// `TimedOut` with [`NoAnswer`]: this call, or the one before it on the subject, made no progress for `deadline`. Any
/// other kind: the work panicked, or the agent is stopping.
pub async fn run<T: Send + 'static>(
    subject: PathBuf,
    deadline: Duration,
    work: impl FnOnce(&Progress) -> T + Send + 'static,
) -> io::Result<T> {
    let subject = Subject::acquire(subject);
    let waiting = Arc::clone(&subject);
    let mut call = std::pin::pin!(async move {
        let turn = Arc::clone(&waiting.turn).lock_owned().await;
        let permit = CALL_PERMITS.acquire().await.ok();
        waiting.progress.begin(&waiting.path);
        let running = Running { subject: waiting, _turn: turn, _permit: permit };
        tokio::task::spawn_blocking(move || work(&running.subject.progress)).await
    });
    let began = Instant::now();
    loop {
        let waits = subject.progress.state().since.max(began).elapsed();
        let Some(left) = deadline.checked_sub(waits) else { return Err(subject.progress.abandon(deadline)) };
        if let Ok(done) = tokio::time::timeout(left, &mut call).await {
            return done.map_err(io::Error::other);
        }
    }
}

/// Whether a call on `subject` runs.
pub fn is_busy(subject: &Path) -> bool {
    subjects().get(subject).and_then(Weak::upgrade).is_some_and(|subject| subject.turn.try_lock().is_err())
}

/// Resolves when no call on `subject` runs: immediately, or when its file system answers.
pub async fn answered(subject: &Path) {
    let turn = Arc::clone(&Subject::acquire(subject.to_owned()).turn);
    drop(turn.lock().await);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use super::*;

    /// A FIFO: a reader waits for a writer.
    fn fifo(directory: &Path) -> PathBuf {
        let path = directory.join("fifo");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
        path
    }

    fn read(path: PathBuf) -> impl FnOnce(&Progress) -> String + Send + 'static {
        move |progress| {
            progress.at(&path);
            let mut text = String::new();
            File::open(&path).unwrap().read_to_string(&mut text).unwrap();
            text
        }
    }

    fn is_no_answer(result: io::Result<String>, path: &Path) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), format!("no answer from the file system of {} for 0 s", path.display()));
    }

    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_call_that_hangs_holds_one_thread_and_no_other_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(directory.path());
        let subject = directory.path().join("pod");
        is_no_answer(run(subject.clone(), SHORT, read(path.clone())).await, &path);
        // The second attempt waits for the first, whose path is the one that hangs.
        is_no_answer(run(subject.clone(), SHORT, |_| String::new()).await, &path);
        assert_eq!(hung(), 1);
        assert_eq!(run(directory.path().join("other"), DEADLINE, |_| 7).await.unwrap(), 7);

        File::options().write(true).open(&path).unwrap().write_all(b"late").unwrap();
        answered(&subject).await;
        assert_eq!(hung(), 0);
        assert_eq!(run(subject.clone(), DEADLINE, |_| 8).await.unwrap(), 8);
        assert!(!subjects().contains_key(&subject), "a subject without calls is kept");
    }

    #[tokio::test]
    async fn progress_begins_the_deadline_again_and_a_panic_frees_the_subject() {
        let subject = tempfile::tempdir().unwrap().keep();
        let slow = |progress: &Progress| {
            for step in 0..4 {
                progress.at(Path::new(&step.to_string()));
                std::thread::park_timeout(Duration::from_millis(150));
            }
        };
        run(subject.clone(), Duration::from_millis(400), slow).await.unwrap();
        let failed = run(subject.clone(), DEADLINE, |_| -> () { panic!("on purpose") }).await.unwrap_err();
        assert_ne!(failed.kind(), io::ErrorKind::TimedOut);
        run(subject.clone(), DEADLINE, |_| ()).await.unwrap();
        std::fs::remove_dir(subject).unwrap();
    }
}
