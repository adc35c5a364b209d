//! A disk's file system: created on a blank disk, checked, and mounted, as in kubelet's `FormatAndMount`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use super::{IscsiDisks, IscsiMount, RunError, text};
use crate::mount_table;
use crate::program::{self, Output};
use crate::volume::VolumeError;
use crate::volume::node_tools::output_text;

const BLKID_DEADLINE: Duration = Duration::from_secs(30);
/// The deadline for creating or checking a file system: hours, for a large disk behind a slow network.
const REPAIR_DEADLINE: Duration = Duration::from_secs(6 * 3600);
/// How many bytes at each end of a disk are read before it is formatted.
const EDGE_LENGTH: u64 = 1 << 20;
/// How long the reading of these may take.
const EDGE_DEADLINE: Duration = Duration::from_secs(60);
/// The deadline of a mount, which may begin with replaying the journal.
const MOUNT_DEADLINE: Duration = Duration::from_secs(60);

/// `blkid`: nothing was recognized.
const BLKID_NOTHING_FOUND: i32 = 2;
/// `fsck`: errors were corrected, and the machine should be rebooted if it is the root file system. Anything else is
/// a failure.
const FSCK_CORRECTED: i32 = 1 | 2;
/// `fsck`: errors remain uncorrected.
const FSCK_UNCORRECTED: i32 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Blank,
    /// A file system of this type.
    FileSystem(String),
    /// Partitions, or anything else that must not be overwritten.
    Other,
}

impl IscsiDisks {
    /// Mounts `device` at `path`, with a new file system if it is blank.
    pub(super) async fn mount(&self, device: &Path, path: &Path, mount: &IscsiMount) -> Result<(), String> {
        let shown = device.display();
        let read_only = mount.read_only || mount.options.iter().any(|option| option == "ro");
        let arguments = call(&["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"], &[device]);
        let looked = self.node.run("blkid", "install util-linux", &arguments, BLKID_DEADLINE).await?;
        let content = content(&looked)
            .ok_or_else(|| format!("failed to get disk format of disk {shown}: {}", output_text(&looked)))?;
        match content {
            Content::Blank if read_only => {
                return Err(format!(
                    "cannot mount unformatted disk {shown} as we are manipulating it in read-only mode"
                ));
            }
            Content::Blank => {
                self.check_blank(device).await?;
                self.format(device, &mount.fs_type).await?;
            }
            Content::FileSystem(name) => {
                if name != mount.fs_type {
                    tracing::warn!(%shown, found = name, wanted = mount.fs_type, "the disk has another file system than the volume specifies");
                }
                if !read_only {
                    self.check(device, &name).await?;
                }
            }
            // The mount reports the mismatch.
            Content::Other => {}
        }
        let options = options(&mount.options, mount.read_only);
        let arguments = call(&["-t", &mount.fs_type, "-o", &options], &[device, path]);
        let mounted = self.node.run("mount", "install util-linux", &arguments, MOUNT_DEADLINE).await?;
        match mounted.success {
            true => Ok(()),
            false => Err(output_text(&mounted)),
        }
    }

    async fn format(&self, device: &Path, fs_type: &str) -> Result<(), String> {
        let tool = format!("mkfs.{fs_type}");
        tracing::info!(device = %device.display(), fs_type, "formatting a blank iSCSI disk");
        let arguments = call(format_options(fs_type), &[device]);
        let remedy = "install it (e2fsprogs has mkfs.ext4, xfsprogs mkfs.xfs), or name another fsType";
        let made = self.node.run(&tool, remedy, &arguments, REPAIR_DEADLINE).await?;
        match made.success {
            true => Ok(()),
            false => Err(format!("format of disk {} failed: {}", device.display(), output_text(&made))),
        }
    }

