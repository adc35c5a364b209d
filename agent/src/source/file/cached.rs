//! Reads a small manifest from the page cache on the agent's thread: a file that was just written is cached, so the
//! read does not block. Switching threads can cost milliseconds on a machine whose processors sleep.
//!
//! If the read might block (the name or the bytes are not cached, a symlink, a file system that cannot tell), it
//! returns `None`, and [`super::scan`] reads the file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{ReadWriteFlags, preadv2};

use super::FileSource;
use super::scan::{Finding, KnownFile, Scanner, Stamp};

/// In bytes: decoding a larger file takes longer than switching threads, and would block this one.
const MAX_SIZE: usize = 8 << 10;

impl FileSource {
    /// Scans one name, if that does not block and is no symlink; several names are better scanned on another thread.
    pub(super) fn rescan_cached(&mut self, names: &BTreeSet<Arc<str>>) -> bool {
        let (Some(name), 1, None) = (names.first(), names.len(), self.unwatched_fs) else { return false };
        if self.links.contains(name) {
            return false;
        }
        let Some((known, finding)) = self.scanner.scan_cached(name, self.known.get(name).copied()) else {
            return false;
        };
        self.drop_uncertain();
        self.known.insert(Arc::clone(name), known);
        if let Some(finding) = finding {
            self.apply_finding(Arc::clone(name), finding);
        }
        true
    }
}

impl Scanner {
    /// The content of `name`, or no finding if it is unchanged since `before`; `KnownFile` is its new state. `None`: a
    /// blocking scan is needed. Never blocks on a local file system (Linux 5.12).
    pub(super) fn scan_cached(
        &self,
        name: &Arc<str>,
        before: Option<KnownFile>,
    ) -> Option<(KnownFile, Option<Finding>)> {
        let (file, metadata) = self.open_cached(name).ok()?;
        let stamp = Stamp::of(&metadata);
        if before == Some(KnownFile { stamp: Some(stamp), link: false }) {
            return Some((KnownFile { stamp: Some(stamp), link: false }, None));
        }
        let now = SystemTime::now();
        let text = read_cached(&file, usize::try_from(metadata.len()).ok()?)?;
        let known = KnownFile { stamp: stamp.is_settled(now).then_some(stamp), link: false };
        Some((known, Some(Finding::Read(self.decode(name, &text)))))
    }

    /// Opens a regular file if all path components are cached and it is no symlink.
    fn open_cached(&self, name: &str) -> io::Result<(File, std::fs::Metadata)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let path = self.directory.join(name);
        let file = File::from(openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::CACHED)?);
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata)) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// The whole file of `size` bytes, if it is small and cached.
fn read_cached(file: &File, size: usize) -> Option<Vec<u8>> {
    if size > MAX_SIZE {
        return None;
    }
    // One byte more than expected: a file that has grown is being written.
    let mut text = vec![0; size + 1];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut text)], 0, ReadWriteFlags::NOWAIT).ok()?;
    text.truncate(read);
    (read == size).then_some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::super::tests::decoder;
    use super::*;

    fn scanner(directory: &Path) -> Scanner {
        Scanner::at(directory, "edge1", decoder()).0
    }

    fn scan(scanner: &Scanner, name: &str) -> Option<(KnownFile, Option<Finding>)> {
        scanner.scan_cached(&Arc::from(name), None)
    }

    #[test]
    fn a_file_just_written_is_read_from_the_cache_and_others_are_not() {
        // tmpfs does not report whether a read would block: the directory of the executable is on a disk.
        let directory = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let (path, scanner) = (directory.path(), scanner(directory.path()));
        fs::write(path.join("small.yaml"), "pod web a\n").unwrap();
        fs::write(path.join("large.yaml"), "pod web a\n".repeat(MAX_SIZE)).unwrap();
        symlink("small.yaml", path.join("link.yaml")).unwrap();
        fs::create_dir(path.join("directory.yaml")).unwrap();

        let Some((known, Some(Finding::Read(manifest)))) = scan(&scanner, "small.yaml") else {
            let place = path.display();
            limpet_tests::need::kernel_lacks(format!("{place} does not tell whether a read would block"));
            return;
        };
        assert_eq!(manifest.pods.len(), 1);
        assert!(!known.link);
        for name in ["large.yaml", "link.yaml", "directory.yaml", "absent.yaml"] {
            assert!(scan(&scanner, name).is_none(), "{name}");
        }
    }

    #[test]
    fn an_unchanged_file_is_not_read_again() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("web.yaml"), "pod web a\n").unwrap();
        let stamp = Stamp::of(&fs::metadata(directory.path().join("web.yaml")).unwrap());
        let known = KnownFile { stamp: Some(stamp), link: false };
        let found = scanner(directory.path()).scan_cached(&Arc::from("web.yaml"), Some(known));
        assert!(matches!(found, Some((still, None)) if still == known));
    }
}
