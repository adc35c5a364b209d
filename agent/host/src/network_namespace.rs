//! Runs work in the network namespace of a pod.
//!
//! A thread that enters a namespace stays in it, so each piece of work has its own thread, which ends with it.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

/// Runs `work` in the namespace pinned at `pin`. If the caller is dropped, the work is still finished.
///
/// # Errors
///
/// The namespace cannot be entered.
pub(crate) async fn run_in<T: Send + 'static>(
    pin: PathBuf,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new().name("pod-network".to_owned()).stack_size(128 << 10).spawn(move || {
        // The caller may be gone.
        let _ = done.send(enter(&pin).map(|()| work()));
    })?;
    result.await.map_err(|_| io::Error::other("the thread in the pod's network panicked"))?
}

fn enter(pin: &Path) -> io::Result<()> {
    let pin = std::fs::File::open(pin)?;
    Ok(move_into_link_name_space(pin.as_fd(), Some(LinkNameSpaceType::Network))?)
}
