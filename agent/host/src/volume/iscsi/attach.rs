//! Logs in to a disk's target and waits for the disk.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::commands::{self, OnFailure, SESSION_EXISTS, Step};
use super::disk::Disk;
use super::record::{self, Record};
use super::sessions::{self, Session};
use super::{ISCSIADM, IscsiDisks, IscsiMount, PACKAGES, on_files, text};
use crate::blocking::DEADLINE;
use crate::path_watch::PathWatch;
use crate::program::Output;
use crate::volume::node_tools::output_text;

/// The deadline of a call of `iscsiadm`.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// The deadline of a login, within which iscsid gives up by itself.
const LOGIN_DEADLINE: Duration = Duration::from_secs(60);
/// How long a target may take to answer the kernel, which scans for a disk or flushes its writes.
pub(super) const TARGET_DEADLINE: Duration = Duration::from_secs(120);
/// How long the kernel may take to find the disk.
const DISK_DEADLINE: Duration = Duration::from_secs(30);
/// How long multipathd may take to combine the paths to a disk.
const MULTIPATH_DEADLINE: Duration = Duration::from_secs(10);

impl IscsiDisks {
    /// Makes the disk known to the kernel, and returns its device: the multipath one, or that of the first portal
    /// that has it.
    pub(super) async fn attach(&self, mount: &IscsiMount, record: &mut Record) -> Result<PathBuf, String> {
        let disk = &mount.disk;
        let (mut devices, mut last, mut has_interface) = (Vec::new(), String::new(), false);
        let connected = self.connected(mount).await?;
        for portals in [&connected, &disk.portals] {
            if !devices.is_empty() {
                break;
            }
            for portal in portals {
                match self.path_to(mount, *portal, record, &mut has_interface).await {
                    Ok(name) => devices.push(name),
                    Err(reason) => {
                        tracing::warn!(target = disk.iqn, %portal, "no path to an iSCSI disk");
                        last = reason;
                    }
                }
            }
        }
        let Some(first) = devices.first() else {
            if disk.own_interface.is_some() && has_interface {
                let _ = self.iscsiadm(&commands::delete_interface(&disk.interface), CALL_DEADLINE).await;
            }
            return Err(format!("failed to get any path for iscsi disk, last err seen: {last}"));
        };
        let may_appear = disk.portals.len() > 1 && connected.is_empty();
        let wait = if may_appear { MULTIPATH_DEADLINE } else { Duration::ZERO };
        let multipath = self.multipath(&disk.iqn, &devices, wait).await?;
        Ok(self.node.dev.join(multipath.as_ref().unwrap_or(first)))
    }

    /// The portals with a session, for a device that the pod already has: the other portals were tried before, and
    /// each start of a container looks for the device.
    async fn connected(&self, mount: &IscsiMount) -> Result<Vec<SocketAddr>, String> {
        let mut connected = Vec::new();
        if !mount.block || !on_files(&mount.path, |path| Ok(path.is_symlink())).await.map_err(text)? {
            return Ok(connected);
        }
        for portal in &mount.disk.portals {
            if self.session(&mount.disk, *portal).await?.is_some() {
                connected.push(*portal);
            }
        }
        Ok(connected)
    }

    /// The kernel's name of the disk through `portal`.
    async fn path_to(
        &self,
        mount: &IscsiMount,
        portal: SocketAddr,
        record: &mut Record,
        has_interface: &mut bool,
    ) -> Result<String, String> {
        let disk = &mount.disk;
        if let Some(session) = self.session(disk, portal).await? {
            self.take_over(portal, record).await?;
            return self.wait_for_disk(session, disk.lun).await;
        }
        if !std::mem::replace(has_interface, true) {
            self.prepare_interface(disk).await?;
        }
        // Recorded before the login, because an unrecorded session would stay.
        record.logged_in.retain(|known| *known != portal);
        record.logged_in.push(portal);
        self.save(record).await?;
        let made = self.log_in(mount, portal).await;
        if !matches!(made, Ok(true)) {
            // A session that another program has opened is not limpet's to end.
            record.logged_in.retain(|known| *known != portal);
            self.save(record).await?;
        }
        made?;
        let session = self.session(disk, portal).await?;
        let session = session.ok_or_else(|| format!("there is no session with portal {portal} after the login"))?;
        tracing::info!(target = disk.iqn, %portal, "logged in to an iSCSI target");
        self.wait_for_disk(session, disk.lun).await
    }

    pub(super) async fn session(&self, disk: &Disk, portal: SocketAddr) -> Result<Option<Session>, String> {
        let disk = disk.clone();
        let target = disk.iqn.clone();
        self.on_kernel(&target, DEADLINE, move |sys| sessions::find(sys, &disk, portal)).await
    }

    /// Records that the session is limpet's if it was created for another disk of the same target.
    async fn take_over(&self, portal: SocketAddr, record: &mut Record) -> Result<(), String> {
        if record.logged_in.contains(&portal) {
            return Ok(());
        }
        let all = on_files(&self.directory, record::all).await.map_err(text)?;
        let made = |other: &Record| other.owns(portal, &record.boot) && record.disk.shares_session(&other.disk, portal);
        if all.iter().any(made) {
            record.logged_in.push(portal);
            self.save(record).await?;
        }
        Ok(())
    }

