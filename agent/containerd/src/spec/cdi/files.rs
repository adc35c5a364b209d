//! The files of CDI devices: JSON and YAML below `/etc/cdi` and `/var/run/cdi`. They are read whenever a container
//! with such devices starts, because vendors may write them at any time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde_saphyr::budget::Budget;

use super::{ContainerEdits, DeviceNode, Document};
use crate::spec::SpecError;

/// The largest file that is read.
const MAX_BYTES: u64 = 1 << 20;
/// The most files of a directory that are read.
const MAX_FILES: usize = 1_024;
/// The deepest nesting of a file.
const MAX_DEPTH: usize = 32;

/// The files, and what is wrong with unreadable ones.
#[derive(Debug, Default)]
pub(in crate::spec) struct CdiFiles {
    documents: Vec<FoundFile>,
    faults: Vec<String>,
}

#[derive(Debug)]
struct FoundFile {
    /// The index of its directory: a later directory takes precedence.
    directory: usize,
    path: PathBuf,
    document: Document,
}

/// Reads all files in `directories`, the later of which take precedence. Blocks.
pub(in crate::spec) fn read(directories: &[PathBuf]) -> CdiFiles {
    let mut files = CdiFiles::default();
    for (index, directory) in directories.iter().enumerate() {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_file = |path: &PathBuf| {
            path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| matches!(ending, "json" | "yaml"))
        };
        let mut paths: Vec<PathBuf> = entries.filter(is_file).take(MAX_FILES).collect();
        paths.sort();
        for path in paths {
            match read_file(&path) {
                Ok(document) => files.documents.push(FoundFile { directory: index, path, document }),
                Err(fault) => files.faults.push(format!("{}: {fault}", path.display())),
            }
        }
    }
    files
}

fn read_file(path: &Path) -> Result<Document, String> {
    if !fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("is no file".to_owned());
    }
    let mut text = String::new();
    let opened = fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    opened.map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("is larger than {MAX_BYTES} bytes"));
    }
    parse(&text)
}

/// Parses YAML, which includes JSON.
pub(super) fn parse(text: &str) -> Result<Document, String> {
    let mut options = serde_saphyr::Options::default();
    let mut budget = Budget::default();
    (budget.max_depth, budget.max_documents) = (MAX_DEPTH, 1);
    options.budget = Some(budget);
    let document: Document =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.without_snippet().to_string())?;
    let (major, rest) = document.cdi_version.split_once('.').unwrap_or_default();
    let minor = rest.split('.').next().and_then(|minor| minor.parse::<u32>().ok());
    let known = match (major, minor) {
        ("0", Some(minor)) => (3..=8).contains(&minor),
        ("1", Some(minor)) => minor <= 1,
        _ => false,
    };
    if !known {
        return Err(format!("cdiVersion {:?} is not one of 0.3.0 to 1.1.0", document.cdi_version));
    }
    if !document.kind.split_once('/').is_some_and(|(vendor, class)| !vendor.is_empty() && !class.is_empty()) {
        return Err(format!("kind {:?} is not vendor/class", document.kind));
    }
    document.devices.iter().try_for_each(|device| check(&device.container_edits))?;
    check(&document.container_edits)?;
    Ok(document)
}

