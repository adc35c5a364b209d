//! The statistics of a container's cgroups, as containerd's runc shim reports them: `io.containerd.cgroups.v1.Metrics` and
//! `io.containerd.cgroups.v2.Metrics`.

mod v1;
mod v2;

use std::fs;
use std::path::Path;

use prost::Message;
use prost_types::Any;

use crate::cgroup::{Cgroup, MAX_FILE};

pub(crate) fn read(cgroup: &Cgroup) -> Any {
    let (version, metrics) = match cgroup {
        Cgroup::V1(_) => ("v1", v1::metrics(cgroup)),
        Cgroup::V2(directory) => ("v2", v2::metrics(directory)),
    };
    Any { type_url: format!("io.containerd.cgroups.{version}.Metrics"), value: metrics.0 }
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Pids {
    #[prost(uint64, tag = "1")]
    current: u64,
    #[prost(uint64, tag = "2")]
    limit: u64,
}

/// Encoded fields, some by prost and some by a table: concatenating encoded messages merges them.
#[derive(Clone, Debug, Default)]
struct Encoded(Vec<u8>);

impl Encoded {
    fn table(text: &str, names: &[&str]) -> Self {
        let mut bytes = Vec::new();
        for (tag, name) in (1..).zip(names) {
            prost::encoding::uint64::encode(tag, &keyed(text, name), &mut bytes);
        }
        Self(bytes)
    }

    fn with(mut self, message: &impl Message) -> Self {
        self.0.extend(message.encode_to_vec());
        self
    }

    /// Appends another message as the field `tag`.
    fn field(mut self, tag: u32, message: &Self) -> Self {
        prost::encoding::bytes::encode(tag, &message.0, &mut self.0);
        self
    }
}

/// The page sizes in the names of a cgroup's files: `hugetlb.2MB.current`.
fn page_sizes(directory: &Path, suffix: &'static str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(suffix)?;
        (!size.contains('.')).then(|| size.to_owned())
    })
}

/// A file of a cgroup; empty if it does not exist.
fn text(path: &Path) -> String {
    use std::io::Read as _;
    let mut text = String::new();
    if let Ok(file) = fs::File::open(path) {
        // What cannot be read is left out.
        let _ = file.take(MAX_FILE as u64).read_to_string(&mut text);
    }
    text
}

/// A file with a single number. As in containerd, `max` is the highest number.
fn parsed(text: &str) -> u64 {
    let text = text.trim();
    if text == "max" { u64::MAX } else { text.parse().unwrap_or(0) }
}

/// The number after a key at the beginning of a line.
fn keyed(text: &str, key: &str) -> u64 {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    values.next().unwrap_or(0)
}