    /// Checks and repairs the file system. A disk whose check has not finished must not be written to.
    async fn check(&self, device: &Path, fs_type: &str) -> Result<(), String> {
        let shown = device.display();
        let checker = program::find(&format!("fsck.{fs_type}"), &self.node.tools).await.map_err(text)?;
        let checked = self.node.run("fsck", "install util-linux", &call(&["-a"], &[device]), REPAIR_DEADLINE).await;
        match checked {
            Ok(output) => checked_well(&output, checker.is_some(), device),
            // As in kubelet, the mount shows whether it matters.
            Err(RunError::Missing(reason)) => {
                tracing::warn!(%shown, reason, "mounting an iSCSI disk without a file system check");
                Ok(())
            }
            Err(RunError::Failed(reason)) => Err(format!("'fsck' of device {shown}: {reason}")),
        }
    }

    /// Refuses a disk that cannot be read, or has data at its beginning or end, because `blkid` takes it for blank as
    /// well.
    async fn check_blank(&self, device: &Path) -> Result<(), String> {
        let path = device.to_owned();
        let read = crate::blocking::run(device.to_owned(), EDGE_DEADLINE, move |_| unwritten(&path));
        let shown = device.display();
        match read.await.and_then(|read| read) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!(
                "disk {shown} has no file system that blkid knows, and is not blank; if nothing on it is needed, overwrite its \
                 first and last MiB with zeros"
            )),
            Err(error) => Err(format!("disk {shown} is not formatted because it cannot be read: {error}")),
        }
    }
}

/// The result of a check; `has_checker` tells whether this file system has a checker.
fn checked_well(output: &Output, has_checker: bool, device: &Path) -> Result<(), String> {
    let (shown, text) = (device.display(), first_lines([&output.stdout[..], &output.stderr[..]].concat()));
    match output.code {
        Some(code) if code & !FSCK_CORRECTED == 0 => {
            if code != 0 {
                tracing::info!(%shown, code, output = text, "fsck corrected errors on a disk");
            }
            Ok(())
        }
        Some(_) if !has_checker => {
            tracing::warn!(%shown, output = text, "mounting an iSCSI disk without a file system check");
            Ok(())
        }
        Some(code) if code & FSCK_UNCORRECTED != 0 => {
            Err(format!("'fsck' found errors on device {shown} but could not correct them: {text}"))
        }
        Some(code) => Err(format!("'fsck' of device {shown} failed with {code}: {text}")),
        None => Err(format!("'fsck' of device {shown} was ended by a signal: {text}")),
    }
}

