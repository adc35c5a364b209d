//! Reading what the kernel has at hand: a small manifest that was written just now lies in the page cache, and reading it
//! there waits for nothing, so it needs no other thread. Each change of thread costs up to milliseconds on a box whose
//! processors sleep.
//!
//! Where anything would have to wait (the name or the bytes are not cached, a symlink, a file system that cannot tell),
//! there is no answer, and [`super::look`] looks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{ReadWriteFlags, preadv2};

use super::FileSource;
use super::look::{Finding, Known, Place, Stamp};

/// Bytes: making pods of more takes longer than another thread does to be called, and would hold up this one.
const MOST: usize = 8 << 10;

impl FileSource {
    /// Looks at one name, if that takes no waiting and changes nothing of what is followed: many are better read elsewhere.
    pub(super) fn look_at_hand(&mut self, names: &BTreeSet<Arc<str>>) -> bool {
        let (Some(name), 1, None) = (names.first(), names.len(), self.unseen) else { return false };
        if self.links.contains(name) {
            return false;
        }
        let Some((known, finding)) = self.place.at_hand(name, self.known.get(name).copied()) else { return false };
        self.drop_uncertain();
        self.known.insert(Arc::clone(name), known);
        if let Some(finding) = finding {
            self.find(Arc::clone(name), finding);
        }
        true
    }
}

impl Place {
    /// What `name` holds, or that it is as it was `before`: `Known` is what to remember. `None`: somebody who may wait has to
    /// look. Never blocks on a file system of this machine (Linux 5.12).
    pub(super) fn at_hand(&self, name: &Arc<str>, before: Option<Known>) -> Option<(Known, Option<Finding>)> {
        let (file, metadata) = self.open_cached(name).ok()?;
        let stamp = Stamp::of(&metadata);
        if before == Some(Known { stamp: Some(stamp), link: false }) {
            return Some((Known { stamp: Some(stamp), link: false }, None));
        }
        let now = SystemTime::now();
        let text = read_cached(&file, usize::try_from(metadata.len()).ok()?)?;
        let known = Known { stamp: stamp.is_settled(now).then_some(stamp), link: false };
        Some((known, Some(Finding::Read(self.decode(name, &text)))))
    }

    /// A regular file, by names that are all cached, the last one no symlink.
    fn open_cached(&self, name: &str) -> io::Result<(File, std::fs::Metadata)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let path = self.directory.join(name);
        let file = File::from(openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::CACHED)?);
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata)) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// All of a file of `size` bytes, if that is little and cached.
fn read_cached(file: &File, size: usize) -> Option<Vec<u8>> {
    if size > MOST {
        return None;
    }
    // One more than there should be: a file that has grown is being written.
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

    fn place(directory: &Path) -> Place {
        Place::at(directory, "edge1", decoder()).0
    }

    fn look(place: &Place, name: &str) -> Option<(Known, Option<Finding>)> {
        place.at_hand(&Arc::from(name), None)
    }

    #[test]
    fn what_was_written_just_now_is_at_hand_and_what_may_take_a_while_is_not() {
        // tmpfs does not tell whether it would wait: the directory of the executable is on a disk.
        let directory = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let (path, place) = (directory.path(), place(directory.path()));
        fs::write(path.join("small.yaml"), "pod web a\n").unwrap();
        fs::write(path.join("large.yaml"), "pod web a\n".repeat(MOST)).unwrap();
        symlink("small.yaml", path.join("link.yaml")).unwrap();
        fs::create_dir(path.join("directory.yaml")).unwrap();

        let Some((known, Some(Finding::Read(manifest)))) = look(&place, "small.yaml") else {
            eprintln!("skipped: the file system of {} does not tell whether a read would wait", path.display());
            return;
        };
        assert_eq!(manifest.pods.len(), 1);
        assert!(!known.link);
        for name in ["large.yaml", "link.yaml", "directory.yaml", "absent.yaml"] {
            assert!(look(&place, name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_as_it_was_is_not_read_again() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("web.yaml"), "pod web a\n").unwrap();
        let stamp = Stamp::of(&fs::metadata(directory.path().join("web.yaml")).unwrap());
        let known = Known { stamp: Some(stamp), link: false };
        let found = place(directory.path()).at_hand(&Arc::from("web.yaml"), Some(known));
        assert!(matches!(found, Some((still, None)) if still == known));
    }
}
