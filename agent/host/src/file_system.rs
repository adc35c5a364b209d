//! File systems that can change without this kernel's doing, so that no watch tells of it: another host, a program, or
//! what lies below an overlay.

use std::path::Path;

use rustix::fs::statfs;

/// By `statfs` type (`linux/magic.h`, and the file systems' own headers).
const HIDING: [(u32, &str); 13] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB 1"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x794c_7630, "overlay"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x786f_4256, "vboxsf"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
];

/// The name of the file system at `path` if it hides changes. Blocks; a path that leads nowhere hides nothing.
pub fn hides_changes(path: &Path) -> Option<&'static str> {
    // The kernel's numbers have 32 bits; the field is wider on some machines, and signed.
    let found = statfs(path).ok()?.f_type as u32;
    HIDING.iter().find(|(number, _)| *number == found).map(|(_, name)| *name)
}
