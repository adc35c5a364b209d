//! Serves files and directories below the log directory as kubelet does: files as they are, directories as pages of
//! links.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::refuse;
use limpet_host::blocking;
use limpet_host::confined::{self, Confinement};

/// The most entries of a directory that are listed.
const MAX_ENTRIES: usize = 10_000;
/// The most symlinks that are followed for one file, as in the kernel.
const MAX_LINKS: usize = 40;
/// The size of each read, in bytes.
const READ_SIZE: usize = 32 << 10;

pub(super) enum Found {
    /// A file, with its size when it was opened.
    File(File, u64),
    /// The names in a directory; those of subdirectories end with a slash.
    Directory(Vec<String>),
}

/// The response for a path below `dir`.
pub(super) async fn serve(dir: &Path, path: &str) -> Response {
    let Some(inner) = inner(path) else { return refuse(StatusCode::BAD_REQUEST, "invalid URL path") };
    let (dir, wanted) = (dir.to_owned(), inner.clone());
    let entry = match blocking::run(dir.clone(), blocking::DEADLINE, move |_| find(&dir, &wanted)).await {
        Ok(entry) => entry,
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    let is_directory_path = path.is_empty() || path.ends_with('/');
    let name = inner.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match entry {
        // Redirects as kubelet does, so that relative links in the page work.
        Ok(Found::Directory(_)) if !is_directory_path => moved(&format!("{}/", escaped(&name))),
        Ok(Found::Directory(names)) => {
            ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page(&names)).into_response()
        }
        Ok(Found::File(..)) if is_directory_path => moved(&format!("../{}", escaped(&name))),
        Ok(Found::File(file, size)) => {
            let stream = ReaderStream::with_capacity(tokio::fs::File::from_std(file).take(size), READ_SIZE);
            ([(header::CONTENT_TYPE, content_type(&name))], Body::from_stream(stream)).into_response()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => refuse(StatusCode::NOT_FOUND, "404 page not found"),
        Err(_) => refuse(StatusCode::FORBIDDEN, "403 Forbidden"),
    }
}

/// The path below the directory; `None` if it leads upward, or no file can have it.
fn inner(path: &str) -> Option<PathBuf> {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let parts: Vec<&str> = parts.collect();
    let is_sane = parts.iter().all(|part| *part != ".." && !part.contains('\0'));
    is_sane.then(|| parts.into_iter().collect())
}

/// Opens the file or directory at `path` below `dir`. Blocks.
///
/// # Errors
///
/// It does not exist, or it is outside of `dir`: a symlink or a magic link leads out.
pub(super) fn find(dir: &Path, path: &Path) -> io::Result<Found> {
    let root = openat(CWD, dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let opened = open(&root, dir, path.to_owned())?;
    let status = fstat(&opened)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => Ok(Found::Directory(names(&opened)?)),
        FileType::RegularFile => Ok(Found::File(opened.into(), u64::try_from(status.st_size).unwrap_or(0))),
        // Opening a FIFO or a device would block.
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Opens a path below the root. Absolute links are followed if they lead into `dir`, as those of
/// `/var/log/containers` do. The kernel refuses all that lead out.
fn open(root: &OwnedFd, dir: &Path, mut path: PathBuf) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    for _ in 0..MAX_LINKS {
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
        match confined::open(root, here, flags, Confinement::BENEATH) {
            Ok(opened) => return Ok(opened),
            Err(Errno::XDEV) => {}
            Err(error) => return Err(error.into()),
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = confined::open(root, parent, OFlags::PATH | OFlags::DIRECTORY, Confinement::BENEATH)?;
        let target = readlinkat(&parent, path.file_name().unwrap_or_default(), Vec::new())?;
        let target = PathBuf::from(String::from_utf8_lossy(target.as_bytes()).into_owned());
        let inside = target.strip_prefix(dir).map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))?;
        path = inside.to_owned();
    }
    Err(Errno::LOOP.into())
}

fn names(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)?.take(MAX_ENTRIES + 2) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match (&*name, entry.file_type()) {
            ("." | "..", _) => {}
            (_, FileType::Directory) => names.push(format!("{name}/")),
            _ => names.push(name),
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A page of links in the format of Go's file server.
fn page(names: &[String]) -> String {
    let mut page = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        let shown = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
        // Writing to a `String` cannot fail.
        let _ = writeln!(page, "<a href=\"{}\">{shown}</a>", escaped(name));
    }
    page + "</pre>\n"
}

/// Escapes a name for a URL.
fn escaped(name: &str) -> String {
    name.bytes().fold(String::new(), |mut text, byte| {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/' | b'@' | b'+');
        // Writing to a `String` cannot fail.
        let _ = if plain { write!(text, "{}", char::from(byte)) } else { write!(text, "%{byte:02X}") };
        text
    })
}

fn moved(location: &str) -> Response {
    (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, location.to_owned())]).into_response()
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.') {
        Some((_, "gz" | "xz" | "zst" | "bz2" | "journal")) => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    }
}
