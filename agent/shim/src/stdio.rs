//! The destinations of a process's streams: the URIs that containerd passes, and what is opened for them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use limpet_log::config::{self, WriterConfig};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

/// The streams of a process, as containerd names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stdio {
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: bool,
}

/// The destination in an output's URI.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Output is discarded.
    Null,
    /// A named pipe that a client reads.
    Fifo(PathBuf),
    /// A file that raw output is appended to.
    File(PathBuf),
    /// A program that reads the output.
    Binary(LoggerProgram),
    /// A CRI log, which the shim writes.
    Log(WriterConfig),
}

/// A program with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoggerProgram {
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<String>,
}

impl Output {
    /// Parses an output's URI: a path or `fifo://`, `file://`, `binary://`, or limpet's own.
    pub(crate) fn parse(uri: &str) -> io::Result<Self> {
        if uri.is_empty() {
            return Ok(Self::Null);
        }
        let Some((scheme, rest)) = uri.split_once("://") else { return Ok(Self::Fifo(uri.into())) };
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = || PathBuf::from(std::ffi::OsString::from_vec(decoded(path)));
        match scheme {
            "fifo" => Ok(Self::Fifo(path())),
            "file" => Ok(Self::File(path())),
            "binary" => Ok(Self::Binary(LoggerProgram { path: path(), arguments: arguments(query) })),
            config::SHIM_SCHEME => config::value(uri)
                .and_then(|value| WriterConfig::parse(&value))
                .map(Self::Log)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("not a log of limpet's: {uri}"))),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("unknown STDIO scheme {scheme}"))),
        }
    }
}

/// The keys and values of a query.
fn arguments(query: &str) -> Vec<String> {
    let text = |encoded: &str| {
        let bytes = decoded(&encoded.replace('+', " "));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .flat_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            [text(key), text(value)]
        })
        .collect()
}

/// Decodes percent-encoding; invalid encoding stays unchanged.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let byte = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = byte.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// A pipe from a process to the shim: the shim's end and the process's.
///
/// The process's end is also open for reading. While the process lives, the pipe has a reader, so if the shim is
/// killed a write blocks instead of ending the process by SIGPIPE.
pub(crate) fn output_pipe(owner: (u32, u32)) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    set_owner(&writer, owner)?;
    let both = reopened(&writer, OFlags::RDWR)?;
    set_nonblocking(&reader)?;
    Ok((reader, both))
}

/// A pipe from the shim to a process: the process's end and the shim's.
pub(crate) fn input_pipe(owner: (u32, u32)) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    set_owner(&reader, owner)?;
    set_nonblocking(&writer)?;
    Ok((reader, writer))
}

/// Gives a pipe to the user `owner`, unless that is root.
pub(crate) fn set_owner(pipe: &OwnedFd, owner: (u32, u32)) -> io::Result<()> {
    if owner == (0, 0) {
        return Ok(());
    }
    std::os::unix::fs::fchown(pipe, Some(owner.0), Some(owner.1))
}

fn reopened(pipe: &OwnedFd, access: OFlags) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?)
}

pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// Opens a client's FIFO for output. It is its own reader, so a client that goes away does not end the process.
pub(crate) fn open_output_fifo(path: &Path) -> io::Result<OwnedFd> {
    opened(path, OFlags::RDWR | OFlags::NONBLOCK)
}

/// Opens a client's FIFO for input: the process's end, and a descriptor that keeps it open after the client leaves.
pub(crate) fn open_input_fifo(path: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let reader = opened(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    Ok((reader, opened(path, OFlags::WRONLY | OFlags::NONBLOCK)?))
}

/// Opens a file for raw output, and creates its parent directories.
pub(crate) fn open_output_file(path: &Path) -> io::Result<OwnedFd> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).map_err(|error| named(path, error))
}

fn opened(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|error| named(path, error))
}

fn named(path: &Path, error: rustix::io::Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("open {}: {error}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn uris_say_where_output_goes() {
        assert_eq!(Output::parse("").unwrap(), Output::Null);
        assert_eq!(Output::parse("/run/f/out").unwrap(), Output::Fifo("/run/f/out".into()));
        assert_eq!(Output::parse("fifo:///run/f%20/out").unwrap(), Output::Fifo("/run/f /out".into()));
        assert_eq!(Output::parse("file:///var/log/x").unwrap(), Output::File("/var/log/x".into()));
        let program = LoggerProgram { path: "/bin/l".into(), arguments: vec!["id".into(), "a b".into()] };
        assert_eq!(Output::parse("binary:///bin/l?id=a+b").unwrap(), Output::Binary(program));
        let uri = config::uri(
            config::Writer::Shim,
            limpet_log::LogRotation { max_size: 7, max_files: 2 },
            Path::new("/var/log/pods/a b/0.log"),
            None,
            None,
        );
        let Output::Log(config) = Output::parse(&uri).unwrap() else { panic!("{uri}") };
        assert_eq!(config.path, Path::new("/var/log/pods/a b/0.log"));
        for bad in ["npipe:///x", "limpet:///x", "limpet://?logger=7"] {
            assert!(Output::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_process_without_its_shim_waits_and_is_not_ended() {
        let (reader, process) = output_pipe((0, 0)).unwrap();
        drop(reader);
        let mut process = std::fs::File::from(process);
        process.write_all(b"kept").unwrap();
        let mut text = [0; 4];
        process.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"kept");
    }
}
