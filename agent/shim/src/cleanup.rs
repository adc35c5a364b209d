//! `delete`: containerd calls it when the connection to a shim has ended. Ends what the shim has left, and reports
//! how the container ended: the recorded exit if there is one.

use std::fs;
use std::io;
use std::path::Path;

use crate::exit::Exit;
use crate::messages::DeleteResponse;
use crate::rootfs;
use crate::runtime::{Call, Runtime};

/// The file that says that a bundle's container was started.
pub(crate) const STARTED_FILE: &str = "started";

/// Cleans up after container `id`, and returns its exit.
pub(crate) fn clean_up(id: &str, bundle: &Path, namespace: &str) -> io::Result<DeleteResponse> {
    let pid = fs::read_to_string(bundle.join("init.pid")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let mut exit = None;
    // Without a recorded runtime nothing was created.
    if let Ok(runtime) = Runtime::recorded(bundle, namespace) {
        let exit_file = runtime.exit_file(bundle);
        exit = Exit::recorded(&exit_file).ok();
        // A container that has run does not count as one that never did.
        if exit.is_none() && bundle.join(STARTED_FILE).exists() {
            let killed = Exit::unknown(pid);
            if let Err(error) = killed.record(&exit_file) {
                eprintln!("record the exit of {id} in {}: {error}", exit_file.display());
            }
            exit = Some(killed);
        }
        let log = bundle.join("log-delete.json");
        let mut command = runtime.delete_by_force(&Call { id, bundle, log: &log });
        if let Err(error) = command.status() {
            eprintln!("run the OCI runtime {}: {error}", runtime.binary());
        }
    }
    if let Err(error) = rootfs::unmount_all(&bundle.join("rootfs")) {
        eprintln!("unmount the root of {id}: {error}");
    }
    let exit = exit.unwrap_or_else(|| Exit::unknown(pid));
    Ok(DeleteResponse { pid, exit_status: exit.code, exited_at: Some(exit.timestamp()) })
}