/// Whether both ends of a disk consist of zeros. Blocks.
fn unwritten(device: &Path) -> io::Result<bool> {
    let mut disk = File::open(device)?;
    let size = disk.seek(SeekFrom::End(0))?;
    if size == 0 {
        return Err(io::Error::other("its size is 0"));
    }
    let length = size.min(EDGE_LENGTH);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    for start in [0, size - length] {
        disk.seek(SeekFrom::Start(start))?;
        disk.read_exact(&mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Interprets the output of `blkid`; `None` if it failed.
fn content(looked: &Output) -> Option<Content> {
    // It exits with the same code if a disk cannot be read.
    let complains = !looked.stderr.trim_ascii().is_empty();
    if looked.code == Some(BLKID_NOTHING_FOUND) && !complains {
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
        (None, Some(name)) => Some(Content::FileSystem(name)),
        (None, None) => Some(Content::Blank).filter(|_| !complains),
    }
}

/// kubelet's options, without reserved blocks, and without force, which no tool needs on a blank disk.
fn format_options(fs_type: &str) -> &'static [&'static str] {
    match fs_type {
        "ext3" | "ext4" => &["-m0"],
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

fn first_lines(stderr: Vec<u8>) -> String {
    output_text(&Output { success: false, code: None, stdout: Vec::new(), stderr })
}

/// Refuses to mount the disk writable while another pod has mounted it read-only.
pub(super) fn check_access(path: &Path, wants_write: bool) -> Result<Result<(), String>, VolumeError> {
    if !wants_write {
        return Ok(Ok(()));
    }
    let real = path.canonicalize().map_err(VolumeError::io("stat", path))?;
    let mounts = mount_table::mounts().map_err(VolumeError::io("read", "/proc/self/mountinfo"))?;
    let mounted = mounts.iter().rfind(|mount| mount.point == real);
    let is_read_only = mounted.is_some_and(|mount| mount.flags.iter().chain(&mount.options).any(|flag| flag == "ro"));
    Ok(match is_read_only {
        true => Err("the disk is mounted read-only on this node: another pod has it so, or the kernel after an error \
                     (dmesg)"
            .to_owned()),
        false => Ok(()),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disk_without_anything_on_it_is_formatted() {
        let content_of = |code: i32, stdout: &str| {
            let stdout = stdout.as_bytes().to_vec();
            content(&Output { success: code == 0, code: Some(code), stdout, stderr: Vec::new() })
        };
        assert_eq!(content_of(2, ""), Some(Content::Blank));
        assert_eq!(content_of(0, ""), Some(Content::Blank));
        assert_eq!(content_of(0, "DEVNAME=/dev/sda\nTYPE=xfs\n"), Some(Content::FileSystem("xfs".to_owned())));
        assert_eq!(content_of(0, "DEVNAME=/dev/sda\nPTTYPE=gpt\n"), Some(Content::Other));
        assert_eq!(content_of(8, ""), None);
        for code in [0, 2] {
            let stderr = b"error: /dev/sda: Input/output error\n".to_vec();
            let complaint = Output { success: code == 0, code: Some(code), stdout: Vec::new(), stderr };
            assert_eq!(content(&complaint), None);
        }
    }

    #[test]
    fn a_disk_is_blank_only_if_both_its_ends_can_be_read_and_are_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        let is_unwritten = |written: &[(u64, u8)], size: u64| {
            let file = File::create(&disk).unwrap();
            file.set_len(size).unwrap();
            for (at, byte) in written {
                std::os::unix::fs::FileExt::write_all_at(&file, &[*byte], *at).unwrap();
            }
            unwritten(&disk)
        };
        let size = 8 * EDGE_LENGTH;
        assert!(is_unwritten(&[], size).unwrap() && is_unwritten(&[], 512).unwrap());
        // The middle may contain anything.
        assert!(is_unwritten(&[(4 * EDGE_LENGTH, 1)], size).unwrap());
        for at in [0, EDGE_LENGTH - 1, 7 * EDGE_LENGTH, size - 1] {
            assert!(!is_unwritten(&[(at, 1)], size).unwrap(), "{at}");
        }
        assert!(is_unwritten(&[], 0).is_err());
        assert!(unwritten(&dir.path().join("none")).is_err() && unwritten(dir.path()).is_err());
    }

    #[test]
    fn a_check_that_has_not_come_to_an_end_is_an_error() {
        let check = |code: Option<i32>, has_checker: bool| {
            let output = Output { success: code == Some(0), code, stdout: Vec::new(), stderr: b"why".to_vec() };
            checked_well(&output, has_checker, Path::new("/dev/sda"))
        };
        for code in [0, 1, 2, 3] {
            assert_eq!(check(Some(code), true), Ok(()));
        }
        for (code, message) in [
            (Some(4), "'fsck' found errors on device /dev/sda but could not correct them: why"),
            (Some(8), "'fsck' of device /dev/sda failed with 8: why"),
            (None, "'fsck' of device /dev/sda was ended by a signal: why"),
        ] {
            assert_eq!(check(code, true), Err(message.to_owned()));
        }
        assert_eq!(check(Some(8), false), Ok(()));
        assert!(check(None, false).is_err());
    }

    #[test]
    fn options_are_kubelets() {
        let options = |given: &[&str], read_only: bool| {
            super::options(&given.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>(), read_only)
        };
        assert_eq!(options(&[], false), "defaults");
        assert_eq!(options(&["noatime"], true), "noatime,ro,defaults");
        assert_eq!(format_options("ext4"), ["-m0"]);
        assert_eq!(format_options("xfs"), [] as [&str; 0]);
    }
}
