#![allow(clippy::unwrap_used)]
//! Compares the walk with the kernel's own answers.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use rustix::fs::CWD;

use super::*;

/// A directory inside another one, with everything that a path may meet.
fn tree() -> tempfile::TempDir {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("root");
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir_all(base.path().join("outside")).unwrap();
    fs::write(base.path().join("outside/secret"), "secret").unwrap();
    fs::write(root.join("file"), "top").unwrap();
    fs::write(root.join("a/file"), "in a").unwrap();
    rustix::fs::mkfifoat(CWD, root.join("pipe"), Mode::RWXU).unwrap();
    let links = [
        ("to-a", "a"),
        ("to-a-slash", "a/"),
        ("to-file", "a/file"),
        ("to-file-slash", "a/file/"),
        ("a/up", ".."),
        ("a/b/to-top-file", "../../file"),
        ("out", "../outside/secret"),
        ("out-dir", "../outside"),
        ("deep-out", "a/b/../../../outside/secret"),
        ("in-by-out", "../root/file"),
        ("absolute", "/a/file"),
        ("absolute-out", "/etc/passwd"),
        ("a/absolute-dir", "/a"),
        ("dangling", "none"),
        ("loop", "loop2"),
        ("loop2", "loop"),
        ("chain0", "file"),
        ("to-proc", "/proc/self/root"),
        ("dots", "./a/./b/../file"),
    ];
    for (name, target) in links {
        symlink(target, root.join(name)).unwrap();
    }
    for number in 1..=45 {
        symlink(format!("chain{}", number - 1), root.join(format!("chain{number}"))).unwrap();
    }
    base
}

const PATHS: [&str; 48] = [
    ".",
    "./",
    "/",
    "..",
    "../",
    "a/..",
    "a/../..",
    "a/../../root/file",
    "",
    "file",
    "file/",
    "file/.",
    "file/..",
    "/file",
    "//a//file",
    "a",
    "a/",
    "a/.",
    "a/b/c",
    "a/b/c/../../file",
    "a/none",
    "none/..",
    "to-a",
    "to-a/",
    "to-a/file",
    "to-a-slash",
    "to-a-slash/b",
    "to-file",
    "to-file/",
    "to-file-slash",
    "a/up/file",
    "a/up/up",
    "a/b/to-top-file",
    "out",
    "out-dir",
    "out-dir/secret",
    "deep-out",
    "in-by-out",
    "absolute",
    "absolute-out",
    "a/absolute-dir/b",
    "dangling",
    "loop",
    "chain39",
    "chain40",
    "chain45",
    "pipe",
    "dots",
];

#[test]
fn the_walk_answers_as_the_kernel_does() {
    let base = tree();
    let root = rustix::fs::open(base.path().join("root"), DIRECTORY, Mode::empty()).unwrap();
    let each = [Confinement::BENEATH, Confinement::IN_ROOT];
    let confinements = each
        .iter()
        .flat_map(|confinement| [*confinement, confinement.without_symlinks(), confinement.without_mounts()]);
    let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags =
        [read, read | OFlags::DIRECTORY, NAME, DIRECTORY, OFlags::PATH | OFlags::CLOEXEC, read | OFlags::NOFOLLOW];
    let what = |opened: Result<OwnedFd, Errno>| opened.map(|fd| fs::File::from(fd).metadata().unwrap().ino());
    let mut compared = 0;
    for confinement in confinements {
        for path in PATHS {
            for flags in flags {
                // A rename or a mount anywhere on the machine has the kernel ask for another try.
                let kernel = std::iter::repeat_with(|| {
                    rustix::fs::openat2(&root, path, flags, Mode::empty(), confinement.flags())
                })
                .find(|opened| !matches!(opened, Err(Errno::AGAIN)))
                .unwrap();
                if kernel.as_ref().is_err_and(|errno| *errno == Errno::NOSYS) {
                    println!("skipped: the kernel has no openat2");
                    return;
                }
                let walked = walk(&root, Path::new(path), flags, confinement);
                assert_eq!(what(walked), what(kernel), "{path:?} {flags:?} {confinement:?}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 48 * 36);
}

#[test]
fn links_of_proc_lead_no_further_than_others() {
    let base = tree();
    let root = rustix::fs::open(base.path().join("root"), DIRECTORY, Mode::empty()).unwrap();
    assert_eq!(walk(&root, Path::new("to-proc"), OFlags::PATH, Confinement::BENEATH).unwrap_err(), Errno::XDEV);
    let process = rustix::fs::open("/proc/self", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for link in ["root", "cwd", "exe", "root/etc"] {
        let opened = walk(&process, Path::new(link), OFlags::PATH, Confinement::BENEATH);
        assert_eq!(opened.unwrap_err(), Errno::XDEV, "{link}");
        let inside = walk(&process, Path::new(link), OFlags::PATH, Confinement::IN_ROOT);
        let device = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_dev;
        assert!(inside.is_err() || inside.is_ok_and(|fd| device(&fd) == device(&process)), "{link}");
    }
}

#[test]
fn another_file_system_is_not_entered() {
    let root = rustix::fs::open("/", DIRECTORY, Mode::empty()).unwrap();
    for confinement in [Confinement::BENEATH, Confinement::IN_ROOT] {
        let opened = walk(&root, Path::new("proc/version"), OFlags::RDONLY, confinement.without_mounts());
        assert_eq!(opened.unwrap_err(), Errno::XDEV);
        walk(&root, Path::new("proc/version"), OFlags::RDONLY, confinement).unwrap();
    }
}

#[test]
fn a_name_that_is_swapped_meanwhile_leads_nowhere_else() {
    let base = tree();
    let dir = base.path().join("root");
    symlink("../outside", dir.join("other")).unwrap();
    fs::create_dir(dir.join("swapped")).unwrap();
    let root = rustix::fs::open(&dir, DIRECTORY, Mode::empty()).unwrap();
    let secret = fs::metadata(base.path().join("outside/secret")).unwrap().ino();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, dir.join("swapped"), CWD, dir.join("other"), exchange).unwrap();
            }
        });
        for _ in 0..2000 {
            for confinement in [Confinement::BENEATH, Confinement::IN_ROOT] {
                if let Ok(opened) = walk(&root, Path::new("swapped/secret"), OFlags::RDONLY, confinement) {
                    assert_ne!(fs::File::from(opened).metadata().unwrap().ino(), secret);
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
