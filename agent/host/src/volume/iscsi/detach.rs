//! Detaches a pod's disks: after the last pod the file system is unmounted, the disk is deleted from the kernel, and
//! limpet's own sessions end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use limpet_model::pod::PodUid;
use limpet_model::pod::volume_kind::VolumePlugin;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::attach::{CALL_DEADLINE, TARGET_DEADLINE};
use super::commands::{self, NOTHING_FOUND, SESSION_EXISTS};
use super::record::{self, Record};
use super::sessions::{self, Session};
use super::{IscsiDisks, on_files, text};
use crate::blocking::DEADLINE;
use crate::volume::node_tools::output_text;
use crate::volume::{VolumeError, mounted, plugin_directory, removal, sub_path};

/// The deadline for flushing and unmounting a disk.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(60);

impl IscsiDisks {
    /// Detaches the pod's disks; its containers have ended.
    pub(in super::super) async fn tear_down(&self, pod_dir: &Path, uid: &PodUid) -> Result<(), VolumeError> {
        let pod = uid.clone();
        let records = on_files(&self.directory, move |disks| record::of_pod(disks, &pod)).await?;
        if records.is_empty() {
            return Ok(());
        }
        on_files(pod_dir, detach_mounts).await?;
        let torn_down = records.iter().map(|record| self.give_back(record, uid));
        futures_util::future::join_all(torn_down).await.into_iter().collect()
    }

    async fn give_back(&self, record: &Record, uid: &PodUid) -> Result<(), VolumeError> {
        let _guard = self.locks.lock(record.disk.iqn.clone()).await;
        let directory = record.disk.directory(&self.directory);
        let pod = uid.clone();
        if on_files(&directory, move |directory| record::is_shared(directory, &pod)).await? {
            let pod = uid.clone();
            return on_files(&directory, move |directory| record::leave(directory, &pod)).await;
        }
        let detached = self.detach(record, &directory).await;
        detached.map_err(|reason| VolumeError::Unmount { disk: record.disk.name(), reason })?;
        on_files(&directory, record::end).await?;
        self.release(&directory);
        Ok(())
    }

    async fn detach(&self, record: &Record, directory: &Path) -> Result<(), String> {
        self.unmount(record::mount_point(directory)).await?;
        let (boot, mut others) =
            on_files(&self.directory, |disks| Ok((record::boot(), record::all(disks)?))).await.map_err(text)?;
        others.retain(|other| other.disk.directory(&self.directory) != directory);
        for portal in &record.disk.portals {
            let ending = record.ending(*portal, &others, &boot);
            let mut has_session = false;
            if let Some(session) = self.session(&record.disk, *portal).await? {
                if ending.delete {
                    self.delete(&session, record.disk.lun).await?;
                }
                has_session = !(ending.log_out && self.log_out(&session, *portal).await?);
            }
            let is_shared = others.iter().any(|other| record.disk.shares_session(&other.disk, *portal));
            // The session needs its record; a record without a session stems from limpet's login, possibly before a
            // reboot.
            if !has_session && record.logged_in.contains(portal) && !is_shared {
                self.undo(&commands::delete_node(&record.disk, *portal), &[SESSION_EXISTS]).await?;
            }
        }
        let has_interface = |other: &Record| other.disk.interface == record.disk.interface;
        if record.disk.own_interface.is_some() && !others.iter().any(has_interface) {
            self.undo(&commands::delete_interface(&record.disk.interface), &[]).await?;
        }
        Ok(())
    }

    async fn unmount(&self, path: PathBuf) -> Result<(), String> {
        if !on_files(&path, mounted::is_mounted).await.map_err(text)? {
            return Ok(());
        }
        let output = self.node.run("umount", "install util-linux", &[&path], UNMOUNT_DEADLINE).await?;
        match output.success || !on_files(&path, mounted::is_mounted).await.map_err(text)? {
            true => Ok(()),
            false => Err(output_text(&output)),
        }
    }

    /// Deletes the disk from the kernel, unless it is in use and would lose writes.
    async fn delete(&self, session: &Session, lun: u32) -> Result<(), String> {
        let Some(name) = session.disk(lun) else { return Ok(()) };
        let disk = name.clone();
        let multipath =
            self.on_kernel(&session.target, DEADLINE, move |sys| Ok(sessions::multipath(sys, &disk))).await?;
        if let Some(multipath) = multipath {
            self.check_free(&multipath).await?;
            let device = self.node.dev.join(multipath);
            let flushed = self
                .node
                .run("multipath", "install multipath-tools", &["-f".as_ref(), device.as_os_str()], CALL_DEADLINE)
                .await?;
            if !flushed.success {
                return Err(format!("multipath -f {}: {}", device.display(), output_text(&flushed)));
            }
        }
        self.check_free(&name).await?;
        let delete = move |sys: &Path| sessions::delete(sys, &name);
        let deleted = self.on_kernel(&session.target, TARGET_DEADLINE, delete).await;
        deleted.map_err(|error| format!("the kernel does not give up the disk: {error}"))
    }

    async fn check_free(&self, name: &str) -> Result<(), String> {
        let device = self.node.dev.join(name);
        match on_files(&device, |device| Ok(is_held(device))).await.map_err(text)? {
            false => Ok(()),
            true => Err(format!(
                "{} is still in use; find out by what with lsblk and fuser -vm, and end it",
                device.display()
            )),
        }
    }

    /// Ends the session, unless another disk of it is in use. Returns whether it has ended.
    async fn log_out(&self, session: &Session, portal: SocketAddr) -> Result<bool, String> {
        for (_, name) in session.disks() {
            let device = self.node.dev.join(&name);
            if on_files(&device, |device| Ok(is_held(device))).await.map_err(text)? {
                tracing::warn!(target = session.target, %portal, disk = name, "iSCSI session is kept because another of its disks is in use");
                return Ok(false);
            }
        }
        self.undo(&commands::log_out(session.number), &[]).await?;
        tracing::info!(target = session.target, %portal, "logged out of an iSCSI target");
        Ok(true)
    }

    /// Performs a call that may have been performed before; these exit codes count as success.
    async fn undo(&self, call: &[String], passes: &[i32]) -> Result<(), String> {
        let output = self.iscsiadm(call, CALL_DEADLINE).await?;
        match output.success || output.code.is_some_and(|code| NOTHING_FOUND.contains(&code) || passes.contains(&code))
        {
            true => Ok(()),
            false => Err(output_text(&output)),
        }
    }
}

/// Unmounts the disks' file systems and their subPaths from the pod; its other volumes stay. Blocks.
fn detach_mounts(pod_dir: &Path) -> Result<(), VolumeError> {
    let disks = plugin_directory::path(pod_dir, VolumePlugin::Iscsi);
    for volume in record::list(&disks)?.iter().filter_map(|path| path.file_name()) {
        removal::detach_below(&sub_path::directory(pod_dir, volume))?;
    }
    removal::detach_below(&disks)
}

/// Whether the kernel uses the disk: it is mounted in some mount namespace, or part of another device. Blocks.
fn is_held(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    matches!(rustix::fs::open(device, flags, Mode::empty()), Err(Errno::BUSY))
}