    async fn save(&self, record: &Record) -> Result<(), String> {
        let record = record.clone();
        on_files(&self.directory, move |disks| record::save(disks, &record)).await.map_err(text)
    }

    /// Creates the volume's own interface; any other has to exist.
    async fn prepare_interface(&self, disk: &Disk) -> Result<(), String> {
        let model = disk.own_interface.as_ref().map_or(&disk.interface, |interface| &interface.model);
        let shown = self.iscsiadm(&commands::show_interface(model), CALL_DEADLINE).await?;
        if !shown.success {
            return Err(format!("iscsi: could not read iface {model}: {}", output_text(&shown)));
        }
        let Some(interface) = &disk.own_interface else { return Ok(()) };
        let made = self.iscsiadm(&commands::new_interface(&disk.interface), CALL_DEADLINE).await?;
        if !made.success && made.code != Some(SESSION_EXISTS) {
            return Err(format!("iscsi: failed to create new iface {}: {}", disk.interface, output_text(&made)));
        }
        let shown = String::from_utf8_lossy(&shown.stdout);
        for call in commands::clone_interface(&disk.interface, &shown, &interface.initiator) {
            let updated = self.iscsiadm(&call, CALL_DEADLINE).await?;
            if !updated.success {
                return Err(format!("iscsi: failed to update iface {}: {}", disk.interface, output_text(&updated)));
            }
        }
        Ok(())
    }

    /// Logs in. Returns false if another program has created the session meanwhile.
    async fn log_in(&self, mount: &IscsiMount, portal: SocketAddr) -> Result<bool, String> {
        let mut made = false;
        for step in commands::log_in(&mount.disk, portal, &mount.chap) {
            let is_login = step.is_login();
            let Step { arguments, on_failure } = step;
            let output = self.iscsiadm(&arguments, LOGIN_DEADLINE).await;
            let reason = match output {
                Ok(output) if output.success || output.code == Some(SESSION_EXISTS) => {
                    made |= is_login && output.success;
                    continue;
                }
                Ok(output) => output_text(&output),
                Err(reason) => reason,
            };
            match on_failure {
                OnFailure::Ignore => {
                    tracing::debug!(%portal, reason, "an optional iscsiadm call failed")
                }
                OnFailure::Abort(what, undone) => {
                    if let Some(undone) = undone {
                        let _ = self.iscsiadm(&undone, CALL_DEADLINE).await;
                    }
                    return Err(format!("{what}: {reason}"));
                }
            }
        }
        Ok(made)
    }

    pub(super) async fn iscsiadm(&self, arguments: &[String], deadline: Duration) -> Result<Output, String> {
        Ok(self.node.run(ISCSIADM, PACKAGES, arguments, deadline).await?)
    }

    /// Has the kernel scan for the disk, and waits for its device.
    async fn wait_for_disk(&self, session: Session, lun: u32) -> Result<String, String> {
        // Watched before the first check, so that a later device is reported.
        let mut watch = PathWatch::directory(&self.node.dev).await.map_err(text)?;
        let look = |session: Session| {
            let dev = self.node.dev.clone();
            let target = session.target.clone();
            async move {
                let find = move |_: &Path| Ok(session.disk(lun).filter(|name| dev.join(name).exists()));
                self.on_kernel(&target, DEADLINE, find).await
            }
        };
        if let Some(name) = look(session.clone()).await? {
            return Ok(name);
        }
        let scanned = session.clone();
        let scanned = self.on_kernel(&session.target, TARGET_DEADLINE, move |sys| scanned.scan(sys, lun)).await;
        scanned.map_err(|error| format!("the kernel cannot be asked for LUN {lun}: {error}"))?;
        let appears = async {
            loop {
                if let Some(name) = look(session.clone()).await? {
                    return Ok(name);
                }
                watch.changed().await.map_err(text)?;
            }
        };
        let waited = tokio::time::timeout(DISK_DEADLINE, appears).await;
        waited.unwrap_or_else(|_| {
            Err(format!("Timed out waiting for a device of LUN {lun} after {} s", DISK_DEADLINE.as_secs()))
        })
    }

    /// The multipath device of these disks; waits for it for up to `wait`.
    async fn multipath(&self, target: &str, disks: &[String], wait: Duration) -> Result<Option<String>, String> {
        let look = || {
            let disks = disks.to_vec();
            let find = move |sys: &Path| Ok(disks.iter().find_map(|disk| sessions::multipath(sys, disk)));
            self.on_kernel(target, DEADLINE, find)
        };
        if wait.is_zero() {
            return look().await;
        }
        let mut watch = PathWatch::directory(&self.node.dev).await.map_err(text)?;
        // The link there is created once the device has its paths.
        let mut links = PathWatch::directory(&self.node.dev.join("mapper")).await.map_err(text)?;
        let appears = async {
            loop {
                let device = look().await?;
                if device.is_some() {
                    return Ok(device);
                }
                tokio::select! {
                    changed = watch.changed() => changed.map_err(text)?,
                    changed = links.changed() => changed.map_err(text)?,
                }
            }
        };
        tokio::time::timeout(wait, appears).await.unwrap_or(Ok(None))
    }
}
