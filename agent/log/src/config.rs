//! The configuration of a container's log, and the URI that contains it for a task's streams.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::LogRotation;

/// The only parameter of the URI, and the first argument that selects the logger's role.
pub(crate) const ARGUMENT: &str = "logger";

/// The configuration of a logger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterConfig {
    /// When to rotate, and how many files to keep.
    pub rotation: LogRotation,
    /// The log's newest file, absolute.
    pub path: PathBuf,
    /// The directory of the container's terminal, absolute; `None`: clients cannot attach to it.
    pub terminal: Option<PathBuf>,
    /// The host's user who should own the pipes; `None` if runc can give them to the container's user.
    pub owner: Option<u32>,
}

impl WriterConfig {
    /// Parses `<max size>:<max files>:<length>:<terminal><path>`, with the length of `<terminal>` in bytes,
    /// optionally preceded by `@<owner>@`; `None` if it is invalid.
    pub fn parse(value: &OsStr) -> Option<Self> {
        let mut parts = value.as_bytes().splitn(4, |byte| *byte == b':');
        let mut next = || parts.next();
        let first = next()?;
        let (owner, max_size) = match first.strip_prefix(b"@") {
            None => (None, number(first)?),
            Some(owner) => {
                let at = owner.iter().position(|byte| *byte == b'@')?;
                (Some(number(&owner[..at])?), number(&owner[at + 1..])?)
            }
        };
        let max_files = number(next()?)?;
        let length = number(next()?)?;
        let (terminal, path) = next()?.split_at_checked(length)?;
        let absolute = |bytes| Some(PathBuf::from(OsStr::from_bytes(bytes))).filter(|path| path.is_absolute());
        let terminal = if terminal.is_empty() { None } else { Some(absolute(terminal)?) };
        Some(Self { rotation: LogRotation { max_size, max_files }, path: absolute(path)?, terminal, owner })
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer<'a> {
    /// A process of limpet's executable, which containerd's runc shim starts.
    Process(&'a Path),
    /// limpet's shim itself.
    Shim,
}

/// The scheme for [`Writer::Shim`].
pub const SHIM_SCHEME: &str = "limpet";

/// The URI for a task's stdout and stderr in containerd, with which `writer` logs to `log_path` and passes output on
/// to clients attached at the directory `terminal`. In a pod with a user namespace, `owner` is the host's id of the
/// user that opens them in the container.
///
/// It has only one query parameter, because containerd's shim converts parameters to arguments in random order.
pub fn uri(
    writer: Writer<'_>,
    rotation: LogRotation,
    log_path: &Path,
    terminal: Option<&Path>,
    owner: Option<u32>,
) -> String {
    let owner = owner.map(|owner| format!("%40{owner}%40")).unwrap_or_default();
    let mut uri = match writer {
        Writer::Process(executable) => {
            let mut uri = String::from("binary://");
            escape(&mut uri, executable.as_os_str().as_bytes());
            uri
        }
        Writer::Shim => format!("{SHIM_SCHEME}://"),
    };
    let terminal = terminal.map(|terminal| terminal.as_os_str().as_bytes()).unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = write!(uri, "?{ARGUMENT}={owner}{}:{}:{}:", rotation.max_size, rotation.max_files, terminal.len());
    escape(&mut uri, terminal);
    escape(&mut uri, log_path.as_os_str().as_bytes());
    uri
}

/// Percent-encodes all characters that Go's URL parser could misinterpret, in a path or in a query.
fn escape(uri: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => uri.push(char::from(*byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(uri, "%{byte:02X}")),
        }
    }
}

/// The value in a task's stdout URI from [`uri`]; `None` for any other URI.
pub fn value(uri: &str) -> Option<OsString> {
    let (scheme, rest) = uri.split_once("://")?;
    if scheme != "binary" && scheme != SHIM_SCHEME {
        return None;
    }
    let encoded = rest.split_once(&format!("?{ARGUMENT}="))?.1.as_bytes();
    let mut value = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            value.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            value.push(*first);
        }
    }
    Some(OsString::from_vec(value))
}