fn check(edits: &ContainerEdits) -> Result<(), String> {
    if edits.intel_rdt.is_some() {
        return Err("containerEdits.intelRdt is not supported: limpet sets up no cache partitions".to_owned());
    }
    if edits.net_devices.is_some() {
        return Err("containerEdits.netDevices is not supported".to_owned());
    }
    let variables = edits.env.iter().chain(edits.hooks.iter().flat_map(|hook| &hook.env));
    for variable in variables {
        if variable.find('=').is_none_or(|at| at == 0) {
            return Err(format!("containerEdits.env: {variable:?} is not NAME=value"));
        }
    }
    for node in &edits.device_nodes {
        let path = node.path.display();
        if !node.path.is_absolute() {
            return Err(format!("containerEdits.deviceNodes: {path:?} is not an absolute path"));
        }
        if !["", "b", "c", "u", "p"].contains(&node.kind.as_str()) {
            return Err(format!("containerEdits.deviceNodes: {path}: type {:?} is not b, c, u or p", node.kind));
        }
        if !node.permissions.chars().all(|letter| "rwm".contains(letter)) {
            return Err(format!(
                "containerEdits.deviceNodes: {path}: {:?} is not made of r, w and m",
                node.permissions
            ));
        }
    }
    let absolute = |path: &Path| {
        if path.is_absolute() { Ok(()) } else { Err(format!("containerEdits: {path:?} is not an absolute path")) }
    };
    edits.mounts.iter().try_for_each(|mount| absolute(&mount.container_path))?;
    edits.hooks.iter().try_for_each(|hook| absolute(&hook.path))
}

/// The edits of the devices `names`, in their order, completed from the host's nodes. Blocks.
///
/// # Errors
///
/// No file has one of them, two files in a directory have it, or one of its nodes does not exist.
pub(in crate::spec) fn resolve(files: &CdiFiles, names: &[&str]) -> Result<Vec<ContainerEdits>, SpecError> {
    let mut edits = find(files, names).map_err(SpecError::Cdi)?;
    for node in edits.iter_mut().flat_map(|edit| &mut edit.device_nodes) {
        fill_in(node)?;
    }
    Ok(edits)
}

/// The edits as they are in the files.
pub(super) fn find(files: &CdiFiles, names: &[&str]) -> Result<Vec<ContainerEdits>, String> {
    let mut used: BTreeMap<&Path, ()> = BTreeMap::new();
    let mut edits = Vec::new();
    for name in names {
        let (kind, device) =
            name.split_once('=').ok_or_else(|| format!("CDI device {name:?} is not named as vendor.com/class=name"))?;
        let of_kind = files.documents.iter().filter(|file| file.document.kind == kind);
        let having = of_kind.filter_map(|file| {
            file.document.devices.iter().find(|candidate| candidate.name == device).map(|candidate| (file, candidate))
        });
        let having: Vec<_> = having.collect();
        let first = having.iter().map(|(file, _)| file.directory).max();
        let mut preceding = having.into_iter().filter(|(file, _)| Some(file.directory) == first);
        let Some((file, device_spec)) = preceding.next() else {
            let faults = files.faults.iter().map(|fault| format!("; {fault}")).collect::<String>();
            return Err(format!("unresolvable CDI device {name}: no file of /etc/cdi or /var/run/cdi has it{faults}"));
        };
        if let Some((other, _)) = preceding.next() {
            return Err(format!("CDI device {name} is in both {} and {}", file.path.display(), other.path.display()));
        }
        if used.insert(&file.path, ()).is_none() {
            edits.push(file.document.container_edits.clone());
        }
        edits.push(device_spec.container_edits.clone());
    }
    Ok(edits)
}

/// Takes the type and numbers that the file omits from the host's node. Links are not followed.
fn fill_in(node: &mut DeviceNode) -> Result<(), SpecError> {
    if node.kind == "p" || (!node.kind.is_empty() && node.major != 0) {
        return Ok(());
    }
    let host = if node.host_path.as_os_str().is_empty() { &node.path } else { &node.host_path };
    let metadata = fs::symlink_metadata(host).map_err(|source| SpecError::read(host, source))?;
    let kind = match metadata.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        kind if kind.is_fifo() => "p",
        _ => return Err(SpecError::read(host, io::Error::other("is no device"))),
    };
    if !node.kind.is_empty() && node.kind != kind && (node.kind.as_str(), kind) != ("u", "c") {
        let text = format!("is of type {kind}, and the CDI file says {}", node.kind);
        return Err(SpecError::read(host, io::Error::other(text)));
    }
    kind.clone_into(&mut node.kind);
    node.major = i64::from(rustix::fs::major(metadata.rdev()));
    node.minor = i64::from(rustix::fs::minor(metadata.rdev()));
    Ok(())
}
