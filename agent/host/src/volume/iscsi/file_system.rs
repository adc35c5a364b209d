//! A disk's file system: made where there is none, checked, and mounted, as by kubelet's `FormatAndMount`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::{IscsiDisks, IscsiMount};
use crate::mount_table;
use crate::program::Output;
use crate::volume::VolumeError;
use crate::volume::node_tools::said;

const LOOK_DEADLINE: Duration = Duration::from_secs(30);
/// How long the making or the checking of a file system may take.
const REPAIR_DEADLINE: Duration = Duration::from_secs(600);
/// How long a mount may take, which may begin with the journal.
const MOUNT_DEADLINE: Duration = Duration::from_secs(60);

/// `blkid`: there is nothing that it knows.
const BLANK: i32 = 2;
/// `fsck`: there are errors that it could not correct.
const UNCORRECTED: i32 = 4;

/// What is on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Blank,
    /// A file system of this type.
    FileSystem(String),
    /// Partitions, or something else that is not to be written over.
    Other,
}

impl IscsiDisks {
    /// Mounts `device` at `path`, with a new file system if it is blank.
    pub(super) async fn mount(&self, device: &Path, path: &Path, mount: &IscsiMount) -> Result<(), String> {
        let shown = device.display();
        let read_only = mount.read_only || mount.options.iter().any(|option| option == "ro");
        let arguments = call(&["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"], &[device]);
        let looked = self.node.run("blkid", "install util-linux", &arguments, LOOK_DEADLINE).await?;
        let content =
            content(&looked).ok_or_else(|| format!("failed to get disk format of disk {shown}: {}", said(&looked)))?;
        match content {
            Content::Blank if read_only => {
                return Err(format!(
                    "cannot mount unformatted disk {shown} as we are manipulating it in read-only mode"
                ));
            }
            Content::Blank => self.format(device, &mount.fs_type).await?,
            Content::FileSystem(found) => {
                if found != mount.fs_type {
                    tracing::warn!(%shown, found, wanted = mount.fs_type, "a disk has another file system than its volume");
                }
                if !read_only {
                    self.check(device).await?;
                }
            }
            // The mount says what it is not.
            Content::Other => {}
        }
        let options = options(&mount.options, mount.read_only);
        let arguments = call(&["-t", &mount.fs_type, "-o", &options], &[device, path]);
        let mounted = self.node.run("mount", "install util-linux", &arguments, MOUNT_DEADLINE).await?;
        match mounted.success {
            true => Ok(()),
            false => Err(said(&mounted)),
        }
    }

    async fn format(&self, device: &Path, fs_type: &str) -> Result<(), String> {
        let tool = format!("mkfs.{fs_type}");
        tracing::info!(device = %device.display(), fs_type, "a blank iSCSI disk gets a file system");
        let arguments = call(format_options(fs_type), &[device]);
        let remedy = "install it (e2fsprogs has mkfs.ext4, xfsprogs mkfs.xfs), or name another fsType";
        let made = self.node.run(&tool, remedy, &arguments, REPAIR_DEADLINE).await?;
        match made.success {
            true => Ok(()),
            false => Err(format!("format of disk {} failed: {}", device.display(), said(&made))),
        }
    }

    /// Has what can be repaired repaired.
    async fn check(&self, device: &Path) -> Result<(), String> {
        let checked = self.node.run("fsck", "install util-linux", &call(&["-a"], &[device]), REPAIR_DEADLINE).await;
        match checked {
            Ok(output) if output.code == Some(UNCORRECTED) => {
                let said = [&output.stdout[..], &output.stderr[..]].concat();
                let said = said_of(said);
                Err(format!("'fsck' found errors on device {} but could not correct them: {said}", device.display()))
            }
            Ok(output) => {
                if !output.success {
                    tracing::info!(device = %device.display(), code = output.code, said = said(&output), "fsck of a disk");
                }
                Ok(())
            }
            // As with kubelet the mount shows whether it matters.
            Err(reason) => {
                tracing::warn!(device = %device.display(), reason, "an iSCSI disk is mounted without a check");
                Ok(())
            }
        }
    }
}

/// What `blkid` says of a disk; `None`: it has failed.
fn content(looked: &Output) -> Option<Content> {
    if looked.code == Some(BLANK) {
        return Some(Content::Blank);
    }
    if !looked.success {
        return None;
    }
    let text = String::from_utf8_lossy(&looked.stdout);
    let value = |key: &str| {
        let of_key = |line: &str| Some(line.split_once('=').filter(|(name, _)| *name == key)?.1.to_owned());
        text.lines().find_map(of_key).filter(|value| !value.is_empty())
    };
    match (value("PTTYPE"), value("TYPE")) {
        (Some(_), _) => Some(Content::Other),
        (None, Some(found)) => Some(Content::FileSystem(found)),
        (None, None) => Some(Content::Blank),
    }
}

/// kubelet's: without room for root alone, and over what a partition table may have left.
fn format_options(fs_type: &str) -> &'static [&'static str] {
    match fs_type {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    }
}

fn call(texts: &[&str], paths: &[&Path]) -> Vec<OsString> {
    texts.iter().map(OsString::from).chain(paths.iter().map(OsString::from)).collect()
}

fn options(options: &[String], read_only: bool) -> String {
    let read_only = read_only.then_some("ro");
    let options: Vec<&str> = options.iter().map(String::as_str).chain(read_only).chain(["defaults"]).collect();
    options.join(",")
}

fn said_of(stderr: Vec<u8>) -> String {
    said(&Output { success: false, code: None, stdout: Vec::new(), stderr })
}

/// Refuses a pod that wants to write where another one has had the disk mounted read-only.
pub(super) fn check_access(path: &Path, wants_write: bool) -> Result<Result<(), String>, VolumeError> {
    if !wants_write {
        return Ok(Ok(()));
    }
    let real = path.canonicalize().map_err(VolumeError::io("stat", path))?;
    let mounts = mount_table::mounts().map_err(VolumeError::io("read", "/proc/self/mountinfo"))?;
    let found = mounts.iter().rfind(|mount| mount.point == real);
    let is_read_only = found.is_some_and(|mount| mount.flags.iter().chain(&mount.options).any(|flag| flag == "ro"));
    Ok(match is_read_only {
        true => Err("the disk is mounted read-only on this node: another pod has it so, or the kernel after an error \
                     (dmesg)"
            .to_owned()),
        false => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disk_without_anything_on_it_is_formatted() {
        let of = |code: i32, stdout: &str| {
            let stdout = stdout.as_bytes().to_vec();
            content(&Output { success: code == 0, code: Some(code), stdout, stderr: Vec::new() })
        };
        assert_eq!(of(2, ""), Some(Content::Blank));
        assert_eq!(of(0, ""), Some(Content::Blank));
        assert_eq!(of(0, "DEVNAME=/dev/sda\nTYPE=xfs\n"), Some(Content::FileSystem("xfs".to_owned())));
        assert_eq!(of(0, "DEVNAME=/dev/sda\nPTTYPE=gpt\n"), Some(Content::Other));
        assert_eq!(of(8, ""), None);
    }

    #[test]
    fn options_are_kubelets() {
        let options = |given: &[&str], read_only: bool| {
            super::options(&given.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>(), read_only)
        };
        assert_eq!(options(&[], false), "defaults");
        assert_eq!(options(&["noatime"], true), "noatime,ro,defaults");
        assert_eq!(format_options("ext4"), ["-F", "-m0"]);
        assert_eq!(format_options("xfs"), ["-f"]);
        assert_eq!(format_options("btrfs"), [] as [&str; 0]);
    }
}
